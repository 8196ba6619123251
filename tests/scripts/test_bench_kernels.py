"""scripts/bench-kernels on tiny shapes: every operation of the table is there,
and what it says can be told apart from nonsense."""

import json
import os
import re
import subprocess
import unittest

import fixtures

ROOT = os.path.join(fixtures.HERE, "..", "..")
PROGRAM = os.environ.get("BENCH_KERNELS") or os.path.join(
    ROOT, "tests", "bench_kernels")


def operations():
    """Those of kernels.h that compute: not status, not the sizes."""
    with open(os.path.join(ROOT, "kernels", "kernels.h"),
              encoding="utf-8") as file:
        names = re.findall(r"\(\*(\w+)\)\(const cf_kernels", file.read())
    return {name for name in names
            if name != "status" and not name.endswith("_bytes")}


def run(*options):
    return subprocess.run([PROGRAM, "--quick", "--threads", "1", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "bench_kernels is not built")
class BenchKernels(unittest.TestCase):
    def measured(self, *options):
        done = run("--json", *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_every_operation_is_measured_in_every_type(self):
        self.assertGreater(len(operations()), 20)
        for compute in ("fp32", "fp64", "bf16"):
            result = self.measured("--compute", compute)
            self.assertEqual({r["op"] for r in result["results"]},
                             operations())
            self.assertIn(compute, result["kernels"])

    def test_numbers_are_positive_and_products_have_the_librarys_share(self):
        result = self.measured()
        for peak in result["peaks"]:
            self.assertGreater(peak["avx2_gflop_per_s"], 0)
            self.assertGreater(peak["read_256_mib_gb_per_s"], 0)
        for r in result["results"]:
            self.assertGreater(r["ms"], 0)
            self.assertGreaterEqual(r["repeats"], 1)
            self.assertEqual("share_of_library" in r,
                             r["op"].startswith("linear_"))
            self.assertFalse("gflop_per_s" in r and "gb_per_s" in r)
            for key in ("gflop_per_s", "gb_per_s", "share_of_peak",
                        "share_of_library"):
                self.assertGreater(r.get(key, 1), 0)

    def test_flop_is_that_of_the_shape(self):
        result = self.measured("--op", "attention_forward")
        # 4 flop, 4 heads of 16: each query with itself and the keys before it.
        flop = {"64": 64 * 65 / 2, "64 after 100": 64 * 100 + 64 * 65 / 2,
                "packed 2 x 32": 2 * 32 * 33 / 2}
        for r in result["results"]:
            if r["model"] == "tiny":
                self.assertAlmostEqual(r["gflop_per_s"] * r["ms"] * 1e6,
                                       4 * 4 * 16 * flop[r["shape"]],
                                       delta=1)
        backward = self.measured("--op", "linear_backward")["results"]
        down = [r for r in backward if "down" in r["shape"]][0]
        self.assertAlmostEqual(down["gflop_per_s"] * down["ms"] * 1e6,
                               2 * 2 * 64 * 64 * 96, delta=1)

    def test_a_person_gets_a_table_of_the_operation_asked_for(self):
        done = run("--op", "adamw", "--threads", "1,2")
        self.assertEqual(done.returncode, 0)
        lines = [line for line in done.stdout.splitlines()
                 if line.startswith("adamw")]
        self.assertEqual(len(lines), 4)
        self.assertIn("2 threads", done.stdout)
        for line in lines:
            self.assertRegex(line, r"^adamw +16384 +[\d.]+ +[\d.]+ GB/s +\d+ %")

    def test_bad_options_are_errors(self):
        for options, part in ((["--op", "nix"], "nix"),
                              (["--tokens", "1,0"], "1,0"),
                              (["--threads", "x"], "x"),
                              (["--compute", "fp8"], "fp8"),
                              (["there"], "there")):
            done = run(*options)
            self.assertEqual(done.returncode, 2)
            self.assertIn(part, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
