"""pipeline_costs.py and bench_schedule.py: fits, replays, what a step sends, and
the costs they give to chunkflow simulate."""

import json
import os
import random
import subprocess
import tempfile
import unittest

import fixtures  # puts scripts/lib on the path

import bench_schedule
import pipeline_costs
from pipeline_costs import Op

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")


def op(kind, chunk, seconds=0.0, start=0.0):
    return Op(kind, chunk, 8, 0, chunk, start, start + seconds)


class Fit(unittest.TestCase):
    def samples(self, terms, noise=0.0):
        rng = random.Random(3)
        for _ in range(60):
            tokens = rng.randrange(4, 2000)
            pairs = tokens * rng.randrange(tokens, 9000)
            yield (tokens, pairs, pipeline_costs.seconds(terms, tokens, pairs)
                   * (1 + rng.uniform(-noise, noise)))

    def test_terms_are_found_again(self):
        for op_s, token, pair in ((0.02, 4e-4, 3e-9), (0, 4e-4, 3e-9),
                                  (0.02, 0, 3e-9), (0.02, 4e-4, 0), (1, 0, 0)):
            terms = {"op": op_s, "token": token, "pair": pair}
            found = pipeline_costs.fit(list(self.samples(terms)))
            for name, value in terms.items():
                self.assertAlmostEqual(found[name], value,
                                       delta=1e-6 * value + 1e-15)

    def test_noise_moves_them_little(self):
        terms = {"op": 0.02, "token": 4e-4, "pair": 3e-8}
        found = pipeline_costs.fit(list(self.samples(terms, 0.05)))
        for tokens, pairs in ((64, 2e3), (512, 2e5), (2000, 8e6)):
            wanted = pipeline_costs.seconds(terms, tokens, pairs)
            self.assertAlmostEqual(
                pipeline_costs.seconds(found, tokens, pairs), wanted,
                delta=0.05 * wanted)

    def test_slow_ops_count_as_much_as_fast_ones(self):
        # A tenth of the ops takes three times as long: fitted and measured
        # seconds have the same sum all the same.
        terms = {"op": 0.02, "token": 4e-4, "pair": 3e-8}
        samples = [(tokens, pairs, seconds * (3 if i % 10 == 0 else 1))
                   for i, (tokens, pairs, seconds)
                   in enumerate(self.samples(terms))]
        found = pipeline_costs.fit(samples)
        wanted = sum(seconds for _, _, seconds in samples)
        self.assertAlmostEqual(
            sum(pipeline_costs.seconds(found, tokens, pairs)
                for tokens, pairs, _ in samples), wanted,
            delta=0.001 * wanted)

    def test_no_term_is_negative(self):
        # A line that falls: its best slope would be negative.
        found = pipeline_costs.fit([(n, 0.0, 2 - n / 1000)
                                    for n in range(1, 1000)])
        self.assertGreaterEqual(min(found.values()), 0)
        self.assertGreater(found["op"], 1)


class Replay(unittest.TestCase):
    STAGES = [[op("K", 0, 2), op(">", 0, 9), op("K", 1, 3), op(">", 1, 9),
               op("}", 1, 9), op("B", 1, 4), op("}", 0, 9), op("B", 0, 5)],
              [op("<", 0, 9), op("K", 0, 10), op("<", 1, 9), op("K", 1, 1),
               op("B", 1, 20), op("{", 1, 9), op("B", 0, 30), op("{", 0, 9)]]

    def test_messages_are_free_and_order_is_kept(self):
        # 2 until chunk 0 is there, 10 + 1 + 20 + 30 on the last, 5 at the end.
        self.assertEqual(pipeline_costs.replay(self.STAGES), 68)
        self.assertEqual(pipeline_costs.busy(self.STAGES), 75)

    def test_ops_that_wait_for_each_other_are_an_error(self):
        with self.assertRaises(ValueError):
            pipeline_costs.replay([[op("}", 0), op(">", 0)],
                                   [op("<", 0), op("{", 0)]])

    def test_only_awaited_messages_tell_what_one_takes(self):
        stages = [[op(">", 0, start=5.0), op(">", 1, start=6.0)],
                  [op("<", 0, 4.25, start=1.0), op("<", 1, 0.1, start=7.0)]]
        self.assertEqual(list(pipeline_costs.message_samples(stages)),
                         [(8, 0.0, 0.25)])


