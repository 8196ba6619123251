"""man-pages: Debian's manual pages as chats, for the demo.

Downloads the packages, renders each page with mandoc at 80 columns, and
writes {"messages": [...], "source": PACKAGE} a line. Everything downloaded or
rendered stays in the cache, so a second call only copies. Standard library
only.
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess

from common import (EXIT_INTERNAL, Failure, Options, output_errors, run,
                    whole_folder)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SAMPLE = os.path.join(HERE, "man-pages.sample")
PACKAGES = ("manpages", "manpages-dev", "git-man", "bash", "perl-doc",
            "coreutils")
OVERSTRIKE = re.compile(".\b")
PAGE_NAME = re.compile(r"(.+)\.(\d\w*)(?:\.gz)?")


def need_mandoc():
    """Install mandoc when it is missing, once the call is known to be right."""
    if shutil.which("mandoc"):
        return
    done = subprocess.run(
        ["sh", "-c", '. "$0" && apt_need "to render manual pages as text '
         '(1.4 MB)" mandoc', os.path.join(HERE, "apt.sh")], check=False)
    if done.returncode != 0:
        raise SystemExit(EXIT_INTERNAL)


def read_sample():
    """The fixed sample: [(part, package, page)], part train or held-out."""
    with open(SAMPLE, encoding="utf-8") as file:
        lines = [line.split("#")[0].split() for line in file]
    return [tuple(line) for line in lines if line]


def unpacked(cache, package):
    """The folder with the package's files, downloaded when not there."""
    folder = os.path.join(cache, package)
    if os.path.isdir(folder):
        return folder
    with whole_folder(folder) as temporary:
        # apt-get writes into the current folder.
        download = subprocess.run(
            ["apt-get", "download", "-q", package], cwd=temporary,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False)
        names = [name for name in os.listdir(temporary)
                 if name.endswith(".deb")]
        if download.returncode or not names:
            errors = [line for line in download.stdout.splitlines()
                      if line.startswith("E:")]
            raise Failure(f"cannot download the package {package}: "
                          f"{errors[0] if errors else 'no network?'}",
                          EXIT_INTERNAL)
        archive = os.path.join(temporary, names[0])
        subprocess.run(["dpkg-deb", "-x", archive, temporary], check=True)
        os.unlink(archive)
    return folder


def pages_of(folder):
    """{page: path} of the English pages of an unpacked package; links are
    left out, so that no page comes twice."""
    pages = {}
    manual = os.path.join(folder, "usr/share/man")
    for section in sorted(os.listdir(manual)):
        if not section.startswith("man"):
            continue
        directory = os.path.join(manual, section)
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            match = PAGE_NAME.fullmatch(name)
            if match and os.path.isfile(path) and not os.path.islink(path):
                pages[f"{match[1]}.{match[2]}"] = path
    return pages


def render(path):
    """A page as plain text, or None when it holds nothing."""
    result = subprocess.run(
        ["mandoc", "-T", "utf8", "-O", "width=80", path],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, check=False)
    text = OVERSTRIKE.sub("", result.stdout.decode("utf-8", "replace"))
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n") or None


def chat(package, page, text):
    name, _, section = page.rpartition(".")
    return {"messages": [
        {"role": "user", "content": f"Write the manual page "
                                    f"{name}({section})."},
        {"role": "assistant", "content": text}], "source": package}


def write_pages(path, pages):
    """Render [(package, page, path)] in parallel, write them in order."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(render, [page[2] for page in pages])
        with output_errors(path), open(path, "w", encoding="utf-8",
                                       newline="\n") as file:
            for (package, page, _), text in zip(pages, texts):
                if text:
                    file.write(json.dumps(chat(package, page, text),
                                          ensure_ascii=False) + "\n")


def make(cache, full, folder):
    """Write train.jsonl and held-out.jsonl into `folder`."""
    sample = read_sample()
    packages = PACKAGES if full else sorted({row[1] for row in sample})
    found = {package: pages_of(unpacked(cache, package))
             for package in packages}
    # A page that this release of Debian lacks is left out.
    chosen = {part: [(package, page, found[package][page])
                     for kind, package, page in sample
                     if kind == part and page in found[package]]
              for part in ("train", "held-out")}
    if full:
        held_out = {page[:2] for page in chosen["held-out"]}
        chosen["train"] = [(package, page, path)
                           for package in packages
                           for page, path in found[package].items()
                           if (package, page) not in held_out]
    if not all(chosen.values()):
        raise Failure("the packages hold none of the pages of the sample",
                      EXIT_INTERNAL)
    for part, pages in chosen.items():
        write_pages(os.path.join(folder, f"{part}.jsonl"), pages)


def main():
    options = Options(prog="man-pages", description="Write Debian's manual "
                      "pages as chats to OUTPUT.jsonl, and those held out "
                      "for evaluation to OUTPUT-held-out.jsonl.")
    options.add_argument("output", metavar="OUTPUT.jsonl")
    options.add_argument("--full", action="store_true",
                         help="all pages that are not held out (about "
                         "2,180), not the fixed sample")
    options = options.parse_args()

    cache = os.path.join(ROOT, ".cache", "man-pages")
    made = os.path.join(cache, "all" if options.full else "sample")
    if not os.path.isdir(made):
        need_mandoc()
        with whole_folder(made) as folder:
            make(cache, options.full, folder)
    stem = options.output.removesuffix(".jsonl")
    for part, path in (("held-out", f"{stem}-held-out.jsonl"),
                       ("train", options.output)):
        with output_errors(path):
            os.makedirs(os.path.dirname(os.path.abspath(path)),
                        exist_ok=True)
            temporary = f"{path}.tmp-{os.getpid()}"
            shutil.copyfile(os.path.join(made, f"{part}.jsonl"), temporary)
            os.rename(temporary, path)


if __name__ == "__main__":
    run(main)
