"""chunkflow simulate: replicas and the search, held against single runs."""

import json
import os
import random
import re
import subprocess
import tempfile
import unittest

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
MODELS = os.path.join(fixtures.HERE, "..", "parity", "fixtures")
COST = "40,1,0.0001,64"


def placed(lengths, n_replicas):
    """The rule in its plain words: the costliest first onto the least loaded."""
    def cost(length):
        return 3 * length + 3.5 * 0.0001 * length * length / 2

    batches = [[] for _ in range(n_replicas)]
    loads = [0.0] * n_replicas
    for i in sorted(range(len(lengths)), key=lambda i: (-cost(lengths[i]), i)):
        replica = min(range(n_replicas), key=lambda r: (loads[r], r))
        loads[replica] += cost(lengths[i])
        batches[replica].append(i)
    return [[lengths[i] for i in sorted(batch)] for batch in batches], loads


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Simulate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_program(self, lengths, *options):
        path = os.path.join(self.folder.name, "lengths")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{length}\n" for length in lengths)
        return subprocess.run(
            [PROGRAM, "simulate", "--lengths", path, "--cost", COST, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            check=False)

    def simulate(self, lengths, *options):
        done = self.run_program(lengths, "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def mix(self, n):
        rng = random.Random(7)
        return [rng.choice((90, 300, 700, 2000, 9000)) + rng.randrange(50)
                for _ in range(n)]

    def test_replicas_are_single_runs_of_what_is_placed_on_them(self):
        lengths = self.mix(40)
        common = ("--pipeline-stages", "3", "--chunk-size", "1024")
        step = self.simulate(lengths, "--replicas", "4", *common)
        batches, loads = placed(lengths, 4)
        runs = [self.simulate(batch, *common) for batch in batches]
        times = [run["makespan"] for run in runs]

        self.assertEqual(step["makespan"], max(times))
        self.assertEqual([r["makespan"] for r in step["replicas"]], times)
        self.assertEqual([r["sequences"] for r in step["replicas"]],
                         [len(batch) for batch in batches])
        for replica, load in zip(step["replicas"], loads):
            self.assertAlmostEqual(replica["load"], load, delta=1e-9 * load)
        self.assertAlmostEqual(step["load_ratio"], max(loads) * 4 / sum(loads))
        for share, of in (("bubble_ratio", lambda run: 1 - run["bubble_ratio"]),
                          ("useful", lambda run: run["useful"])):
            sum_ = sum(of(run) * run["makespan"] for run in runs)
            share_ = sum_ / (4 * max(times))
            self.assertAlmostEqual(
                step[share], 1 - share_ if share == "bubble_ratio" else share_)
        for key in ("peak_tokens", "peak_kv_tokens", "peak_input_tokens"):
            self.assertEqual(step[key], [max(peaks) for peaks in
                                         zip(*(run[key] for run in runs))])

    def test_more_replicas_than_sequences_leave_some_idle(self):
        step = self.simulate([500, 900], "--replicas", "5")
        self.assertEqual([r["sequences"] for r in step["replicas"]],
                         [1, 1, 0, 0, 0])
        self.assertEqual(step["replicas"][0]["makespan"], step["makespan"])
        self.assertEqual(step["replicas"][4]["makespan"], 0)
        self.assertGreater(step["bubble_ratio"], 0.6)

    def test_a_search_finds_the_best_of_its_candidates(self):
        lengths = self.mix(60)
        common = ("--pipeline-stages", "2", "--schedule",
                  "state-aware-long-first")
        for cap in (4096, 8192, 40000, None):
            more = () if cap is None else ("--memory-tokens", str(cap))
            found = self.simulate(lengths, "--search", *more, *common)
            candidates = found["candidates"]
            fitting = [c for c in candidates
                       if cap is None or c["peak_tokens"] <= cap]

            self.assertEqual(fitting, [c for c in candidates if c["fits"]])
            self.assertEqual(found["makespan"],
                             min(c["makespan"] for c in fitting))
            pairs = [(c["chunk_size"], c["retain_chunks"])
                     for c in candidates]
            self.assertEqual(pairs, sorted(set(pairs)))
            self.assertIn((found["chunk_size"], found["retain_chunks"]), pairs)
            for size in (1024, 2048, 4096, 8192, 16384, 32768):
                self.assertIn((size, 1), pairs)
            for c in candidates[::5]:
                run = self.simulate(
                    lengths, "--chunk-size", str(c["chunk_size"]),
                    "--retain-chunks", str(c["retain_chunks"]), *common)
                self.assertEqual(run["makespan"], c["makespan"])
                self.assertEqual(run["bubble_ratio"], c["bubble_ratio"])
                self.assertEqual(max(run["peak_tokens"]), c["peak_tokens"])

    def test_a_search_goes_over_replicas_too(self):
        lengths = self.mix(60)
        found = self.simulate(lengths, "--search", "--replicas", "3")
        run = self.simulate(lengths, "--replicas", "3",
                            "--chunk-size", str(found["chunk_size"]),
                            "--retain-chunks", str(found["retain_chunks"]))
        self.assertEqual(run["makespan"], found["makespan"])

    def test_text_names_the_best_and_every_replica(self):
        done = self.run_program(self.mix(30), "--search", "--replicas", "2",
                                "--memory-tokens", "8K")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(sum(line.endswith("  best") for line in lines), 1)
        self.assertTrue(any("more that keep over 8192" in line
                            for line in lines))
        self.assertTrue(any(line.split()[:1] == ["1"] for line in lines))
        self.assertIn("2 replicas", done.stdout)

    def test_bytes_are_those_that_train_predicts(self):
        model = os.path.join(MODELS, "qwen2-tied")
        common = ("--model", model, "--data",
                  os.path.join(model, "data.jsonl"), "--global-batch", "4",
                  "--no-shuffle", "--chunk-size", "32", "--retain-chunks", "2")
        for policy in ("none", "selective", "layer"):
            done = subprocess.run(
                [PROGRAM, "simulate", "--json", *common, "--recompute", policy],
                stdout=subprocess.PIPE, check=True)
            dry = subprocess.run(
                [PROGRAM, "train", "--dry-run", "--output",
                 os.path.join(self.folder.name, "run"), *common,
                 "--recompute", policy],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=True)
            predicted = re.search(
                r"activations of retained chunks +chunk +([0-9.]+) KiB",
                dry.stdout)
            kept = json.loads(done.stdout)["peak_bytes"][0]
            self.assertEqual(f"{kept / 1024:.2f}", predicted[1], policy)

    def test_bytes_of_stages_add_up_to_those_of_one(self):
        model = os.path.join(MODELS, "qwen2-tied")
        options = ("--model", model, "--chunk-size", "64")
        one = self.simulate([300], "--retain-chunks", "9", *options)
        two = self.simulate([300], "--retain-chunks", "9", *options,
                            "--pipeline-stages", "2", "--layers-per-stage",
                            "1,1")
        for key in ("peak_bytes", "peak_kv_bytes"):
            self.assertEqual(sum(two[key]), one[key][0])
        done = self.run_program([300], *options, "--pipeline-stages", "3")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_what_cannot_be_searched_is_refused(self):
        for code, text, options in (
                (2, "takes sequences whole", ("--search", "--schedule", "1f1b")),
                (2, "the cap of a --search", ("--memory-tokens", "4K")),
                (4, "keeps so few", ("--search", "--memory-tokens", "9",
                                     "--pipeline-stages", "2")),
                (2, "without --model", ("--layers-per-stage", "1")),
                (2, "--replicas: \"0\"", ("--replicas", "0"))):
            done = self.run_program([50, 60, 3000], *options)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stdout, "")
