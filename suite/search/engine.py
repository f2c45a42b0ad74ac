"""The search: draw cases, judge them with the checks, shrink failures as `pytest suite` does, and tell
them. The seed of a case is the search's seed and the number of the draw."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records import machine, searches
from attention_conformance.suite.records.files import write_new
from attention_conformance.suite.records.searches import Cause, FoundRecord, SearchHeader, SearchRun
from attention_conformance.suite.run import jax_caches
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.process import Board
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.run.script import script
from attention_conformance.suite.run.smaller import shrunk, well_posed
from attention_conformance.suite.run.terminal import search_command
from attention_conformance.suite.search import drawing
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

SHRINK_SECONDS = 60.0
"""Greatest time for shrinking a failure."""

POOL = 4
"""Number of sizes of an operator if every new size is compiled."""


@dataclass
class Failure:
    """A failure: the drawn case, and the smallest cell that fails in the same way so far."""

    drawn: Case
    cell: Cell
    verdict: Verdict
    times: int = 1
    script: str = ""

    @property
    def record(self) -> FoundRecord:
        """The failure as a record. Only wrong values and crashes differ by their dtype."""
        cell, verdict = self.cell, self.verdict
        text, *more = re.split(r"element \(", verdict.message, maxsplit=1)
        said = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text) + "element" * bool(more)
        of_dtype = verdict.kind in ("value", "non-finite", "crash")
        return FoundRecord(
            str(cell.implementation), cell.check.name, verdict.kind,
            cell.case.dtype.name if of_dtype else "", said, verdict.status, cell.case.id,
            printable(verdict.message), self.times, self.script,
        )  # fmt: skip


class Search:
    """Draws cases, and judges each with the implementations of its operator in a plan. Prints every new
    failure after shrinking, and writes the cell being judged to `board`."""

    def __init__(self, plan: Plan, options: SearchOptions, board: Board | None = None) -> None:
        self.plan, self.options, self.board = plan, options, board
        self.checks = [all_checks()[name] for name in SEARCHED[: 2 if options.gradients else 1]]
        self.seen: dict[str, Case] = {}
        self.judged = 0
        self.statuses, self.alike = Counter[str](), Counter[str]()
        self.failures: dict[Cause, Failure] = {}
        self.began = time.monotonic()

    def run(self) -> None:
        """Search until the limit of time or examples is reached, or hardly any drawn case is new."""
        for number in itertools.count():
            if self._over() or number > 1000 + 10 * len(self.seen):
                return
            case = self._draw(number)
            if case is not None and case.id not in self.seen:
                self.judge_case(case)

    def _draw(self, number: int) -> Case | None:
        """A case of an implemented operator, plain attention in half of the draws. If every new size is
        compiled, an operator has `POOL` sizes for equal ties."""
        asked, random = self.plan.implementations, Random(f"{self.options.seed}/{number}")
        operators = dict.fromkeys(one.operator for one in asked)
        kinds = [[o for o in operators if o.is_default == plain] for plain in (True, False)]
        operator = random.choice(random.choice([kind for kind in kinds if kind]))
        dtypes = [dtype(name) for name in self.options.dtype or DTYPES]
        few = any(i.mode == "compiled" or i.backend.compilers.compiles_shapes for i in asked)
        sizes = Random(f"{self.options.seed}/{random.randrange(POOL)}") if few else random
        return drawing.case_of(operator, dtypes, random, sizes)

    def _over(self) -> bool:
        """Whether a limit is reached."""
        minutes, examples = self.options.minutes, self.options.examples
        limit = 1.0 if minutes is None and examples is None else minutes
        late = limit is not None and time.monotonic() > self.began + 60 * limit
        return late or (examples is not None and len(self.seen) >= examples)

    def judge_case(self, case: Case) -> None:
        """Judge a case with every check and implementation; count the cells, tell new failures."""
        self.seen[case.id] = case
        for check, one in itertools.product(self.checks, self.plan.implementations):
            if one.operator is case.operator and well_posed(case, "gradient" in check.needs):
                self._count(self.judge(Cell(check, case, one, self.plan.options.seed), case))

    def judge(self, cell: Cell, drawn: Case) -> Failure:
        """Judge a case in place of that of a cell, or the nearest case within declared limits. A case
        that passes against a manifest's entry passes, because entries describe other sizes."""
        nearest = cell.implementation.nearest_supported(drawn) or drawn
        cell = Cell(cell.check, nearest, cell.implementation, cell.seed)
        if self.board is not None:
            died = Verdict("crash", "crash", "the process that judged this cell died")
            text = f"{cell.check.name} of {cell.implementation}: {nearest.id}"
            record = asdict(Failure(drawn, cell, died).record)
            self.board.say(cell=text, judged=self.judged, judging=record)
        self.judged += 1
        jax_caches.forget(self.judged)
        verdict = judge(cell, self.plan.policy(cell))
        passes = verdict.kind == "unexpected-pass"
        return Failure(drawn, cell, Verdict("pass") if passes else verdict)

    def _count(self, failure: Failure) -> None:
        """Count a cell; shrink and tell its failure if it is new."""
        cell, verdict = failure.cell, failure.verdict
        like = ""
        if verdict.status == "fail" and cell.implementation not in self.plan.functions:
            manifest, name = self.plan.of(cell.implementation).manifest, cell.implementation.name
            like = manifest.similar(verdict, name, cell.check.name, cell.case.id)
        self.statuses["like known" if like else verdict.status] += 1
        self.alike.update([like] if like else [])
        if like or verdict.status not in BROKEN:
            return
        first = self.failures.setdefault(failure.record.cause, failure)
        if first is not failure:
            first.times += 1
            return
        late = time.monotonic() + SHRINK_SECONDS
        shrunk(failure.drawn, lambda x: time.monotonic() < late and self._fails(failure, x))
        tell(self, failure)

    def _fails(self, failure: Failure, case: Case) -> bool:
        """Whether a case has a failure, which then keeps the case."""
        now = self.judge(failure.cell, case)
        if now.verdict.status not in BROKEN or now.record.cause != failure.record.cause:
            return False
        failure.cell, failure.verdict = now.cell, now.verdict
        return True


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
    engine = Search(plan, options, board)
    leaks.watch()  # this process ends with the search
    for case in cases:
        engine.judge_case(case)
    if not cases:
        engine.run()
    found = [failure.record for failure in engine.failures.values()]
    scripts = [one.script for one in found if one.script]
    if options.script and scripts:
        write_new(options.script, scripts[0])
        print(f"  saved   {options.script}")
    print(summary(engine))
    if options.results:
        counts = {"statuses": dict(engine.statuses), "seconds": time.monotonic() - engine.began}
        write(options, found, versions=plan.versions, examples=len(engine.seen), **counts)
    passed = engine.statuses["pass"] + engine.statuses["known"]
    return 1 if engine.failures else 0 if passed else 2


