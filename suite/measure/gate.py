"""The gate: test whether one implementation is slower than another, and estimate the test's error rates.

- Three workers hold the same case: the candidate, the baseline, and a twin of the candidate.
- Samples alternate in ping-pong pairs (A B B A), so that disturbances of the machine affect both sides.
- The verdict is the median of the paired log-ratios, with a 99 % interval from order statistics.
- The candidate is also paired with its twin, once unchanged (A/A) and once slowed by `INJECTED`. These
  pairs give the rates of false alarms and of misses.
- Each half of the pairs starts the workers in another order, because later workers are slightly faster.
"""

from __future__ import annotations

import io
import math
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.pool import Worker, WorkerFailure, interpreter
from attention_conformance.suite.run.options import Options

INJECTED = 0.05
"""The injected slowdown that the gate must find."""

MARGIN = 0.01
"""A slowdown is a regression only if its whole interval exceeds this margin."""

FALSE_ALARMS, MISSES = 0.05, 0.2
"""Greatest rates of false alarms and misses; beyond them the machine is too noisy."""

RESAMPLES = 2000
LEAST_ROUNDS = 8
"""Fewest rounds per half; a round gives two pairs of each kind."""

ORDERS = (("baseline", "candidate", "twin"), ("twin", "candidate", "baseline"))
"""The order in which workers start, for each half of the pairs."""

OK, REGRESSION, WRONG, NOTHING, NOISY = range(5)
"""Exit codes."""


class GateError(Exception):
    """The candidate or the baseline cannot be found; the message names what was expected."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison: the options of its worker, and the implementation."""

    options: Options
    backend: str
    implementation: str
    label: str
    python: str = ""