class Spread(unittest.TestCase):
    def terms(self, value):
        return {"op": value, "token": value / 8, "pair": value / 64}

    def test_layers_move_and_the_head_stays_on_the_last_stage(self):
        cost = {"stages": [{"forward": self.terms(8.0)},
                           {"forward": self.terms(20.0)}], "message": {}}
        # 2 of a layer; 20 on the last are 3 layers and a head of 14.
        spread = pipeline_costs.spread(cost, [4, 3], [5, 6, 1])
        self.assertEqual([stage["forward"]["op"] for stage in
                          spread["stages"]], [10, 12, 16])
        self.assertEqual(
            pipeline_costs.spread(cost, [4, 3], [4, 3])["stages"],
            cost["stages"])


class Bytes(unittest.TestCase):
    def test_links_and_a_tied_embedding(self):
        config = {"hidden_size": 3, "vocab_size": 7}
        self.assertEqual(
            [bench_schedule.bytes_expected(config, 5, p) for p in (1, 2, 4)],
            [0, 4 * 3 * 5 * 2, 4 * 3 * 5 * 2 * 3])
        config["tie_word_embeddings"] = True
        self.assertEqual(
            [bench_schedule.bytes_expected(config, 5, p) for p in (1, 2)],
            [0, 4 * 3 * 5 * 2 + 2 * 4 * 3 * 7])


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Simulated(unittest.TestCase):
    """What is fitted to a simulated trace is what it was made with."""

    def simulate(self, folder, *more):
        lengths = os.path.join(folder, "lengths")
        with open(lengths, "w", encoding="ascii") as file:
            file.writelines(f"{n}\n" for n in (900, 35, 410, 77, 160, 12, 230))
        trace = os.path.join(folder, "trace.json")
        subprocess.run(
            [PROGRAM, "simulate", "--lengths", lengths, "--trace", trace,
             "--pipeline-stages", "2", "--chunk-size", "128",
             "--retain-chunks", "2", "--json", *more],
            check=True, stdout=subprocess.DEVNULL)
        return pipeline_costs.trace_read(trace)[0]

    def test_ops_take_what_the_fit_says(self):
        rng = random.Random(5)
        cost = {"stages": [
            {field: {"op": rng.uniform(1, 9), "token": rng.uniform(.1, .9),
                     "pair": rng.uniform(.001, .009)}
             for field in ("forward", "forward_kept", "recompute",
                           "backward")} for _ in range(2)],
            "message": {"op": 3, "token": 0.5}}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cost.json")
            with open(path, "w", encoding="ascii") as file:
                json.dump(cost, file)
            counted = self.simulate(folder, "--cost", "0,0,1")
            pairs = {op.chunk: 1e6 * (op.end - op.start)
                     for op in counted[0] if op.kind in "FK"}
            ops = self.simulate(folder, "--cost-file", path)
        self.assertEqual([[o.what() for o in stage] for stage in ops],
                         [[o.what() for o in stage] for stage in counted])
        for stage in ops:
            for kind in "FKRB":
                samples = [(o.tokens, pairs[o.chunk], 1e6 * (o.end - o.start))
                           for o in stage if o.kind == kind]
                found = pipeline_costs.fit(samples)
                for tokens, n_pairs, time in samples:
                    self.assertAlmostEqual(
                        pipeline_costs.seconds(found, tokens, n_pairs), time,
                        delta=1e-6 * time)
