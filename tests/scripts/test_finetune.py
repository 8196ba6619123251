"""scripts/finetune: from chats to a model; stopped, killed and gone on with, to
the same weights."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import fixtures
from fixtures import chat, write_folder, write_lines

import offline_demo
import safetensors_file
import test_import_gguf

PROGRAM = os.path.abspath(os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow"))
STEPS = 40
OPTIONS = ("--steps", str(STEPS), "--global-batch", "4", "--chunk-size", "64",
           "--learning-rate", "1e-3", "--threads", "1", "--save-every", "1")
NO_MPI = not shutil.which("mpirun") and "there is no mpirun"


def write_model(folder):
    write_folder(folder)
    with open(os.path.join(folder, "config.json"), "w",
              encoding="utf-8") as file:
        json.dump(offline_demo.CONFIG, file)
    safetensors_file.write(folder, offline_demo.tensors(), "F32")
    return folder


def heed_ctrl_c():
    """In a child: what runs in the background of a shell ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running(text):
    """The processes with this text in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if text.encode() in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Finetune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.room.cleanup)
        cls.model = write_model(cls.path("model"))
        rows = [chat("hello " * (7 * i % 11), "world " * (3 + 5 * i % 60))
                for i in range(24)]
        cls.data = write_lines(cls.path("chat.jsonl"), rows)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.room.name, name)

    def start(self, *arguments, **places):
        """Its process and a file with what it says."""
        places = {"model": self.model, "data": self.data, **places}
        environment = dict(os.environ, CHUNKFLOW=PROGRAM, OMP_NUM_THREADS="1",
                           CHUNKFLOW_CACHE=self.path("cache"))
        log = tempfile.TemporaryFile("w+")
        self.addCleanup(log.close)
        command = [sys.executable, "-B",
                   os.path.join(fixtures.LIB, "finetune.py")]
        for name, place in places.items():
            command += [f"--{name.replace('_', '-')}", place]
        if "-n" in arguments:   # mpirun's libraries are not without leaks
            environment["ASAN_OPTIONS"] = "detect_leaks=0"
        process = subprocess.Popen(
            [*command, *arguments], stdout=log, stderr=subprocess.STDOUT,
            env=environment, preexec_fn=heed_ctrl_c)
        return process, log

    def finetune(self, *arguments, code=0, **places):
        process, log = self.start(*arguments, **places)
        found = process.wait(300)
        said = self.said(log)
        self.assertEqual(found, code, said)
        return said

    @staticmethod
    def said(log):
        log.seek(0)
        return log.read()

    def weights(self, run):
        with open(os.path.join(run, "model", "model.safetensors"),
                  "rb") as file:
            return file.read()

    def steps(self, run):
        try:
            with open(os.path.join(run, "metrics.jsonl"),
                      encoding="utf-8") as file:
                return [json.loads(line)["step"] for line in file]
        except (OSError, ValueError):   # not there, or half a line
            return []

    def after_step(self, n, run, process, log):
        """Wait until a run has made n steps, and not all of them."""
        limit = time.monotonic() + 120
        while len(self.steps(run)) < n and process.poll() is None:
            self.assertLess(time.monotonic(), limit, self.said(log))
            time.sleep(0.005)
        self.assertIsNone(process.poll(), self.said(log))

    def uninterrupted(self):
        """The weights of a run that was left alone."""
        run = self.path("alone")
        if not os.path.exists(run):
            said = self.finetune(*OPTIONS, output=run)
            self.assertIn(f"from_pretrained('{run}/model')", said)
            self.assertEqual(self.steps(run), list(range(1, STEPS + 1)))
        return self.weights(run)

    def test_the_same_command_after_the_end_says_that_it_is_finished(self):
        weights = self.uninterrupted()
        said = self.finetune(*OPTIONS, output=self.path("alone"))
        self.assertIn("is prepared already", said)
        self.assertIn("this run is finished", said)
        self.assertIn("from_pretrained", said)
        self.assertEqual(self.weights(self.path("alone")), weights)

    def test_ctrl_c_saves_and_the_same_command_goes_on(self):
        run = self.path("stopped")
        for number, at in ((signal.SIGINT, 5), (signal.SIGTERM, 12),
                           (signal.SIGUSR1, 20)):
            process, log = self.start(*OPTIONS, output=run)
            self.after_step(at, run, process, log)
            process.send_signal(number)
            self.assertEqual(process.wait(60), 0, self.said(log))
            said = self.said(log)
            self.assertIn("the same command goes on", said)
            self.assertIn(f"stopped by {number.name}", said)
            self.assertFalse(os.path.exists(os.path.join(run, "model")))
        self.finetune(*OPTIONS, output=run)
        self.assertEqual(self.weights(run), self.uninterrupted())

    def kill_and_wait(self, process, run):
        process.kill()
        process.wait()
        limit = time.monotonic() + 30
        while running(run):     # whatever ends it ends the training
            self.assertLess(time.monotonic(), limit, running(run))
            time.sleep(0.02)

    @unittest.skipIf(NO_MPI, NO_MPI)
    def test_killed_and_gone_on_with_on_other_stages_and_k(self):
        run = self.path("killed")
        for at, more in ((4, ()), (12, ("-n", "2", "--pipeline-stages", "2")),
                         (20, ("--retain-chunks", "3"))):
            process, log = self.start(*OPTIONS, *more, output=run)
            self.after_step(at, run, process, log)
            self.kill_and_wait(process, run)
        self.finetune(*OPTIONS, "-n", "2", "--pipeline-stages", "2",
                      "--retain-chunks", "2", output=run)
        self.assertEqual(self.weights(run), self.uninterrupted())

    @unittest.skipIf(NO_MPI, NO_MPI)
    def test_after_the_loss_of_a_rank_it_says_how_to_go_on(self):
        run = self.path("lost")
        process, log = self.start(*OPTIONS, "-n", "2", output=run)
        self.after_step(3, run, process, log)
        ranks = [pid for pid in running(run)
                 if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(PROGRAM)]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        self.assertEqual(process.wait(60), 128 + signal.SIGKILL)
        self.assertIn("failed; the same command goes on", self.said(log))
        self.assertIn("the fine-tuned model is in",
                      self.finetune(*OPTIONS, "-n", "2", output=run))

    @unittest.skipIf(NO_MPI, NO_MPI)
    def test_ctrl_c_stops_all_ranks_and_two_replicas_are_chosen(self):
        run = self.path("ranks")
        process, log = self.start(*OPTIONS, "-n", "2", output=run)
        self.after_step(5, run, process, log)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, self.said(log))
        self.assertIn("2 ranks: 2 replicas of 1 stages", self.said(log))
        self.finetune(*OPTIONS, "-n", "2", output=run)
        self.assertEqual(self.steps(run), list(range(1, STEPS + 1)))

    def test_train_judges_its_options_before_anything_is_prepared(self):
        for arguments, code, words in (
                (("--chunk-size", "0"), 2, "--chunk-size"),
                (("--chunksize", "5"), 2, "the nearest is --chunk-size"),
                (("--dat", "x"), 2, "--dat"), (("-n", "0"), 2, "at least 1"),
                (("--hostfile", self.path("no")), 2, "no such file")):
            said = self.finetune(*arguments, code=code,
                                 output=self.path("none"))
            self.assertIn(words, said)
            self.assertEqual(said.count("\n"), 1, said)
        said = self.finetune(code=3, model=self.path("no"),
                             output=self.path("none"))
        self.assertIn(self.path("no"), said)
        self.assertFalse(os.path.exists(self.path("none")))

    def test_bad_samples_stop_it_unless_they_are_to_be_left_out(self):
        data = write_lines(self.path("bad.jsonl"), [chat("a", "b"), "{"])
        options = ("--steps", "1", "--chunk-size", "64")
        said = self.finetune(*options, data=data, code=3,
                             output=self.path("bad"))
        self.assertIn("bad.jsonl:2: not JSON", said)
        self.assertFalse(os.path.exists(self.path("bad")))
        said = self.finetune(*options, "--skip-bad", data=data,
                             output=self.path("bad"))
        self.assertRegex(said, r"left out +1  bad samples")
        self.assertIn("bad.jsonl:2: not JSON", said)
        self.assertIn("from_pretrained", said)

    def test_a_gguf_model_is_imported_once(self):
        gguf = self.path("tiny.gguf")
        test_import_gguf.File().write(gguf)
        for times in (1, 0):
            run = self.path(f"gguf{times}")
            said = self.finetune("--steps", "1", "--chunk-size", "64",
                                 model=gguf, output=run)
            self.assertEqual(said.count("importing"), times, said)
            self.assertTrue(self.weights(run))

    def test_gzip_evaluation_and_tokenised_data_are_taken(self):
        with open(self.data, "rb") as file, gzip.open(
                self.path("held.jsonl.gz"), "wb") as zipped:
            zipped.write(file.read())
        ready = write_lines(self.path("ready.jsonl"),
                            [{"input_ids": [5, 6, 7, 8]}] * 4)
        run = self.path("evaluated")
        self.finetune("--steps", "2", "--chunk-size", "64", data=ready,
                      eval_data=self.path("held.jsonl.gz"), output=run)
        with open(os.path.join(run, "metrics.jsonl"),
                  encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["sequences"] for line in lines], [4, 4, 24])


if __name__ == "__main__":
    unittest.main()