@dataclass
class GateOutcome:
    """The outcome of one workload in one direction. Ratios are candidate over baseline.

    - `alarms`: share of resampled A/A pairs that are called a regression
    - `missed`: share of resampled slowed pairs that are not called a regression
    - `broken`: a worker died or the harness failed
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
    """Returns the candidate, and the baseline that `against` names. Raises GateError.

    `against` is one of:

    - another implementation: "sdpa-math", "jax:jax-nn"
    - another environment: "venv:PATH"
    - the function's file in another commit, extracted into `folder`: "commit:REV"
    """
    candidate = Side(options, backend, implementation, implementation)
    kind, _, name = against.partition(":")
    if kind == "venv":
        try:
            label, python = f"{implementation} in {name}", interpreter(name)
        except ValueError as error:
            raise GateError(str(error)) from error
        return candidate, replace(candidate, label=label, python=python)
    if kind == "commit":
        functions = tuple(_function_at_commit(name, text, folder) for text in options.function)
        if not functions:
            raise GateError(
                "commit:REV compares versions of a --function=PATH.py:NAME: name a --function"
            )
        baseline, label = replace(options, function=functions), f"{implementation} as of {name}"
        return candidate, replace(candidate, options=baseline, label=label)
    if name:
        return candidate, Side(replace(options, function=()), kind, name, against)
    return candidate, Side(options, backend, against, against)


def _function_at_commit(revision: str, function: str, folder: Path) -> str:
    """Extract the commit `revision` into `folder`. Returns PATH.py:NAME of the function there. Raises
    GateError."""
    place, _, name = function.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not path.is_file():
        raise GateError(f"commit:REV needs --function=PATH.py:NAME, got {function!r}")

    def git(*words: str) -> bytes:
        command = ["git", "-C", str(path.parent or "."), *words]
        process = subprocess.run(command, capture_output=True)
        if process.returncode:
            raise GateError(f"git {' '.join(words)}: {process.stderr.decode().strip()}")
        return process.stdout

    root = Path(git("rev-parse", "--show-toplevel").decode().strip())
    # --end-of-options keeps a revision that begins with a dash from being read as an option.
    commit = git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    archive = git("-C", str(root), "archive", commit.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    extracted = folder / path.resolve().relative_to(root.resolve())
    if not extracted.is_file():
        raise GateError(f"{revision} has no {extracted.relative_to(folder)}")
    return f"{extracted}:{name}"


class Gate:
    """Compares candidate and baseline on cases, with workers started in both orders (`ORDERS`)."""

    def __init__(
        self,
        candidate: Side,
        baseline: Side,
        seconds: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`seconds` is the time for the pairs of one case; `say` receives progress messages."""
        self.say = say
        self.sides = {"baseline": baseline, "candidate": candidate, "twin": candidate}
        self.seconds = seconds

    def run(self, workload: str, case: str, direction: str, seed: int) -> GateOutcome:
        """Compare both sides on one case, and return the outcome. Wrong answers and failed workers give
        an outcome with their exit code. `direction`: "forward", "backward" or "forward+backward", the
        passes that are timed. `seed`: draws the inputs."""
        outcome = GateOutcome(workload, case, direction, OK)
        pairs: dict[str, list[float]] = {"verdict": [], "twin": [], "injected": []}
        times: dict[str, list[float]] = {"candidate": [], "baseline": []}
        role = ""
        try:
            for half, order in enumerate(ORDERS, 1):
                workers: dict[str, Worker] = {}
                where = f"  half {half} of {len(ORDERS)}"
                try:
                    self.say(f"{where}: starting {', '.join(order)}")
                    for role in order:
                        side = self.sides[role]
                        workers[role] = Worker(side.options, side.backend, side.python)
                    for role in order:
                        self._open(workers[role], self.sides[role], case, direction, seed)
                    role = "pair"
                    self.say(f"{where}: pairs for {self.seconds / len(ORDERS):.3g} s")
                    self._take_pairs(workers, pairs, times)
                    self.say(f"{where}: judging the timed answers")
                    for role in order:
                        workers[role].ask(do="judge", key="it")
                finally:
                    for worker in workers.values():
                        worker.end()
        except WorkerFailure as error:
            outcome.code = WRONG if error.status == "refused" else NOTHING
            outcome.broken = error.status == "error"
            label = self.sides[role].label if role in self.sides else role
            outcome.message = f"{role} ({label}): {error.kind or error.status}: {error.message}"
            return outcome
        return judge(outcome, pairs, times)

    @staticmethod
    def _open(worker: Worker, side: Side, case: str, direction: str, seed: int) -> None:
        """Let a worker prepare the call of a side. Raises WorkerFailure."""
        names = [offer.name for offer in worker.offers]
        if side.implementation not in names:
            valid = ", ".join(names)
            raise WorkerFailure(
                "usage", "", f"unknown implementation {side.implementation!r}; valid: {valid}"
            )
        worker.ask(
            do="open", key="it", implementation=side.implementation, case=case,
            direction=direction, seed=seed,
        )  # fmt: skip

    def _take_pairs(
        self,
        workers: dict[str, Worker],
        pairs: dict[str, list[float]],
        times: dict[str, list[float]],
    ) -> None:
        """Time pairs for half of `seconds`. Adds their log-ratios to `pairs`, by kind, and the seconds of
        calls to `times`."""

        def take(kind: str, other: str, slowdown: float = 0.0) -> None:
            for mine, theirs in ping_pong(workers, other, slowdown):
                # Twin over candidate: the slowed twin must be the slower side.
                ratio = mine / theirs if kind == "verdict" else theirs / mine
                pairs[kind].append(math.log(ratio))
                if kind == "verdict":
                    times["candidate"].append(mine)
                    times["baseline"].append(theirs)

        start, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or time.perf_counter() - start < self.seconds / len(ORDERS):
            take("verdict", "baseline")
            take("twin", "twin")
            take("injected", "twin", INJECTED)
            rounds += 1


