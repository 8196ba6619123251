"""The event file of a run, read as TensorBoard reads it, against metrics.jsonl.

A reader of our own, written from the format, always runs; TensorBoard's runs
where this Python has it: CHUNKFLOW_TENSORBOARD may name a folder to import it
from, such as the site-packages of a virtual environment.
"""

import glob
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
FIXTURE = os.path.join(fixtures.HERE, "..", "parity", "fixtures", "llama-mha")
if "CHUNKFLOW_TENSORBOARD" in os.environ:
    sys.path.append(os.environ["CHUNKFLOW_TENSORBOARD"])
try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None


def masked_crc(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc(data[at:at + 8])
        record = data[at + 12:at + 12 + length]
        assert len(record) == length
        crc, = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked_crc(record)
        at += 16 + length
        yield record


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            length = {1: 8, 5: 4}[kind]
            value, = struct.unpack_from({1: "<d", 5: "<f"}[kind], data, at)
            at += length
        yield key >> 3, value


def curves_of(path):
    """{tag: [(step, value), ...]} of an event file."""
    curves = {}
    with open(path, "rb") as file:
        events = [dict(fields(record)) for record in records(file.read())]
    assert events[0][3] == b"brain.Event:2"
    for event in events[1:]:
        for number, value in fields(event[5]):
            assert number == 1
            value = dict(fields(value))
            curves.setdefault(value[1].decode(), []).append(
                (event[2], value[2]))
    return curves


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class EventFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = os.path.join(folder.name, "run")

    def train(self, *options):
        data = os.path.join(FIXTURE, "data.jsonl")
        subprocess.run(
            [PROGRAM, "train", "--model", FIXTURE, "--data", data, "--output",
             self.run_folder, "--global-batch", "2", "--lr-schedule",
             "constant", "--eval-data", data, "--eval-every", "2", "--quiet",
             "--threads", "1", *options], check=True)

    def path(self):
        pattern = os.path.join(self.run_folder, "events.out.tfevents.*")
        paths = glob.glob(pattern)
        self.assertEqual(len(paths), 1, paths)
        return paths[0]

    def wanted(self):
        """What metrics.jsonl says, as curves."""
        curves = {}
        path = os.path.join(self.run_folder, "metrics.jsonl")
        with open(path, encoding="utf-8") as file:
            for line in file:
                line = json.loads(line)
                part, keys = "train", set(line) - {"step"}
                if line.get("eval"):
                    part, keys = "eval", {"loss", "perplexity"}
                for key in keys:
                    if line[key] is not None:
                        curves.setdefault(f"{part}/{key}", []).append(
                            (line["step"], float32(line[key])))
        return curves

    def interrupted(self):
        """A run of 5 steps that went on from its state of step 2."""
        self.train("--steps", "4", "--save-every", "2")
        state = os.path.join(self.run_folder, "checkpoints", "step-4")
        subprocess.run(["rm", "-r", state], check=True)
        self.train("--steps", "5", "--resume")

    def test_an_event_file_has_the_curves_of_metrics_jsonl(self):
        self.train("--steps", "3")
        self.assertEqual(curves_of(self.path()), self.wanted())

    def test_a_resumed_run_has_no_step_twice_and_none_is_missing(self):
        self.interrupted()
        curves = curves_of(self.path())
        self.assertEqual([step for step, _ in curves["train/tokens"]],
                         [1, 2, 3, 4, 5])
        self.assertEqual(curves, self.wanted())

    @unittest.skipUnless(event_accumulator, "there is no TensorBoard")
    def test_tensorboard_reads_the_same_curves(self):
        self.interrupted()
        found = event_accumulator.EventAccumulator(self.run_folder)
        found.Reload()
        tags = found.Tags()["scalars"]
        wanted = self.wanted()
        self.assertEqual(set(tags), set(wanted))
        for tag in tags:
            self.assertEqual(
                [(event.step, event.value) for event in found.Scalars(tag)],
                wanted[tag])


if __name__ == "__main__":
    unittest.main()
