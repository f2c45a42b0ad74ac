"""One implementation against another: is it slower, and how far can that verdict be trusted?

Three workers hold the same case: the candidate, the baseline, and a twin of the candidate. Single samples
alternate in ping-pong pairs (A B B A), so that whatever the machine does falls on both; the verdict is
the median of the paired log-ratios with a 99 % interval from order statistics. The twin is compared like
the baseline, once as it is (A/A) and once slowed by `INJECTED`: from these pairs the run draws its own
rate of false alarms and of misses. Everything is done twice, the workers started in both orders, since
who starts later is a little faster.
"""

from __future__ import annotations

import io
import math
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from suite.measure import protocol
from suite.measure.pool import Worker, WorkerFailure, interpreter
from suite.run.options import Options

INJECTED = 0.05
"""The slowdown that must be found."""

MARGIN = 0.01
"""What a slowdown must exceed, with all of its interval, to be a regression."""

FALSE_ALARMS, MISSES = 0.05, 0.2
"""Rates beyond which the machine is too noisy to judge."""

RESAMPLED = 2000
LEAST_ROUNDS = 8
"""Rounds of a half at least: each gives two pairs of each kind."""

ORDERS = (("baseline", "candidate", "twin"), ("twin", "candidate", "baseline"))
"""The orders in which workers are started, one for each half of the pairs."""

OK, REGRESSION, WRONG, NOTHING, NOISY = range(5)
"""Exit codes."""


class GateError(Exception):
    """What is to be compared cannot be found; the message says what was expected."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison: what its worker is started with, and the implementation it is asked
    for."""

    options: Options
    backend: str
    implementation: str
    label: str
    python: str = ""


@dataclass
class GateOutcome:
    """What came of one workload in one direction; ratios are candidate over baseline.

    `alarms` is how often the A/A pairs of this run, drawn again, would have been called a regression;
    `missed` how often the injected slowdown would not have been. `broken`: a worker died, or the harness
    broke.
    """

    workload: str
    case: str
    direction: str
    code: int
    message: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    candidate: float | None = None
    baseline: float | None = None
    twin_ratio: float | None = None
    injected_ratio: float | None = None
    alarms: float | None = None
    missed: float | None = None
    pairs: dict[str, list[float]] = field(default_factory=dict)
    broken: bool = False


def sides(
    options: Options, backend: str, implementation: str, against: str, folder: Path
) -> tuple[Side, Side]:
    """The candidate, and the baseline that `against` names: another implementation ("sdpa-math",
    "jax:jax-nn"), another environment ("venv:PATH"), or a function's file as of another commit
    ("commit:REV"), which is laid out in `folder`.

    Raises GateError.
    """
    candidate = Side(options, backend, implementation, implementation)
    kind, _, rest = against.partition(":")
    if kind == "venv":
        try:
            label, python = f"{implementation} in {rest}", interpreter(rest)
        except ValueError as error:
            raise GateError(str(error)) from error
        return candidate, replace(candidate, label=label, python=python)
    if kind == "commit":
        functions = tuple(_as_of(rest, text, folder) for text in options.function)
        if not functions:
            raise GateError(
                "commit:REV compares a --function=PATH.py:NAME with itself, none is given"
            )
        label, before = f"{implementation} as of {rest}", replace(options, function=functions)
        return candidate, replace(candidate, options=before, label=label)
    if rest:
        return candidate, Side(replace(options, function=()), kind, rest, against)
    return candidate, Side(options, backend, against, against)


