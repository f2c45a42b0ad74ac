"""The search: draw cases, judge them with the checks, and shrink failures.

A batch of cases is one run of Hypothesis, whose seed depends on the search's seed and the batch's number:
equal searches draw equal cases in equal order. A case that fails in a new way ends the batch: Hypothesis
shrinks it to a minimal case with the same failure.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records.searches import Cause
from attention_conformance.suite.run import jax_caches
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.smaller import shrunk, well_posed
from attention_conformance.suite.search import strategies
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, of_operator
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

BATCH = 200
"""Cases of a batch. Hypothesis begins a batch with small cases and varies them."""

SHRINK_SECONDS = 60.0
"""Greatest time for shrinking a failure that Hypothesis does not shrink."""

POOL = 4
"""Number of sizes of an operator if every new size is compiled."""


@dataclass
class Failure:
    """A failure: the drawn case, and the smallest cell that fails in the same way so far."""

    cause: Cause
    drawn: Case
    cell: Cell
    verdict: Verdict
    times: int = 1
    repeats: bool = True


class StillFails(Exception):
    """A case has the failure that is being shrunk."""


class Search:
    """Draws cases, and judges each with the implementations of its operator in a plan.

    `found` is called with every new failure after shrinking, `judging` with every cell before judging.
    """

    def __init__(
        self,
        plan: Plan,
        options: SearchOptions,
        found: Callable[[Failure], object] = lambda failure: None,
        judging: Callable[[Cell], object] = lambda cell: None,
    ) -> None:
        self.plan, self.options, self.found, self.judging = plan, options, found, judging
        self.checks = [all_checks()[name] for name in SEARCHED[: 2 if options.gradients else 1]]
        self.seen: dict[str, Case] = {}
        self.judged = 0
        self.statuses, self.alike = Counter[str](), Counter[str]()
        self.failures: dict[Cause, Failure] = {}
        self._new: list[Failure] = []
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the search has run."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Search until the limit of time or examples is reached, or no new case is drawn."""
        operators = list(dict.fromkeys(one.operator for one in self.plan.implementations))
        dtypes = [dtype(name) for name in self.options.dtype] or strategies.EVERY_DTYPE
        drawn = strategies.cases(operators, dtypes, {o.name: self._pool(o) for o in operators})
        for number in itertools.count():
            before, self._new = len(self.seen), []
            self._batch(drawn, f"{self.options.seed}/{number}")
            for failure in self._new:
                self._report(failure, shrink=failure is not self._new[0])
            if self._over() or (number and len(self.seen) == before):
                return

    def judge_these(self, cases: Sequence[Case]) -> None:
        """Judge these cases, and make those that fail smaller."""
        for failure in itertools.chain(*map(self._judge_all, cases)):
            self._report(failure, shrink=True)

    def _pool(self, operator: Operator) -> list[Case]:
        """Cases of the catalogue whose sizes are drawn; [] if any size is."""
        compiling = any(
            one.mode == "compiled" or one.backend.compilers.compiles_shapes
            for one in self.plan.implementations
        )
        count = POOL * compiling if self.options.shapes is None else self.options.shapes
        sizes = {(case.sizes, case.widths): case for case in of_operator(operator, cases, "smoke")}
        choice = random.Random(self.options.seed)
        return choice.sample([*sizes.values()], min(count, len(sizes)))

    def _batch(self, drawn: SearchStrategy[Case], seed: str) -> None:
        """Draw cases until one fails in a new way, and shrink that failure."""

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=BATCH, database=None, deadline=None, derandomize=False,
            phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False, print_blob=False,
        )  # fmt: skip
        @hypothesis.given(drawn)
        def batch(case: Case) -> None:
            if self._new:
                fails = self._fails(self._new[0], case)
            else:
                new = not self._over() and case.id not in self.seen
                self._new = self._judge_all(case) if new else []
                fails = bool(self._new)
            if fails:
                raise StillFails

        try:
            batch()
        except StillFails:
            return
        except hypothesis.errors.Flaky:
            self._new[0].repeats = False

    def _over(self) -> bool:
        """Whether a limit is reached."""
        minutes, examples = self.options.minutes, self.options.examples
        limit = 1.0 if minutes is None and examples is None else minutes
        late = limit is not None and self.seconds > 60 * limit
        return late or (examples is not None and len(self.seen) >= examples)

    def _judge_all(self, case: Case) -> list[Failure]:
        """Judge a case with every check and implementation; returns the new failures."""
        self.seen[case.id] = case
        new = []
        for check, one in itertools.product(self.checks, self.plan.implementations):
            if one.operator is case.operator and well_posed(case, "gradient" in check.needs):
                # A case beyond declared limits is replaced by the nearest supported case.
                nearest = one.nearest_supported(case) or case
                cell = Cell(check, nearest, one, self.plan.options.seed)
                new += self._count(cell, self.judge(cell))
        return new

    def _count(self, cell: Cell, verdict: Verdict) -> list[Failure]:
        """Count a verdict; returns its failure if it is new."""
        like = self._alike(cell, verdict) if verdict.status == "fail" else ""
        self.statuses["like known" if like else verdict.status] += 1
        self.alike.update([like] if like else [])
        if like or verdict.status not in BROKEN:
            return []
        cause = cause_of(cell, verdict)
        if known := self.failures.get(cause):
            known.times += 1
            return []
        assert isinstance(cell.case, Case)
        self.failures[cause] = Failure(cause, cell.case, cell, verdict)
        return [self.failures[cause]]

    def _fails(self, failure: Failure, case: Case) -> bool:
        """Whether a case has a failure, which then keeps the case."""
        one = failure.cell.implementation
        if case.operator is not one.operator:
            return False
        nearest = one.nearest_supported(case) or case
        cell = Cell(failure.cell.check, nearest, one, failure.cell.seed)
        verdict = self.judge(cell)
        fails = verdict.status in BROKEN and cause_of(cell, verdict) == failure.cause
        if fails:
            failure.cell, failure.verdict = cell, verdict
        return fails

    def _report(self, failure: Failure, shrink: bool) -> None:
        """Pass a failure to `found`, after making a case smaller that Hypothesis does not shrink."""
        until = time.monotonic() + SHRINK_SECONDS
        if shrink:
            failure.repeats = self._fails(failure, failure.drawn)
            shrunk(
                failure.drawn,
                lambda case: time.monotonic() < until and self._fails(failure, case),
            )
        self.found(failure)

    def judge(self, cell: Cell) -> Verdict:
        """The verdict of a cell with the manifest. A case that passes against an entry passes, because
        entries describe other sizes."""
        self.judged += 1
        jax_caches.forget(self.judged)
        self.judging(cell)
        verdict = judge(cell, self.plan.policy(cell))
        return verdict if verdict.kind != "unexpected-pass" else Verdict("pass")

    def _alike(self, cell: Cell, verdict: Verdict) -> str:
        """The source and cause of a manifest entry with this failure in another case of the operator and
        dtype, or "". Entries name sizes of the catalogue; drawn cases have any size."""
        if cell.implementation in self.plan.functions:
            return ""
        for entry in self.plan.of(cell.implementation).manifest.entries:
            of_check = {"*", cell.check.name} & {*entry.check} and entry.kind == verdict.kind
            of_cell = of_check and cell.implementation.name in entry.implementation
            if of_cell and re.search(entry.message, verdict.message):
                for operator, *parts in (pattern.split("/") for pattern in entry.case):
                    dtypes = {*parts} & {*DTYPES} <= {cell.case.dtype.name}
                    if dtypes and fnmatchcase(cell.case.operator.name, operator):
                        return f"{entry.source}: {entry.cause}"
        return ""


def cause_of(cell: Cell, verdict: Verdict) -> Cause:
    """What equal failures share: implementation, check, kind, dtype (of wrong values), and the message
    without its numbers."""
    text, *more = re.split(r"element \(", verdict.message, maxsplit=1)
    said = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text) + "element" * bool(more)
    of_dtype = cell.case.dtype.name if verdict.kind in ("value", "non-finite") else ""
    return str(cell.implementation), cell.check.name, verdict.kind, of_dtype, said
