"""Megatron's indexed dataset, with a loss mask beside it.

PREFIX.bin   token ids, int32, one sequence after the other
PREFIX.idx   version 1, dtype code 4; lengths, byte offsets, document bounds
PREFIX.mask  one byte a token in .bin order, 1 = this token is a target

Each sequence is a document of its own. Sequences stream to disk; only their
lengths stay in memory (four bytes each). Files appear under their names at
close() and in an order that never shows an index without its data.
"""

import array
import os
import struct

from common import Failure, output_errors

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_INT32 = 4
BLOCK = 1 << 16


class Writer:
    def __init__(self, prefix):
        self.prefix = prefix
        self.lengths = array.array("i")
        self.files = {}
        folder = os.path.dirname(os.path.abspath(prefix))
        try:
            with output_errors(prefix):
                os.makedirs(folder, exist_ok=True)
                for kind in ("bin", "mask", "idx"):
                    self.files[kind] = open(self._temporary(kind), "wb")
        except Failure:
            self.discard()
            raise

    def _temporary(self, kind):
        return f"{self.prefix}.{kind}.tmp-{os.getpid()}"

    def append(self, ids, mask):
        """One sequence: `ids` int32 and `mask` uint8 arrays, equally long."""
        with output_errors(self.prefix):
            self.files["bin"].write(memoryview(ids).cast("B"))
            self.files["mask"].write(memoryview(mask).cast("B"))
        self.lengths.append(len(ids))

    def close(self):
        with output_errors(self.prefix):
            self._write_index(self.files["idx"])
            for file in self.files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            if os.path.exists(f"{self.prefix}.idx"):
                os.unlink(f"{self.prefix}.idx")
            for kind in ("bin", "mask", "idx"):
                os.rename(self._temporary(kind), f"{self.prefix}.{kind}")
        self.files = {}

    def discard(self):
        """Drop what close() has not renamed; harmless after close()."""
        for kind, file in self.files.items():
            try:
                file.close()
            except OSError:
                pass
            if os.path.exists(self._temporary(kind)):
                os.unlink(self._temporary(kind))
        self.files = {}

    def _write_index(self, file):
        n = len(self.lengths)
        file.write(MAGIC + struct.pack("<QBQQ", VERSION, DTYPE_INT32, n,
                                       n + 1))
        file.write(self.lengths.tobytes())
        offset = 0
        for first in range(0, n, BLOCK):
            offsets = array.array("q")
            for length in self.lengths[first:first + BLOCK]:
                offsets.append(offset)
                offset += 4 * length
            file.write(offsets.tobytes())
        for first in range(0, n + 1, BLOCK):
            file.write(array.array("q", range(first, min(first + BLOCK,
                                                         n + 1))).tobytes())


def read(prefix):
    """The sequences of PREFIX as (ids, mask) pairs of lists; for tests and
    small files."""
    with open(f"{prefix}.idx", "rb") as file:
        data = file.read()
    if data[:9] != MAGIC:
        raise Failure(f"{prefix}.idx is not a Megatron index")
    version, dtype, n, n_documents = struct.unpack_from("<QBQQ", data, 9)
    if (version, dtype, n_documents) != (VERSION, DTYPE_INT32, n + 1):
        raise Failure(f"{prefix}.idx is not of version 1 and type int32")
    lengths = array.array("i", data[34:34 + 4 * n])
    offsets = array.array("q", data[34 + 4 * n:34 + 12 * n])
    ids = array.array("i")
    with open(f"{prefix}.bin", "rb") as file:
        ids.frombytes(file.read())
    with open(f"{prefix}.mask", "rb") as file:
        mask = file.read()
    return [(list(ids[o // 4:o // 4 + length]),
             list(mask[o // 4:o // 4 + length]))
            for o, length in zip(offsets, lengths)]
