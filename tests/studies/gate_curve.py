"""The curve of the gate: its false alarms, and the slowdowns that it sees in a given time.

    python -m tests.studies.gate_curve --pairs=2000      the table of docs/speed.md, in three minutes

Pairs are taken as the gate takes them (`suite.measure.gate`), of a kernel and its copy in another
process: unchanged (A/A), and with a copy that is slowed by 2 %. A verdict of the gate has as many pairs
as fit into `--seconds`. Its rates come from 10,000 resamples of so many pairs. What the gate does with
another slowdown follows from the A/A pairs, each multiplied by the slowdown. Every figure is a ratio of
one run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np

from attention_conformance.suite.measure import gate, protocol
from attention_conformance.suite.measure.call import TimedCall
from attention_conformance.suite.measure.pool import Worker
from attention_conformance.suite.measure.worker import implementations, pin
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.case import Case

CASE = "sdpa/causal/mha/f32/b2h3q65k65d16"

SLOWED = 0.02
"""The slowdown of the copy in the pairs that are not A/A: the least that the gate should see."""

EFFECTS = (0.0, 0.01, 0.015, 0.02, 0.03, 0.05)

POWER = 0.95

DRAWS = 10_000

ROUND = 3
"""The kinds of pairs that the gate takes in turn: the verdict is about one of them."""


@dataclass(frozen=True)
class Curve:
    """Paired log-ratios of copy and kernel, A/A and slowed, and the pairs of a verdict."""

    same: Sequence[float]
    slowed: Sequence[float]
    count: int

    def called(self, effect: float) -> float:
        """The share of verdicts that call a slowdown by the fraction `effect` a regression."""
        limits = gate.lower_limits(self.same, self.count, DRAWS) + math.log1p(effect)
        return float((limits > math.log1p(gate.MARGIN)).mean())

    @property
    def called_slowed(self) -> float:
        """The share of verdicts about the slowed pairs that call them a regression."""
        limits = gate.lower_limits(self.slowed, self.count, DRAWS)
        return float((limits > math.log1p(gate.MARGIN)).mean())

    @property
    def alarms_in_a_row(self) -> tuple[int, int]:
        """False alarms in the A/A pairs as they were taken, and the number of such verdicts: a machine
        that drifts shows here, and not in resamples."""
        starts = range(len(self.same) - self.count + 1)
        windows = (self.same[start : start + self.count] for start in starts)
        return sum(map(gate.is_regression, windows)), len(starts)

    @property
    def seen(self) -> float:
        """The least slowdown that is called a regression with the probability `POWER`."""
        low = np.quantile(gate.lower_limits(self.same, self.count, DRAWS), 1 - POWER)
        return math.expm1(math.log1p(gate.MARGIN) - float(low))

    def table(self) -> list[str]:
        """The curve as lines of a table."""
        alarms, verdicts = self.alarms_in_a_row
        median = math.expm1(float(np.median(self.slowed)))
        rows = [(f"{effect:.1%}", f"{self.called(effect):.2%}") for effect in EFFECTS]
        return [
            f"{len(self.same)} A/A pairs; a verdict has {self.count}",
            f"median of the A/A pairs {math.expm1(float(np.median(self.same))):+.2%}, of the pairs "
            f"slowed by {SLOWED:.0%} {median:+.2%}",
            f"A/A pairs in a row: {alarms} of {verdicts} verdicts are false alarms",
            f"pairs slowed by {SLOWED:.0%}: called a regression in {self.called_slowed:.2%}",
            f"seen with a power of {POWER:.0%}: {self.seen:.2%}",
            "| slower by | called a regression |",
            "|---|---|",
            *(f"| {effect} | {share} |" for effect, share in rows),
        ]


def pairs(
    options: Options, name: str, case: str, least: int
) -> tuple[list[float], list[float], float]:
    """At least so many log-ratios A/A, and slowed, and the seconds of two pairs."""
    same: list[float] = []
    slowed: list[float] = []
    side = gate.Side(options, options.backends[0], name, name)
    spent = 0.0
    for half, order in enumerate(gate.ORDERS, 1):
        workers: dict[str, Worker] = {}
        try:
            for who in order:
                if who != "baseline":
                    workers[who] = Worker(options, side.backend)
                    gate.Gate._open(workers[who], side, case, "forward", 0)
            start = time.perf_counter()
            while len(same) < least * half / len(gate.ORDERS):
                same += [math.log(b / a) for a, b in gate.ping_pong(workers, "twin")]
                slowed += [math.log(b / a) for a, b in gate.ping_pong(workers, "twin", SLOWED)]
            spent += time.perf_counter() - start
        finally:
            for worker in workers.values():
                worker.end()
    return same, slowed, spent / len(same)


def overhead(options: Options, name: str, case: str, times: int = 400) -> float:
    """What the protocol adds to a sample: the median ratio of a sample to the same calls without it."""
    pin(1)
    _, named = implementations(options.backends[0], options)
    call = TimedCall(named[name], Case.parse(case))
    call.prepare()

    def bare() -> float:
        call.calls()
        start = protocol.now()
        for one in islice(cycle(call.calls.calls), call.inner):
            one()
        return (protocol.now() - start) / call.inner

    def sample() -> float:
        call.calls()
        return call.sample()

    ratios = [2 / (bare() / (own := sample()) + bare() / own) for _ in range(times)]
    return statistics.median(ratios) - 1.0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--implementation", default="sdpa")
    parser.add_argument("--case", default=CASE)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args(words)
    options = Options(backend=(asked.backend,))
    same, slowed, each = pairs(options, asked.implementation, asked.case, asked.pairs)
    count = max(2, int(asked.seconds / (ROUND * each)) * 2)
    print(*Curve(same, slowed, count).table(), sep="\n")
    print(f"overhead of a sample: {overhead(options, asked.implementation, asked.case):+.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
