"""cut_model.py, long_sequence.py and measured.py: what the measurements of
scripts/bench-peer and scripts/memory-table stand on."""

import json
import os
import sys
import tempfile
import unittest

import fixtures  # puts scripts/lib on the path

import cut_model
import long_sequence
import measured
import megatron
from common import Failure

MODELS = os.path.join(fixtures.HERE, "..", "parity", "fixtures")
ROOM_BYTES = 256 << 20


def python(code, **limits):
    return measured.run([sys.executable, "-c", code], ROOM_BYTES, **limits)


class CutModel(unittest.TestCase):
    def test_first_layer_is_kept_byte_for_byte(self):
        for name in ("llama-bias", "llama-linear-sharded", "qwen2-tied"):
            source = os.path.join(MODELS, name)
            with tempfile.TemporaryDirectory() as folder:
                target = os.path.join(folder, "cut")
                cut_model.cut(source, target, 1)
                whole = {t[0]: (t[1], t[2], bytes(t[3]))
                         for t in cut_model.tensors_open(source)}
                kept = {t[0]: (t[1], t[2], bytes(t[3]))
                        for t in cut_model.tensors_open(target)}
                with open(os.path.join(target, "config.json"),
                          encoding="utf-8") as file:
                    config = json.load(file)
            self.assertEqual(config["num_hidden_layers"], 1)
            self.assertEqual(
                kept, {name: tensor for name, tensor in whole.items()
                       if "layers." not in name or "layers.0." in name})
            self.assertLess(len(kept), len(whole))

    def test_more_layers_than_there_are_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(Failure):
                cut_model.cut(os.path.join(MODELS, "llama-bias"),
                              os.path.join(folder, "cut"), 3)
            self.assertEqual(os.listdir(folder), [])


class LongSequence(unittest.TestCase):
    def test_tokens_are_repeated_in_order(self):
        with tempfile.TemporaryDirectory() as folder:
            source = fixtures.write_lines(
                os.path.join(folder, "a.jsonl"),
                [{"input_ids": [5, 6]}, {"input_ids": [7]}])
            first = os.path.join(folder, "first")
            second = os.path.join(folder, "second")
            long_sequence.write(source, 8, first)
            long_sequence.write(first, 10, second)
            self.assertEqual(megatron.read(first),
                             [([5, 6, 7, 5, 6, 7, 5, 6], [1] * 8)])
            self.assertEqual(megatron.read(second),
                             [([5, 6, 7, 5, 6, 7, 5, 6, 5, 6], [1] * 10)])

    def test_missing_source_is_a_failure(self):
        with self.assertRaises(Failure):
            long_sequence.write("/nonexistent", 8, "/nonexistent")


class Measured(unittest.TestCase):
    def test_peak_is_what_the_process_touched(self):
        done = python("x = bytearray(b'x') * (100 << 20)")
        self.assertIsNone(done.failure())
        self.assertGreater(done.peak_rss_bytes, 100 << 20)
        self.assertLess(done.peak_rss_bytes, 160 << 20)

    def test_more_than_the_cap_is_out_of_memory(self):
        self.assertEqual(python("x = bytearray(512 << 20)").failure(),
                         "out of memory")

    def test_a_hanging_process_is_given_up(self):
        done = python("while True: pass", limit_s=0.5)
        self.assertIn("given up", done.failure())

    def test_lines_carry_the_time_of_their_arrival(self):
        done = python("import time; print('a', flush=True); time.sleep(.3);"
                      "print('b')")
        (first_s, a), (second_s, b) = done.lines
        self.assertEqual((a, b), ("a", "b"))
        self.assertGreater(second_s - first_s, 0.2)

    def test_another_failure_is_told_by_its_last_line(self):
        self.assertEqual(python("import sys; sys.exit('why')").failure(),
                         "exit 1: why")


if __name__ == "__main__":
    unittest.main()
