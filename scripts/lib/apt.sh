# apt.sh - install Debian packages, saying what and why.  Source it.
#
# apt_need WHY PACKAGE...: installs those that are missing; asks sudo when not
# root; says how to go on where there is no apt.

apt_need() {
    apt_why=$1
    shift
    apt_missing=
    for apt_package in "$@"; do
        dpkg-query -W -f='${Status}' "$apt_package" 2>/dev/null |
            grep -q 'install ok installed' || apt_missing="$apt_missing $apt_package"
    done
    [ -n "$apt_missing" ] || return 0

    if ! command -v apt-get >/dev/null 2>&1; then
        echo "chunkflow: error: this machine has no apt: install these by" \
            "hand ($apt_why):$apt_missing" >&2
        return 1
    fi
    apt_sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "chunkflow: error: not root and no sudo: have somebody run" \
                "apt-get install$apt_missing ($apt_why)" >&2
            return 1
        }
        apt_sudo=sudo
    fi
    echo "installing by apt, $apt_why:$apt_missing" >&2
    apt_log=$(mktemp)
    # shellcheck disable=SC2086
    if { apt_index_is_there || $apt_sudo apt-get update; } >"$apt_log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive $apt_sudo apt-get install -y \
            --no-install-recommends $apt_missing >>"$apt_log" 2>&1 </dev/null; then
        rm -f "$apt_log"
        return 0
    fi
    # An index that is too old names packages that are gone.
    # shellcheck disable=SC2086
    if $apt_sudo apt-get update >"$apt_log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive $apt_sudo apt-get install -y \
            --no-install-recommends $apt_missing >>"$apt_log" 2>&1 </dev/null; then
        rm -f "$apt_log"
        return 0
    fi
    echo "chunkflow: error: apt could not install$apt_missing ($apt_why):" \
        "$(grep -E '^E:' "$apt_log" | head -n 1); see $apt_log" >&2
    return 1
}

# Whether apt-get update has ever run here.
apt_index_is_there() {
    ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1
}