def _as_of(revision: str, function: str, folder: Path) -> str:
    place, _, name = function.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not path.is_file():
        raise GateError(f"commit:REV needs a file of functions, PATH.py:NAME, got {function!r}")

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", "-C", str(path.parent or "."), *words], capture_output=True)
        if done.returncode:
            raise GateError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
        return done.stdout

    top = Path(git("rev-parse", "--show-toplevel").decode().strip())
    # A revision that begins with a dash is none, and no option of `archive` either.
    commit = git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    archive = git("-C", str(top), "archive", commit.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    there = folder / path.resolve().relative_to(top.resolve())
    if not there.is_file():
        raise GateError(f"{revision} has no {there.relative_to(folder)}")
    return f"{there}:{name}"


class Gate:
    """The pairs of one case, taken in both orders of starting."""

    def __init__(
        self,
        candidate: Side,
        baseline: Side,
        seconds: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`seconds` are those of the pairs of a case; `say` is told what is done next."""
        self.say = say
        self.sides = {"baseline": baseline, "candidate": candidate, "twin": candidate}
        self.seconds = seconds

    def run(self, workload: str, case: str, direction: str, seed: int) -> GateOutcome:
        """The outcome of one case. Wrong answers are an outcome, too."""
        outcome = GateOutcome(workload, case, direction, OK)
        pairs: dict[str, list[float]] = {"verdict": [], "twin": [], "injected": []}
        times: dict[str, list[float]] = {"candidate": [], "baseline": []}
        who = ""
        try:
            for half, order in enumerate(ORDERS, 1):
                workers: dict[str, Worker] = {}
                where = f"  half {half} of {len(ORDERS)}"
                try:
                    self.say(f"{where}: starting {', '.join(order)}")
                    for who in order:
                        side = self.sides[who]
                        workers[who] = Worker(side.options, side.backend, side.python)
                    for who in order:
                        self._open(workers[who], self.sides[who], case, direction, seed)
                    who = "pair"
                    self.say(f"{where}: pairs for {self.seconds / len(ORDERS):.3g} s")
                    self._pairs(workers, pairs, times)
                    self.say(f"{where}: judging what was timed")
                    for who in order:
                        workers[who].ask(do="judge", key="it")
                finally:
                    for worker in workers.values():
                        worker.end()
        except WorkerFailure as error:
            outcome.code = WRONG if error.status == "refused" else NOTHING
            outcome.broken = error.status == "error"
            label = self.sides[who].label if who in self.sides else who
            outcome.message = f"{who} ({label}): {error.kind or error.status}: {error.message}"
            return outcome
        return judge(outcome, pairs, times)

    @staticmethod
    def _open(worker: Worker, side: Side, case: str, direction: str, seed: int) -> None:
        names = [offer.name for offer in worker.offers]
        if side.implementation not in names:
            valid = ", ".join(names)
            raise WorkerFailure("usage", "", f"no {side.implementation!r} there; valid: {valid}")
        worker.ask(
            do="open", key="it", implementation=side.implementation, case=case,
            direction=direction, seed=seed,
        )  # fmt: skip

    def _pairs(
        self,
        workers: dict[str, Worker],
        pairs: dict[str, list[float]],
        times: dict[str, list[float]],
    ) -> None:
        def sample(who: str, slow: float = 0.0) -> float:
            seconds = workers[who].ask(do="sample", key="it", inner=None, slow=slow, device=False)
            return seconds["seconds"]

        def ping_pong(kind: str, other: str, slow: float) -> None:
            # Every sample follows one of another process: a second one in a row would be faster.
            sample("candidate")
            first, mine = sample(other, slow), sample("candidate")
            sample(other, slow)
            again, theirs = sample("candidate"), sample(other, slow)
            for own, its in ((mine, first), (again, theirs)):
                # Twins are held against the candidate: the slowed one must come out slower.
                ratio = own / its if kind == "verdict" else its / own
                pairs[kind].append(math.log(ratio))
                if kind == "verdict":
                    times["candidate"].append(own)
                    times["baseline"].append(its)

        start, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or time.perf_counter() - start < self.seconds / len(ORDERS):
            ping_pong("verdict", "baseline", 0.0)
            ping_pong("twin", "twin", 0.0)
            ping_pong("injected", "twin", INJECTED)
            rounds += 1


def judge(
    outcome: GateOutcome, pairs: dict[str, list[float]], times: dict[str, list[float]]
) -> GateOutcome:
    """Fill in the figures of an outcome and its code, from paired log-ratios and times."""
    low, high = protocol.interval(pairs["verdict"])
    outcome.pairs = pairs
    outcome.ratio = math.exp(float(np.median(pairs["verdict"])))
    outcome.low, outcome.high = math.exp(low), math.exp(high)
    outcome.candidate, outcome.baseline = (
        float(np.median(times[n])) for n in ("candidate", "baseline")
    )
    outcome.twin_ratio = math.exp(float(np.median(pairs["twin"])))
    outcome.injected_ratio = math.exp(float(np.median(pairs["injected"])))
    outcome.alarms = regressions(pairs["twin"])
    outcome.missed = 1.0 - regressions(pairs["injected"])
    if outcome.alarms > FALSE_ALARMS or outcome.missed > MISSES:
        outcome.code = NOISY
        outcome.message = (
            f"too noisy to judge: {outcome.alarms:.0%} false alarms between twins (at most "
            f"{FALSE_ALARMS:.0%}), {outcome.missed:.0%} of injected {INJECTED:+.0%} missed (at most "
            f"{MISSES:.0%}); give it more --seconds or a quieter machine"
        )
    elif is_regression(pairs["verdict"]):
        outcome.code, outcome.message = REGRESSION, f"slower by more than {MARGIN:.0%}"
    elif outcome.high < 1.0 - MARGIN:
        outcome.message = "faster"
    else:
        outcome.message = "no slower" if outcome.low < 1.0 + MARGIN else ""
    return outcome


def is_regression(logs: Sequence[float]) -> bool:
    """Whether the whole interval of the median lies beyond the margin."""
    return protocol.interval(logs)[0] > math.log1p(MARGIN)


def regressions(logs: Sequence[float], seed: int = 0) -> float:
    """The share of as many pairs, drawn again with replacement, that would be called a regression.

    The bootstrap (Efron 1979); seeded, so that the same pairs give the same rate.
    """
    drawn = np.random.default_rng(seed).choice(np.asarray(logs), (RESAMPLED, len(logs)))
    drawn.sort(axis=1)
    ranks = np.arange(len(logs), dtype=float)
    low, _ = protocol.interval(list(ranks))
    if math.isinf(low):
        return 0.0
    return float((drawn[:, int(low)] > math.log1p(MARGIN)).mean())


def worst(outcomes: Sequence[GateOutcome]) -> int:
    """The exit code of several outcomes: a wrong answer, else a regression, else noise, else nothing
    measured, of one because something broke or of all."""
    codes = {outcome.code for outcome in outcomes}
    for code in (WRONG, REGRESSION, NOISY):
        if code in codes:
            return code
    broken = any(outcome.broken for outcome in outcomes)
    return OK if OK in codes and not broken else NOTHING
