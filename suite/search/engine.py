"""The search: draw cases, judge them with the checks, and shrink failures.

A batch of cases is one Hypothesis run. Its seed depends only on the search's seed and the batch's number:
equal searches draw equal cases in equal order. A case that fails in a new way ends the batch: Hypothesis
shrinks it to a minimal case with the same failure, and the next batch begins.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run import jax_caches
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.smaller import shrunk
from attention_conformance.suite.search import strategies
from attention_conformance.suite.search.failures import (
    Failure,
    Key,
    KnownAlike,
    Summary,
    alike,
    failure_key,
    values_of,
)
from attention_conformance.suite.search.strategies import Shape
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import dtype
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

BATCH = 200
"""Cases per batch. Hypothesis begins a batch with small cases and varies them."""

SHRINK_SECONDS = 60.0
"""Greatest time for shrinking a failure."""

POOL = 4
"""Number of sizes per operator if a backend compiles every new shape."""

POOL_PAIRS = 4096

T = TypeVar("T")


class Search:
    """Draws cases and judges each with all implementations of its operator in a plan.

    - `minutes`, `examples`: the first limit reached ends the search; without both, one minute
    - `found`: called with every failure once, after shrinking
    - `drawn`, `judging`: called with every case and every cell before judging
    - `pool`: number of sizes to draw from; 0 draws any. Default: `POOL` if new shapes are compiled
    """

    def __init__(
        self,
        plan: Plan,
        seed: int = 0,
        minutes: float | None = None,
        examples: int | None = None,
        gradients: bool = True,
        pool: int | None = None,
        found: Callable[[Failure], None] = lambda failure: None,
        drawn: Callable[[Case], None] = lambda case: None,
        judging: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        if minutes is None and examples is None:
            minutes = 1.0
        self.plan, self.limit = plan, examples
        self.found, self.drawn, self.judging = found, drawn, judging
        self.implementations = plan.implementations
        self.operators = list(dict.fromkeys(i.operator for i in self.implementations))
        self.checks = [all_checks()[name] for name in (SEARCHED if gradients else SEARCHED[:1])]
        self.summary = Summary(seed)
        self.seconds = None if minutes is None else 60.0 * minutes
        self.dtypes = [dtype(n) for n in plan.options.dtype] or list(strategies.EVERY_DTYPE)
        compiling = any(
            i.backend.compilers.compiles_shapes or i.mode == "compiled"
            for i in self.implementations
        )
        count = pool if pool is not None else POOL if compiling else 0
        self.pools = {o.name: shape_pool(o, seed, count) for o in self.operators if count}
        self._keys: dict[Key, Failure] = {}
        self._judged: set[str] = set()
        self._hash = hashlib.sha256()
        self.judged = 0

    def run(self) -> Summary:
        """Search until the limit of time or examples is reached."""
        began = time.monotonic()
        self._deadline = None if self.seconds is None else began + self.seconds
        cases = strategies.cases(self.operators, self.dtypes, self.pools)
        number = 0
        while not self._over():
            before = self.summary.examples
            _Batch(self, cases, number).run()
            number += 1
            if self.summary.examples == before and number > 1 and not self._over():
                break  # every case was drawn before
        for failure in self._keys.values():
            if not failure.shrunk:
                self.found(failure)
        return self._summed_up(began)

    def judge_these(self, cases: Iterable[Case]) -> Summary:
        """Judge these cases with every implementation, and shrink those that fail."""
        began = time.monotonic()
        for case in cases:
            self._count(case)
            for cell in self.cells(case):
                failure = self._record(cell, self.judge(cell))
                if failure is not None:
                    self._shrink(failure)
        return self._summed_up(began)

    def _shrink(self, failure: Failure) -> None:
        """Find a smaller case that fails in the same way, in at most `SHRINK_SECONDS`."""
        until = time.monotonic() + SHRINK_SECONDS

        def fails(case: Case) -> bool:
            verdict = self.fails(failure, case) if time.monotonic() < until else None
            if verdict is not None:
                failure.case, failure.verdict = case, verdict
            return verdict is not None

        shrunk(failure.case, fails)
        self.report(failure)

    def report(self, failure: Failure) -> None:
        """Judge a shrunk failure again, and pass it to `found`."""
        failure.shrunk = True
        failure.repeats = self.fails(failure, failure.case) is not None
        self.found(failure)

    def fails(self, failure: Failure, case: Case) -> Verdict | None:
        """The verdict on `case` if the case has the same failure; else None."""
        if failure.implementation.operator is not case.operator:
            return None
        cell = Cell(failure.check, case, failure.implementation, self.plan.options.seed)
        verdict = self.judge(cell)
        self.summary.shrinking += 1
        failed = verdict.status in BROKEN
        return verdict if failed and failure_key(cell, verdict) == failure.key else None

    def cells(self, case: Case) -> Iterator[Cell]:
        """The cells of a case, by check and by implementation of its operator."""
        for check in self.checks:
            if not strategies.well_posed(case, "gradient" in check.needs):
                continue
            for implementation in self.implementations:
                if implementation.operator is case.operator:
                    # A case beyond declared limits is replaced by the nearest supported case.
                    nearest = implementation.nearest_supported(case) or case
                    yield Cell(check, nearest, implementation, self.plan.options.seed)

    def judge(self, cell: Cell) -> Verdict:
        """The verdict of a cell with the manifest. A pass stays a pass even if the manifest expects a
        failure, because its entries describe other sizes."""
        self.judged += 1
        jax_caches.forget(self.judged)
        self.judging(cell)
        verdict = judge(cell, self.plan.policy(cell))
        if verdict.kind == "unexpected-pass":
            return Verdict("pass", measured=verdict.measured, seconds=verdict.seconds)
        return verdict

    def _summed_up(self, began: float) -> Summary:
        self.summary.failures = list(self._keys.values())
        self.summary.seconds = time.monotonic() - began
        self.summary.digest = self._hash.hexdigest()[:12]
        return self.summary

    def _over(self) -> bool:
        if self.limit is not None and self.summary.examples >= self.limit:
            return True
        return self._deadline is not None and time.monotonic() > self._deadline

    def _record(self, cell: Cell, verdict: Verdict) -> Failure | None:
        """Count the verdict; returns the failure if it is new or not shrunk yet, else None."""
        status, case = verdict.status, cell.case
        assert isinstance(case, Case)
        if status == "fail" and (like := self._alike(cell, verdict)) is not None:
            source, cause = like
            status = "like known"
            if source in self.summary.alike:
                self.summary.alike[source].times += 1
            else:
                name = str(cell.implementation)
                self.summary.alike[source] = KnownAlike(source, cause, case, name)
        self.summary.statuses[status] += 1
        if status not in BROKEN:
            return None
        key = failure_key(cell, verdict)
        if key in self._keys:
            failure = self._keys[key]
            failure.times += 1
            if failure.shrunk:
                return None
            failure.case, failure.verdict = case, verdict
            return failure
        self._keys[key] = Failure(
            key, cell.implementation, cell.check, case, case, verdict, self.summary.examples
        )
        return self._keys[key]

    def _alike(self, cell: Cell, verdict: Verdict) -> tuple[str, str] | None:
        if cell.implementation in self.plan.functions:
            return None
        return alike(self.plan.of(cell.implementation).manifest, cell, verdict)

    def _count(self, case: Case) -> None:
        self.summary.examples += 1
        self._judged.add(case.id)
        self._hash.update(case.id.encode() + b"\n")
        for axis, value in values_of(case):
            self.summary.axes.setdefault(axis, Counter())[value] += 1
        self.drawn(case)


class _StillFails(Exception):
    """The case has the failure that is being shrunk."""


class _Batch:
    """One Hypothesis run: draws until a case fails in a new way, then shrinks that failure."""

    def __init__(self, search: Search, cases: SearchStrategy[Case], number: int) -> None:
        self.search, self.cases = search, cases
        self.seed = seed_of(f"{search.summary.seed}/{number}")
        self.failure: Failure | None = None
        self.verdicts: dict[str, Verdict | None] = {}
        self.until = 0.0

    def run(self) -> None:
        run_batch(self.cases, self.seed, self._one, BATCH)
        if self.failure is None:
            return
        case = self.failure.case
        self.search.report(self.failure)
        for other in self.search._keys.values():
            # Other implementations that failed the drawn case often fail the minimal case, too.
            if not other.shrunk and (verdict := self.search.fails(other, case)) is not None:
                other.case, other.verdict = case, verdict
                self.search.report(other)

    def _one(self, case: Case) -> None:
        fails = self._look(case) if self.failure is None else self._shrink(case)
        if fails:
            # Raise at a single line: Hypothesis treats another line as another failure.
            raise _StillFails

    def _look(self, case: Case) -> bool:
        search = self.search
        if search._over() or case.id in search._judged:
            return False
        search._count(case)
        for cell in search.cells(case):
            verdict = search.judge(cell)
            failure = search._record(cell, verdict)
            if failure is not None and self.failure is None:
                self.failure = failure
                self.until = time.monotonic() + SHRINK_SECONDS
                self.verdicts[case.id] = verdict
        return self.failure is not None

    def _shrink(self, case: Case) -> bool:
        failure = self.failure
        assert failure is not None
        if case.id not in self.verdicts:
            self.verdicts[case.id] = None
            if time.monotonic() > self.until:
                return False
            self.verdicts[case.id] = self.search.fails(failure, case)
        known = self.verdicts[case.id]
        if known is not None:
            failure.case, failure.verdict = case, known
        return known is not None


def run_batch(
    drawn: SearchStrategy[T], seed: int, function: Callable[[T], None], count: int
) -> None:
    """Call `function` with `count` draws, equal for equal seeds and outcomes.

    If `function` raises _StillFails, Hypothesis shrinks the draw until no simpler draw raises.
    """

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @hypothesis.given(drawn)
    def batch(value: T) -> None:
        function(value)

    try:
        batch()
    except _StillFails:
        return


def seed_of(name: str) -> int:
    """A seed for Hypothesis, determined by the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def shape_pool(operator: Operator, seed: int, count: int) -> list[Shape]:
    """`count` different shapes of an operator, determined by the seed."""
    shapes: dict[Shape, None] = {}

    def take(shape: Shape) -> None:
        shapes[shape] = None

    drawn = strategies.shapes(operator, POOL_PAIRS)
    run_batch(drawn, seed_of(f"pool/{operator}/{seed}"), take, 4 * count)
    every = list(shapes)
    step = max(1, len(every) // count)
    return every[::step][:count]
