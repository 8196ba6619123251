"""Where prepare's samples come from: JSON lines of files and folders, plain or
gzip, read once from end to end in batches of a bounded size."""

import collections
import gzip
import hashlib
import os
import zlib

from common import Failure

BATCH_CHARS = 1 << 20
BATCH_ROWS = 1 << 10
ENDINGS = (".jsonl", ".jsonl.gz")
GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"

# Lines of one file, the first of them with its number from 1.
Batch = collections.namedtuple("Batch", "path first lines")


def files_of(paths):
    """The files that paths name: a folder stands for the .jsonl and
    .jsonl.gz in it, by name."""
    files = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = sorted(name for name in os.listdir(path)
                       if name.endswith(ENDINGS) and name[0] != ".")
        if not found:
            raise Failure(f"{path}: the folder holds no .jsonl or .jsonl.gz")
        files += [os.path.join(path, name) for name in found]
    return files


def _open(path):
    try:
        return open(path, "rb")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error


def total_bytes(files):
    """Bytes on the disk, as Reader.position counts them."""
    total = 0
    for path in files:
        with _open(path) as file:
            total += os.fstat(file.fileno()).st_size
    return total


def content_hash(path):
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with _open(path) as file:
        try:
            while block := file.read(1 << 20):
                digest.update(block)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from error
    return digest.hexdigest()


class Reader:
    """Iterates over the batches of files; `position` of all bytes is read."""

    def __init__(self, files):
        self.files = files
        self.position = 0

    def __iter__(self):
        before = 0
        for path in self.files:
            with _open(path) as raw:
                for batch in self._batches(path, raw):
                    self.position = before + raw.tell()
                    yield batch
                before += raw.tell()
                self.position = before

    @staticmethod
    def _batches(path, raw):
        zipped = raw.peek(2)[:2] == GZIP_MAGIC
        file = gzip.GzipFile(fileobj=raw) if zipped else raw
        first, lines, chars = 1, [], 0
        try:
            for line in file:
                if not lines and first == 1 and line.startswith(BOM):
                    line = line.removeprefix(BOM)
                lines.append(line)
                chars += len(line)
                if chars >= BATCH_CHARS or len(lines) >= BATCH_ROWS:
                    yield Batch(path, first, lines)
                    first, lines, chars = first + len(lines), [], 0
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Failure(f"{path}:{first + len(lines)}: the gzip file is cut "
                          f"off or damaged: {error}") from error
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from error
        if lines:
            yield Batch(path, first, lines)
