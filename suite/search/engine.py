"""The search: draw cases, judge them with the checks, shrink failures, and tell them.

A batch of cases is one call of `hypothesis.find`, whose seed depends on the search's seed and the batch's
number: equal searches draw equal cases in equal order. A case that fails in a new way ends the batch:
Hypothesis shrinks it to a minimal case with the same failure.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
from hypothesis import Phase
from hypothesis.errors import Flaky, NoSuchExample

from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records import machine, searches
from attention_conformance.suite.records.files import write_new
from attention_conformance.suite.records.searches import Cause, FoundRecord, SearchHeader
from attention_conformance.suite.run import jax_caches
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.process import Board
from attention_conformance.suite.run.script import script
from attention_conformance.suite.run.smaller import shrunk, well_posed
from attention_conformance.suite.search import strategies
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, of_operator
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

BATCH = hypothesis.settings(
    max_examples=200, database=None, deadline=None, derandomize=False, print_blob=False,
    phases=(Phase.generate, Phase.shrink),
)  # fmt: skip
"""The settings of a batch. Hypothesis begins a batch with small cases and varies them."""

SHRINK_SECONDS = 60.0
"""Greatest time for shrinking a failure that Hypothesis does not shrink."""

POOL = 4
"""Number of sizes of an operator if every new size is compiled."""


@dataclass
class Failure:
    """A failure: the drawn case, and the smallest cell that fails in the same way so far."""

    drawn: Any
    cell: Cell
    verdict: Verdict
    times: int = 1
    repeats: bool = True
    script: str = ""

    @property
    def cause(self) -> Cause:
        """What equal failures share: implementation, check, kind, dtype (of wrong values and crashes),
        and the message without its numbers."""
        cell, verdict = self.cell, self.verdict
        text, *more = re.split(r"element \(", verdict.message, maxsplit=1)
        said = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text) + "element" * bool(more)
        of_dtype = verdict.kind in ("value", "non-finite", "crash")
        dtype_name = cell.case.dtype.name if of_dtype else ""
        return str(cell.implementation), cell.check.name, verdict.kind, dtype_name, said

    @property
    def record(self) -> FoundRecord:
        """The failure as a record."""
        return FoundRecord(
            *self.cause, self.verdict.status, self.cell.case.id, self.drawn.id,
            printable(self.verdict.message), self.times, self.repeats, self.script,
        )  # fmt: skip


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

    @property
    def digest(self) -> str:
        """A digest of the ids of the cases, in order."""
        return hashlib.sha256("\n".join(self.seen).encode()).hexdigest()[:12]

    def run(self) -> None:
        """Search until the limit of time or examples is reached, or no new case is drawn."""
        operators = list(dict.fromkeys(one.operator for one in self.plan.implementations))
        dtypes = [dtype(name) for name in self.options.dtype] or strategies.EVERY_DTYPE
        drawn = strategies.cases(operators, dtypes, {o.name: self._pool(o) for o in operators})
        for number in itertools.count():
            before, self._new = len(self.seen), []
            random = Random(f"{self.options.seed}/{number}")
            try:
                hypothesis.find(drawn, self._shows, settings=BATCH, random=random)
            except NoSuchExample:
                pass
            except Flaky:
                self._new[0].repeats = False
            for failure in self._new:
                self._report(failure, shrink=failure is not self._new[0])
            if self._over() or (number and len(self.seen) == before):
                return

    def judge_these(self, cases: Iterable[Case]) -> None:
        """Judge these cases, and make those that fail smaller."""
        for failure in itertools.chain(*map(self._judge_all, cases)):
            self._report(failure, shrink=True)

    def _pool(self, operator: Operator) -> list[Case]:
        """A few cases of the catalogue if every size is compiled: their sizes are drawn. Else []."""
        one = (i for i in self.plan.implementations)
        if not any(i.mode == "compiled" or i.backend.compilers.compiles_shapes for i in one):
            return []
        sizes = {(case.sizes, case.widths): case for case in of_operator(operator, cases, "smoke")}
        return Random(self.options.seed).sample([*sizes.values()], min(POOL, len(sizes)))

    def _shows(self, case: Case) -> bool:
        """Whether a case fails: in a new way, or later in the way that is being shrunk."""
        if self._new:
            return self._fails(self._new[0], case)
        if not self._over() and case.id not in self.seen:
            self._new = self._judge_all(case)
        return bool(self._new)

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
                new += self._count(nearest, Cell(check, nearest, one, self.plan.options.seed))
        return new

    def _count(self, case: Case, cell: Cell) -> list[Failure]:
        """Judge and count a cell; returns its failure if it is new."""
        failure = Failure(case, cell, self.judge(cell))
        like = self._alike(failure)
        self.statuses["like known" if like else failure.verdict.status] += 1
        self.alike.update([like] if like else [])
        if like or failure.verdict.status not in BROKEN:
            return []
        if known := self.failures.get(failure.cause):
            known.times += 1
            return []
        self.failures[failure.cause] = failure
        return [failure]

    def _fails(self, failure: Failure, case: Case) -> bool:
        """Whether a case has a failure, which then keeps the case."""
        one = failure.cell.implementation
        if case.operator is not one.operator:
            return False
        nearest = one.nearest_supported(case) or case
        cell = Cell(failure.cell.check, nearest, one, failure.cell.seed)
        now = replace(failure, cell=cell, verdict=self.judge(cell))
        if now.verdict.status not in BROKEN or now.cause != failure.cause:
            return False
        failure.cell, failure.verdict = cell, now.verdict
        return True

    def _report(self, failure: Failure, shrink: bool) -> None:
        """Pass a failure to `found`, after making a case smaller that Hypothesis does not shrink."""
        late = time.monotonic() + SHRINK_SECONDS
        if shrink:
            failure.repeats = self._fails(failure, failure.drawn)
            shrunk(failure.drawn, lambda x: time.monotonic() < late and self._fails(failure, x))
        self.found(failure)

    def judge(self, cell: Cell) -> Verdict:
        """The verdict of a cell with the manifest. A case that passes against an entry passes, because
        entries describe other sizes."""
        self.judged += 1
        jax_caches.forget(self.judged)
        self.judging(cell)
        verdict = judge(cell, self.plan.policy(cell))
        return verdict if verdict.kind != "unexpected-pass" else Verdict("pass")

    def _alike(self, failure: Failure) -> str:
        """The source and cause of a manifest entry with this failure in another case of the operator and
        dtype, or "". Entries name sizes of the catalogue; drawn cases have any size."""
        cell, verdict = failure.cell, failure.verdict
        if verdict.status != "fail" or cell.implementation in self.plan.functions:
            return ""
        for entry in self.plan.of(cell.implementation).manifest.entries:
            if entry.asks(cell.implementation.name, cell.check.name) and entry.expects(verdict):
                for operator, *parts in (pattern.split("/") for pattern in entry.case):
                    dtypes = {*parts} & {*DTYPES} <= {cell.case.dtype.name}
                    if dtypes and fnmatchcase(cell.case.operator.name, operator):
                        return f"{entry.source}: {entry.cause}"
        return ""


def search(options: SearchOptions, board: Board | None = None) -> int:
    """Search in this process, and write the cell being judged to `board`; returns the exit code."""
    try:
        options.check()
        cases = [Case.parse(text) for text in options.case]
        limit_threads(options.threads)
        # options.seed draws the cases; their values are drawn with the seed of `pytest suite`.
        plan = Plan.make(replace(options, seed=Options.seed))
    except (UsageError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2

    def judging(cell: Cell) -> None:
        if board is not None:
            died = Verdict("crash", "crash", "the process that judged this cell died")
            record = Failure(cell.case, cell, died, repeats=False).record
            text = f"{cell.check.name} of {cell.implementation}: {cell.case.id}"
            board.say(cell=text, judged=engine.judged - 1, judging=asdict(record))

    engine = Search(plan, options, lambda failure: tell(engine, failure), judging)
    unwatch = leaks.watch()
    try:
        engine.judge_these(cases) if cases else engine.run()
    finally:
        unwatch()
    print(summary(engine))
    if options.results:
        counts = {"examples": len(engine.seen), "statuses": dict(engine.statuses)}
        counts |= {"seconds": round(engine.seconds, 3), "digest": engine.digest}
        found = [failure.record for failure in engine.failures.values()]
        write(options, found, versions=plan.versions, **counts)
    passed = engine.statuses["pass"] + engine.statuses["known"]
    return 1 if engine.failures else 0 if passed else 2


def tell(search: Search, failure: Failure) -> None:
    """Print a failure with its script, which --script saves."""
    cell, verdict = failure.cell, failure.verdict
    options = replace(search.plan.options, mode=cell.implementation.mode)
    words = [*options.command_line(), f"--case={cell.case.id}"]
    if cell.implementation not in search.plan.functions:
        words.insert(-1, f"--implementation={cell.implementation.name}")
    once = "" if failure.repeats else "\n  passes when it is judged again: it is not deterministic"
    print(
        f"\n{verdict.status}: {verdict.kind}, {cell.check.name} of {cell.implementation}\n"
        f"  case    {cell.case.id}\n  drawn   shrunk from {failure.drawn.id}\n  {verdict.message}\n"
        f"  again   attention-conformance search {shlex.join(words)}\n"
        f"          attention-conformance describe {cell.case.id}{once}"
    )
    try:
        failure.script = script(cell, verdict)
        print(f"  as a script:\n\n{failure.script.rstrip()}", flush=True)
    except Exception as error:  # NoScript says why there is none
        print(f"  script  none: {error}", flush=True)
    path = Path(search.options.script)
    if failure.script and search.options.script and not path.exists():
        write_new(path, failure.script)
        print(f"  saved   {path}", flush=True)


def write(options: SearchOptions, found: Sequence[FoundRecord], **counts: Any) -> None:
    """Write the records of a search. Without `counts` its process died."""
    asked = {n: v for n, v in asdict(options).items() if n not in ("script", "case", "results")}
    file = searches.writer(
        options.results, SearchHeader(**machine.origin(), options=asked, **counts)
    )
    for record in found:
        file.write(record)
    file.close()


def summary(search: Search) -> str:
    """The text of a search that ended: examples, cells by status, failures."""
    names = ", ".join(map(str, search.plan.implementations))
    began = f"seed {search.options.seed}: {len(search.seen)} examples in {search.seconds:.0f} s"
    order = ("pass", "unsupported", "known", "like known", *BROKEN)
    lines = [
        f"\n{began}, of {names}",
        "  cells     " + ", ".join(f"{search.statuses[name]} {name}" for name in order),
        f"  digest    {search.digest} of the ids in order",
    ]
    lines += [f"  like known, {times} times: {entry}" for entry, times in search.alike.items()]
    lines += [
        f"  found {one.times} times: {one.verdict.kind}, {one.cell.check.name} of "
        f"{one.cell.implementation}: {one.cell.case.id}"
        for one in search.failures.values()
    ]
    return "\n".join(lines if search.failures else [*lines, "  nothing found"])
