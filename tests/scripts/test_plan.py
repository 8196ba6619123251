"""chunkflow plan and the auto of train: bytes held against train's, the choice
against the list, the formula of the memory against its sum."""

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
MODEL = os.path.join(fixtures.HERE, "..", "parity", "fixtures", "qwen2-tied")
MEMORY = 5_000_000
CHOICE = ("pipeline_stages", "chunk_size", "retain_chunks", "recompute",
          "keep_attention", "predicted_bytes")
NO_MPI = not shutil.which("mpirun") and "there is no mpirun"
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1",
       "ASAN_OPTIONS": "detect_leaks=0"}  # its libraries are not without
ROW = re.compile(r"  (\S.*?) +(\d+)(?: = (.*?))?  \(")


class Planned(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.data = self.path("data.jsonl")
        rng = random.Random(1)
        with open(self.data, "w", encoding="ascii") as file:
            for i in range(12):
                n = 1200 if i == 3 else rng.choice((20, 100, 300, 700))
                ids = [rng.randrange(1, 50) for _ in range(n)]
                file.write(json.dumps({"input_ids": ids}) + "\n")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_program(self, command, *options, ranks=1):
        launcher = [] if ranks == 1 else ["mpirun", "-n", str(ranks)]
        environment = {**os.environ, **(MPI if ranks > 1 else {}),
                       "XDG_CACHE_HOME": self.path("cache")}
        return subprocess.run(
            [*launcher, PROGRAM, command, "--model", MODEL, "--data",
             self.data, "--threads", "1", *options], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            check=False)

    def plan(self, *options, memory=MEMORY):
        done = self.run_program("plan", "--memory", str(memory), "--json",
                                *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def train(self, point, memory, *options, ranks=1):
        return self.run_program(
            "train", "--output", self.path("run"),
            "--pipeline-stages", str(point["pipeline_stages"]),
            "--chunk-size", str(point["chunk_size"]),
            "--retain-chunks", str(point["retain_chunks"]),
            "--recompute", point["recompute"], "--memory", str(memory),
            *(["--keep-attention"] if point["keep_attention"] else []),
            *options, ranks=ranks)

    def check_bytes(self, point, ranks=1):
        needed = point["predicted_bytes"]
        self.assertEqual(point["fits"], needed <= MEMORY)
        for memory, code in ((needed, 0), (needed - 1, 4)):
            done = self.train(point, memory, "--dry-run", ranks=ranks)
            self.assertEqual(done.returncode, code, (point, done.stderr))


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Plan(Planned):
    def test_every_point_is_refused_by_train_below_its_bytes_and_only_there(self):
        for point in self.plan()["candidates"]:
            self.check_bytes(point)

    def test_a_run_of_the_choice_peaks_at_the_bytes_predicted(self):
        plan = self.plan()
        done = self.train(plan, MEMORY, "--learning-rate", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("run/metrics.jsonl"), encoding="ascii") as file:
            peak = max(json.loads(line)["peak_bytes"] for line in file)
        self.assertEqual(peak, plan["predicted_bytes"])

    def test_the_choice_is_the_best_of_the_list_and_always_the_same(self):
        plan = self.plan()
        self.assertEqual(plan["costs"], "built-in")
        best = min((c for c in plan["candidates"] if c["fits"]),
                   key=lambda c: (c["cost"], c["predicted_bytes"]))
        self.assertEqual([best[k] for k in CHOICE], [plan[k] for k in CHOICE])
        again = self.plan()
        for a, b in zip(again["candidates"], plan["candidates"]):
            self.assertEqual(a.get("cost"), b.get("cost"))
        self.assertEqual([again[k] for k in CHOICE], [plan[k] for k in CHOICE])

    def test_what_is_given_is_kept(self):
        plan = self.plan("--chunk-size", "300", "--retain-chunks", "2")
        for point in (plan, *plan["candidates"]):
            self.assertEqual(point["chunk_size"], 300)
            self.assertEqual(point["retain_chunks"], 2)

    def test_less_than_the_least_is_exit_4_and_names_what_would_do(self):
        least = min(c["predicted_bytes"] for c in self.plan()["candidates"])
        self.assertEqual(self.plan(memory=least)["predicted_bytes"], least)
        done = self.run_program("plan", "--memory", str(least - 1))
        self.assertEqual(done.returncode, 4)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(f"({least} bytes)", done.stderr)
        self.assertIn("1200 tokens", done.stderr)

    def test_a_runner_up_that_does_not_fit_says_what_it_would_need(self):
        done = self.run_program("plan", "--memory", str(MEMORY))
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = self.plan()
        near = [c for c in plan["candidates"] if not c["fits"]
                and sum(c[k] != plan[k] for k in CHOICE[:-1]) == 1]
        self.assertEqual(done.stdout.count("would need"), len(near))

    def test_the_formulas_give_their_bytes_and_the_lines_their_sum(self):
        for settings in ((), ("--chunk-size", "256", "--retain-chunks", "3"),
                         ("--lora-rank", "2"), ("--freeze", "layers:0"),
                         ("--compute", "bf16"), ("--compute", "fp64"),
                         ("--ranks", "2", "--pipeline-stages", "2")):
            with self.subTest(settings):
                self.check_explained("--memory", "50MB", *settings)

    def check_explained(self, *options):
        done = self.run_program("plan", "--explain", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.split("\nmemory of stage ")[1].splitlines()[1:]
        total = int(lines[-1].split()[-1])
        done = self.run_program("plan", "--json", *options)
        self.assertEqual(json.loads(done.stdout)["predicted_bytes"], total)
        rows = [ROW.match(line) for line in lines[:-1]]
        self.assertNotIn(None, rows, lines)
        self.assertEqual(sum(int(row[2]) for row in rows), total)
        with_formula = [row for row in rows if row[3]]
        self.assertGreaterEqual(len(with_formula), 9)
        for row in with_formula:
            self.assertRegex(row[3], r"^[0-9 ()*+]+$")
            # pylint: disable=eval-used
            self.assertEqual(eval(row[3]), int(row[2]), row[0])
        rounding, = (int(row[2]) for row in rows if row[1] == "rounding")
        self.assertLess(rounding, 64 * 1000)

    def test_measured_costs_are_found_and_told(self):
        self.assertEqual(self.plan()["costs"], "built-in")
        measured = self.plan("--calibrate")
        self.assertEqual(measured["costs"], "measured")
        self.assertGreater(measured["step_s"], 0)
        again = self.plan()
        self.assertEqual(again["error"], measured["error"])
        self.assertEqual([again[k] for k in CHOICE],
                         [measured[k] for k in CHOICE])
        self.assertEqual(again["step_s"], measured["step_s"])
        done = self.train(again, MEMORY, "--dry-run")
        self.assertIn("forecast from costs measured on this machine",
                      done.stderr)

    @unittest.skipIf(NO_MPI, NO_MPI)
    def test_bytes_of_several_ranks_are_those_of_train(self):
        points = [point for ranks in (2, 4)
                  for point in self.plan("--ranks", str(ranks))["candidates"]
                  if point.setdefault("ranks", ranks)]
        self.assertEqual({(p["ranks"], p["pipeline_stages"]) for p in points},
                         {(2, 1), (2, 2), (4, 1), (4, 2)})
        for point in random.Random(2).sample(points, 6):
            self.check_bytes(point, ranks=point["ranks"])

    def test_bad_input_is_one_line(self):
        for options, code in (((), 2), (("--memory", "much"), 2),
                              (("--memory", "1GB", "--data", "nowhere"), 3),
                              (("--memory", "1GB", "--ranks", "0"), 2),
                              (("--memory", "1GB", "--ranks", "3",
                                "--pipeline-stages", "2"), 2),
                              (("--memory", "1GB", "--ranks", "8",
                                "--pipeline-stages", "8"), 2),
                              (("--memory", "1GB", "--json", "--explain"), 2)):
            done = self.run_program("plan", *options)
            self.assertEqual(done.returncode, code, (options, done.stderr))
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Auto(Planned):
    def auto(self, *options, ranks=1, memory=MEMORY, output="run"):
        done = self.run_program(
            "train", "--output", self.path(output), "--chunk-size", "auto",
            "--retain-chunks", "auto", "--memory", str(memory),
            "--global-batch", "4", "--lr-schedule", "constant", *options,
            ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def settings(self, output="run"):
        with open(self.path(output + "/config.yaml"),
                  encoding="ascii") as file:
            values = dict(re.findall(r"^(\w+): (.*)$", file.read(),
                                     re.MULTILINE))
        return int(values["chunk_size"]), int(values["retain_chunks"])

    def weights(self, output="run"):
        with open(self.path(output + "/model/model.safetensors"),
                  "rb") as file:
            return file.read()

    def best(self, steps, memory=MEMORY):
        plan = self.plan("--global-batch", "4", "--steps", str(steps),
                         memory=memory)
        best = min((c for c in plan["candidates"]
                    if c["fits"] and c["recompute"] == "selective"
                    and not c["keep_attention"]),
                   key=lambda c: (c["cost"], c["predicted_bytes"]))
        return best["chunk_size"], best["retain_chunks"]

    def test_train_takes_what_plan_prints_and_says_so(self):
        told = self.auto("--steps", "1")
        self.assertEqual(self.settings(), self.best(1))
        self.assertIn("chosen --chunk-size %d and --retain-chunks %d"
                      % self.settings(), told)
        with open(self.path("run/run.json"), encoding="utf-8") as file:
            self.assertIn("--chunk-size", json.load(file)["plan"]["choice"])

    def test_a_resumed_run_keeps_the_chunk_size_whatever_the_memory(self):
        more = 4 * MEMORY
        least = min(c["predicted_bytes"] for c in
                    self.plan("--global-batch", "4")["candidates"]
                    if c["recompute"] == "selective"
                    and not c["keep_attention"])
        self.assertNotEqual(self.best(4, least)[0], self.best(4, more)[0])
        self.auto("--steps", "4", memory=least, output="whole")
        self.auto("--steps", "2", memory=least)
        told = self.auto("--steps", "4", "--resume", memory=more)
        self.assertIn("the state of step 2 has it", told)
        self.assertEqual(self.settings()[0], self.settings("whole")[0])
        self.assertEqual(self.weights(), self.weights("whole"))

    def test_nothing_fits_is_exit_4_and_leaves_nothing(self):
        done = self.run_program(
            "train", "--output", self.path("run"), "--chunk-size", "auto",
            "--retain-chunks", "auto", "--memory", "100KB")
        self.assertEqual(done.returncode, 4)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("the least is", done.stderr)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_whole_sequences_leave_nothing_to_choose(self):
        done = self.run_program(
            "train", "--output", self.path("run"), "--chunk-size", "auto",
            "--schedule", "1f1b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--schedule 1f1b takes sequences whole", done.stderr)

    @unittest.skipIf(NO_MPI, NO_MPI)
    def test_ranks_choose_together(self):
        told = self.auto("--steps", "1", "--pipeline-stages", "2", ranks=2)
        plan = self.plan("--ranks", "2", "--pipeline-stages", "2",
                         "--global-batch", "4", "--steps", "1")
        best = min((c for c in plan["candidates"]
                    if c["fits"] and c["recompute"] == "selective"
                    and not c["keep_attention"]),
                   key=lambda c: (c["cost"], c["predicted_bytes"]))
        self.assertEqual(self.settings(),
                         (best["chunk_size"], best["retain_chunks"]), told)
