# mpirun.sh - run programs on several ranks, and end one of them.  Source it.
#
# Where there is no mpirun, sourcing it skips the test.

command -v mpirun >/dev/null 2>&1 || {
    echo "skipped: there is no mpirun (apt install openmpi-bin)"
    exit 77
}
# Tests may run as root, and with more ranks than cores.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM \
    OMPI_MCA_rmaps_base_oversubscribe OMP_NUM_THREADS

# What Open MPI leaks at its end comes from libraries that are gone by then, so
# that it cannot be suppressed by name.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS

now_ms() {
    echo $(($(date +%s%N) / 1000000))
}

is_running() { # is_running PID: and no zombie
    state=$(sed -n 's/.*) \([A-Za-z]\) .*/\1/p' "/proc/$1/stat" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ] && [ "$state" != X ]
}

# After mpirun: those of PIDS that are left when it and they had MILLISECONDS
# since START_MS.
still_running() { # still_running START_MS MILLISECONDS PIDS...
    until_ms=$(($1 + $2))
    shift 2
    while :; do
        left=
        for pid in "$@"; do
            is_running "$pid" && left="$left $pid"
        done
        if [ -z "$left" ] || [ "$(now_ms)" -ge "$until_ms" ]; then
            break
        fi
        sleep 0.1
    done
    echo "$left"
}

# "RANK PID" of each rank, in order, among the processes with TEXT, such as a
# folder, in their command line.
ranks_of() { # ranks_of TEXT
    grep -ls -- "$1" /proc/[0-9]*/cmdline | cut -d / -f 3 | while read -r pid; do
        tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" |
            sed -n "s/^OMPI_COMM_WORLD_RANK=\(.*\)/\1 $pid/p"
    done | sort -n
}

# A number below N, from a generator that SEED begins.
SEED=${CF_TEST_SEED:-$(date +%s)}
random_below() { # random_below N: into $random
    SEED=$(((SEED * 1103515245 + 12345) % 2147483648))
    # shellcheck disable=SC2034
    random=$((SEED / 65536 % $1))
}