def tell(search: Search, failure: Failure) -> None:
    """Print a failure with its script."""
    cell, verdict = failure.cell, failure.verdict
    again = search_command(record(cell, verdict), search.plan.options, saved=False)
    print(
        f"\n{verdict.status}: {verdict.kind}, {cell.check.name} of {cell.implementation}\n"
        f"  case    {cell.case.id}\n  drawn   shrunk from {failure.drawn.id}\n  {verdict.message}\n"
        f"  again   {again}\n          attention-conformance describe {cell.case.id}"
    )
    try:
        failure.script = script(cell, verdict)
        print(f"  as a script:\n\n{failure.script.rstrip()}", flush=True)
    except Exception as error:  # NoScript says why there is none
        print(f"  script  none: {error}", flush=True)


def write(options: SearchOptions, found: Sequence[FoundRecord], **counts: Any) -> None:
    """Write the records of a search. Without `counts` its process died."""
    asked = {n: v for n, v in asdict(options).items() if n not in ("script", "case", "results")}
    header = SearchHeader(**machine.origin(), options=asked, **counts)
    searches.save(options.results, SearchRun(header, tuple(found)))


def summary(search: Search) -> str:
    """The text of a search that ended: examples, cells by status, failures."""
    names = ", ".join(map(str, search.plan.implementations))
    drawn = f"{len(search.seen)} examples in {time.monotonic() - search.began:.0f} s"
    order = ("pass", "unsupported", "known", "like known", *BROKEN)
    lines = [
        f"\nseed {search.options.seed}: {drawn}, of {names}",
        "  cells     " + ", ".join(f"{search.statuses[name]} {name}" for name in order),
        *(f"  like known, {times} times: {entry}" for entry, times in search.alike.items()),
    ]
    for one in (failure.record for failure in search.failures.values()):
        what = f"{one.kind}, {one.check} of {one.implementation}"
        lines.append(f"  found {one.times} times: {what}: {one.case}")
    return "\n".join(lines if search.failures else [*lines, "  nothing found"])