def ping_pong(
    workers: Mapping[str, Worker], other: str, slow: float = 0.0
) -> list[tuple[float, float]]:
    """Takes samples alternately. Returns two pairs: the seconds of a call of the candidate, and of the
    worker `other`, whose calls are slowed by the fraction `slow`.

    Every sample follows a sample of the other process: a second sample in a row would be faster.
    """

    def sample(role: str, slow: float = 0.0) -> float:
        answer = workers[role].ask(do="sample", key="it", inner=None, slow=slow)
        return answer["seconds"]

    sample("candidate")
    other_first, candidate_first = sample(other, slow), sample("candidate")
    sample(other, slow)
    candidate_second, other_second = sample("candidate"), sample(other, slow)
    return [(candidate_first, other_first), (candidate_second, other_second)]


def judge(
    outcome: GateOutcome, pairs: dict[str, list[float]], times: dict[str, list[float]]
) -> GateOutcome:
    """Set an outcome's figures, exit code and message from log-ratios of pairs (by kind) and seconds (by
    side). Returns the outcome."""
    low, high = protocol.interval(pairs["verdict"])
    outcome.pairs = pairs
    outcome.ratio = math.exp(float(np.median(pairs["verdict"])))
    outcome.low, outcome.high = math.exp(low), math.exp(high)
    outcome.candidate, outcome.baseline = (
        float(np.median(times[n])) for n in ("candidate", "baseline")
    )
    outcome.twin_ratio = math.exp(float(np.median(pairs["twin"])))
    outcome.injected_ratio = math.exp(float(np.median(pairs["injected"])))
    outcome.alarms = regression_share(pairs["twin"])
    outcome.missed = 1.0 - regression_share(pairs["injected"])
    if outcome.alarms > FALSE_ALARMS or outcome.missed > MISSES:
        outcome.code = NOISY
        outcome.message = (
            f"too noisy to judge: {outcome.alarms:.0%} false alarms between twins (at most "
            f"{FALSE_ALARMS:.0%}), {outcome.missed:.0%} of injected {INJECTED:+.0%} missed (at most "
            f"{MISSES:.0%}); use more --seconds or a quieter machine"
        )
    elif is_regression(pairs["verdict"]):
        outcome.code, outcome.message = REGRESSION, f"slower by more than {MARGIN:.0%}"
    elif outcome.high < 1.0 - MARGIN:
        outcome.message = "faster"
    else:
        outcome.message = "no slower" if outcome.low < 1.0 + MARGIN else ""
    return outcome


def is_regression(log_ratios: Sequence[float]) -> bool:
    """True if the whole interval of the median exceeds `MARGIN`."""
    return protocol.interval(log_ratios)[0] > math.log1p(MARGIN)


def regression_share(log_ratios: Sequence[float]) -> float:
    """Returns the share, 0 to 1, of bootstrap resamples of the pairs for which `is_regression` is
    True."""
    return float((lower_limits(log_ratios, len(log_ratios)) > math.log1p(MARGIN)).mean())


def lower_limits(log_ratios: Sequence[float], count: int, draws: int = RESAMPLES) -> np.ndarray:
    """Returns the lower limits (draws,) of the intervals of bootstrap resamples (Efron 1979), each of
    `count` pairs; -inf if there are too few pairs for an interval. The seed is fixed, so that the limits
    are reproducible."""
    low, _ = protocol.interval(range(count))
    if math.isinf(low):
        return np.full(draws, low)
    resamples = np.random.default_rng(0).choice(np.asarray(log_ratios), (draws, count))
    return np.partition(resamples, int(low), axis=1)[:, int(low)]


def exit_code_of(outcomes: Sequence[GateOutcome]) -> int:
    """Returns the exit code for several outcomes: WRONG, REGRESSION or NOISY, in this order, if an
    outcome has the code; else NOTHING if an outcome is broken, or none is OK; else OK."""
    codes = {outcome.code for outcome in outcomes}
    for code in (WRONG, REGRESSION, NOISY):
        if code in codes:
            return code
    broken = any(outcome.broken for outcome in outcomes)
    return OK if OK in codes and not broken else NOTHING
