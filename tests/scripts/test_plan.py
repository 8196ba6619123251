"""chunkflow plan: its bytes held against train's, its choice against its list."""

import json
import os
import random
import subprocess
import tempfile
import unittest

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
MODEL = os.path.join(fixtures.HERE, "..", "parity", "fixtures", "qwen2-tied")
MEMORY = 5_000_000


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Plan(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.data = os.path.join(self.folder.name, "data.jsonl")
        rng = random.Random(1)
        with open(self.data, "w", encoding="ascii") as file:
            for i in range(12):
                n = 1200 if i == 3 else rng.choice((20, 100, 300, 700))
                ids = [rng.randrange(1, 50) for _ in range(n)]
                file.write(json.dumps({"input_ids": ids}) + "\n")

    def run_program(self, command, *options):
        return subprocess.run(
            [PROGRAM, command, "--model", MODEL, "--data", self.data,
             "--threads", "1", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            check=False)

    def plan(self, memory=MEMORY):
        done = self.run_program("plan", "--memory", str(memory), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def train(self, point, memory, *options):
        return self.run_program(
            "train", "--output", os.path.join(self.folder.name, "run"),
            "--chunk-size", str(point["chunk_size"]),
            "--retain-chunks", str(point["retain_chunks"]),
            "--recompute", point["recompute"], "--memory", str(memory),
            *options)

    def test_every_point_is_refused_by_train_below_its_bytes_and_only_there(self):
        for point in self.plan()["candidates"]:
            needed = point["predicted_bytes"]
            self.assertEqual(point["fits"], needed <= MEMORY)
            self.assertEqual(
                self.train(point, needed, "--dry-run").returncode, 0)
            self.assertEqual(
                self.train(point, needed - 1, "--dry-run").returncode, 4)

    def test_a_run_of_the_choice_peaks_at_the_bytes_predicted(self):
        plan = self.plan()
        done = self.train(plan, MEMORY, "--learning-rate", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        path = os.path.join(self.folder.name, "run", "metrics.jsonl")
        with open(path, encoding="ascii") as file:
            peak = max(json.loads(line)["peak_bytes"] for line in file)
        self.assertEqual(peak, plan["predicted_bytes"])

    def test_the_choice_is_the_best_of_the_list_and_always_the_same(self):
        plan = self.plan()
        keys = ("chunk_size", "retain_chunks", "recompute", "predicted_bytes")
        best = min((c for c in plan["candidates"] if c["fits"]),
                   key=lambda c: (c["cost"], c["predicted_bytes"]))
        self.assertEqual([best[k] for k in keys], [plan[k] for k in keys])
        again = self.plan()
        self.assertEqual(again["candidates"], plan["candidates"])
        self.assertEqual([again[k] for k in keys], [plan[k] for k in keys])

    def test_less_than_the_least_is_exit_4_and_names_what_would_do(self):
        least = min(c["predicted_bytes"] for c in self.plan()["candidates"])
        self.assertEqual(self.plan(least)["predicted_bytes"], least)
        done = self.run_program("plan", "--memory", str(least - 1))
        self.assertEqual(done.returncode, 4)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(f"({least} bytes)", done.stderr)
        self.assertIn("1200 tokens", done.stderr)

    def test_bad_input_is_one_line(self):
        for options, code in (((), 2), (("--memory", "much"), 2),
                              (("--memory", "1GB", "--data", "nowhere"), 3),
                              (("--memory", "1GB", "--ranks", "2"), 2)):
            done = self.run_program("plan", *options)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
