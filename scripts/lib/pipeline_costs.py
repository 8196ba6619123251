"""What the ops of a pipeline cost: read from a trace, fitted, spread.

A cost is what `chunkflow simulate --cost-file` takes: for each stage and kind
of op the seconds of an op, a token and a pair of a token and one before it.
Standard library only.
"""

import itertools
import json
import re
from dataclasses import dataclass

# Kinds that do the same work: only the last stage need not finish a forward
# whose activations are dropped.
FIELDS = {"forward": "FKR", "backward": "B"}
FIELDS_OF_LAST = {"forward": "F", "forward_kept": "KR", "backward": "B"}
TERMS = ("op", "token", "pair")
CLOCK = 1e-4  # seconds
FITS = 6  # until the weights are those of the fit
# To and from the next stage: activations up, gradients down.
SENDS = {">": ("act", 1), "{": ("grad", -1)}
RECEIVES = {"<": ("act", -1), "}": ("grad", 1)}
NAME = re.compile(r"\d*?([FKRB<>{}])(\d+)$")


@dataclass(frozen=True)
class Op:
    kind: str
    chunk: int
    tokens: int
    prefix: int
    group: int
    start: float  # seconds
    end: float

    def what(self):
        return (self.kind, self.chunk, self.tokens, self.prefix, self.group)

    def computes(self):
        return self.kind in "FKRB"


def trace_read(path):
    """{step: [ops of a stage, in order]} of a trace of train or simulate,
    which has a single step 0."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    if isinstance(events, dict):
        events = events["traceEvents"]
    steps = {}
    for event in events:
        if event["ph"] != "X":
            continue
        name, about = NAME.match(event["name"]), event["args"]
        stages = steps.setdefault(about.get("step", 0), [])
        while len(stages) <= event["tid"]:
            stages.append([])
        start = event["ts"] * 1e-6
        stages[event["tid"]].append(Op(
            name[1], int(name[2]), about["tokens"], about["prefix"],
            about["group"], start, start + event["dur"] * 1e-6))
    return steps


def makespan(stages):
    return (max(ops[-1].end for ops in stages)
            - min(ops[0].start for ops in stages))


def busy(stages):
    return sum(op.end - op.start for ops in stages for op in ops
               if op.computes())


def replay(stages):
    """The makespan of these ops, each as long as it was, were messages free:
    what is left is the idle time of the schedule itself."""
    clocks = [0.0] * len(stages)
    places = [0] * len(stages)
    sent = {}

    def run(stage):
        while places[stage] < len(stages[stage]):
            op = stages[stage][places[stage]]
            if op.kind in RECEIVES:
                what, step = RECEIVES[op.kind]
                arrival = sent.get((what, op.chunk, stage + step))
                if arrival is None:
                    return
                clocks[stage] = max(clocks[stage], arrival)
            elif op.kind in SENDS:
                sent[SENDS[op.kind][0], op.chunk, stage] = clocks[stage]
            else:
                clocks[stage] += op.end - op.start
            places[stage] += 1

    while any(place < len(ops) for place, ops in zip(places, stages)):
        before = list(places)
        for stage in range(len(stages)):
            run(stage)
        if places == before:
            raise ValueError("the ops of the trace wait for each other")
    return max(clocks)


# ---- fitting ----

def solve(matrix, right):
    """Gauss with pivots; None when it is singular."""
    rows = [row + [value] for row, value in zip(matrix, right)]
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def fit_weighted(rows):
    """Least squares of ((1, tokens, pairs), seconds, weight), terms not
    negative: the best of all choices of terms whose solution has no negative
    one."""
    scale = [max(row[0][i] for row in rows) or 1.0 for i in range(3)]
    best = None
    for n in (1, 2, 3):
        for chosen in itertools.combinations(range(3), n):
            columns = [[row[0][i] / scale[i] for row in rows] for i in chosen]
            matrix = [[sum(a * b * row[2] for a, b, row in zip(x, y, rows))
                       for y in columns] for x in columns]
            right = [sum(a * row[1] * row[2] for a, row in zip(x, rows))
                     for x in columns]
            found = solve(matrix, right)
            if found is None or min(found) < 0:
                continue
            error = sum(row[2] * (row[1] - sum(
                term * x[k] for term, x in zip(found, columns))) ** 2
                for k, row in enumerate(rows))
            if best is None or error < best[0]:
                terms = dict.fromkeys(TERMS, 0.0)
                for i, term in zip(chosen, found):
                    terms[TERMS[i]] = term / scale[i]
                best = (error, terms)
    return best[1]


def fit(samples):
    """The terms of (tokens, pairs, seconds).  Errors weigh as 1 / seconds, so
    that no one long op decides, and those seconds are of the fit before: then
    fitted and measured seconds have the same sum, where with the measured ones
    an op that was slow by chance would count less than one that was fast.
    Below 0.1 ms errors are those of the clock."""
    rows = [((1.0, tokens, pairs), seconds)
            for tokens, pairs, seconds in samples]
    weights = [1 / max(seconds, CLOCK) for _, seconds in rows]
    for _ in range(FITS):
        terms = fit_weighted([(*row, weight)
                              for row, weight in zip(rows, weights)])
        weights = [1 / max(CLOCK, seconds(terms, tokens, pairs))
                   for (_, tokens, pairs), _ in rows]
    return terms


def seconds(terms, tokens, pairs):
    return terms["op"] + terms["token"] * tokens + terms["pair"] * pairs


def message_samples(stages):
    """(tokens, 0, seconds from a send to its arrival), of the messages that
    were waited for."""
    sends = {(SENDS[op.kind][0], op.chunk, stage): op
             for stage, ops in enumerate(stages) for op in ops
             if op.kind in SENDS}
    for stage, ops in enumerate(stages):
        for op in ops:
            if op.kind not in RECEIVES:
                continue
            what, step = RECEIVES[op.kind]
            send = sends.get((what, op.chunk, stage + step))
            if send is not None and op.start < send.start:
                yield op.tokens, 0.0, max(0.0, op.end - send.start)


def fit_pipeline(steps):
    """The cost of every stage, from [(ops by stage, {chunk: pairs})]."""
    n_stages = len(steps[0][0])
    stages = []
    for stage in range(n_stages):
        fields = FIELDS_OF_LAST if stage == n_stages - 1 else FIELDS
        stages.append({field: fit([
            (op.tokens, pairs[op.chunk], op.end - op.start)
            for ops, pairs in steps for op in ops[stage] if op.kind in kinds])
            for field, kinds in fields.items()})
    message = fit([sample for ops, _ in steps
                   for sample in message_samples(ops)])
    del message["pair"]
    return {"stages": stages, "message": message}


# ---- other splits ----

def spread(cost, layers, wanted):
    """The cost of stages with `wanted` layers, from one of two stages with
    `layers`: the first tells what a layer costs, and what the last costs
    besides its layers it costs with any number of them."""
    first, last = cost["stages"]

    def layer(field, term):
        return first.get(field, first["forward"])[term] / layers[0]

    def other(count):
        return {field: {term: count * layer(field, term) for term in TERMS}
                for field in first}

    def head(count):
        return {field: {term: max(0.0, last[field][term]
                                  + (count - layers[1]) * layer(field, term))
                        for term in TERMS} for field in last}

    return {"stages": [other(count) for count in wanted[:-1]]
            + [head(wanted[-1])], "message": cost["message"]}
