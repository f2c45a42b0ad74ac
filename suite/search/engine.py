"""The search: draw cases, judge them with the checks, shrink failures as `pytest suite` does, and print
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
from attention_conformance.suite.run.terminal import search_command
from attention_conformance.suite.search import drawing
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.smaller import smallest_failing, well_posed
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

SHRINK_SECONDS = 60.0
"""Greatest time for shrinking a failure."""

POOL = 4
"""Number of different sizes that are drawn for an operator if every new size is compiled."""


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
        """The failure as a record. The record has a dtype only for wrong values and crashes: other
        failures of several dtypes count as one."""
        cell, verdict = self.cell, self.verdict
        text, *element_text = re.split(r"element \(", verdict.message, maxsplit=1)
        general = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text) + "element" * bool(element_text)
        depends_on_dtype = verdict.kind in ("value", "non-finite", "crash")
        return FoundRecord(
            str(cell.implementation), cell.check.name, verdict.kind,
            cell.case.dtype.name if depends_on_dtype else "", general, verdict.status, cell.case.id,
            printable(verdict.message), self.times, self.script,
        )  # fmt: skip


class Search:
    """Draws cases, and judges each with the plan's implementations of its operator. Shrinks and prints
    every new failure. Writes the cell that is being judged to `board`.

    - `seen`: the judged cases by id; `judged`: the number of judged cells
    - `statuses`: numbers of cells by status; `alike`: by the known failure that they resemble
    - `failures`: the first failure of each cause
    """

    def __init__(self, plan: Plan, options: SearchOptions, board: Board | None = None) -> None:
        self.plan, self.options, self.board = plan, options, board
        self.checks = [all_checks()[name] for name in SEARCHED[: 2 if options.gradients else 1]]
        self.seen: dict[str, Case] = {}
        self.judged = 0
        self.statuses, self.alike = Counter[str](), Counter[str]()
        self.failures: dict[Cause, Failure] = {}
        self.start = time.monotonic()

    def run(self) -> None:
        """Search until the limit of time or examples is reached, or hardly any drawn case is new."""
        for number in itertools.count():
            if self._limit_is_reached() or number > 1000 + 10 * len(self.seen):
                return
            case = self._draw(number)
            if case is not None and case.id not in self.seen:
                self.judge_case(case)

    def _draw(self, number: int) -> Case | None:
        """Returns the case of the draw `number`: of an implemented operator, in half of the draws of
        plain attention. None if the draw gives no valid case. If a backend compiles every new shape,
        sizes are drawn from only `POOL` seeds."""
        judged, random = self.plan.implementations, Random(f"{self.options.seed}/{number}")
        operators = dict.fromkeys(implementation.operator for implementation in judged)
        groups = [[o for o in operators if o.is_default == plain] for plain in (True, False)]
        operator = random.choice(random.choice([group for group in groups if group]))
        dtypes = [dtype(name) for name in self.options.dtype or DTYPES]
        if any(i.mode == "compiled" or i.backend.compiles_shapes for i in judged):
            size_random = Random(f"{self.options.seed}/{random.randrange(POOL)}")
        else:
            size_random = random
        return drawing.case_of(operator, dtypes, random, size_random)

    def _limit_is_reached(self) -> bool:
        """True if the limit of minutes or of examples is reached."""
        minutes, examples = self.options.minutes, self.options.examples
        limit = 1.0 if minutes is None and examples is None else minutes
        is_late = limit is not None and time.monotonic() > self.start + 60 * limit
        return is_late or (examples is not None and len(self.seen) >= examples)

    def judge_case(self, case: Case) -> None:
        """Judge a case with every check and every implementation of its operator. Counts the cells, and
        shrinks and prints new failures."""
        self.seen[case.id] = case
        for check, judged in itertools.product(self.checks, self.plan.implementations):
            if judged.operator is case.operator and well_posed(case, "gradient" in check.needs):
                self._count(self.judge(Cell(check, case, judged, self.plan.options.seed), case))

    def judge(self, cell: Cell, drawn: Case) -> Failure:
        """Judge the case `drawn`, or the nearest supported case, with the check and implementation of
        `cell`. Returns the result as a Failure, also for a pass. An unexpected pass counts as a pass,
        because entries of manifests describe other sizes."""
        nearest = cell.implementation.nearest_supported(drawn) or drawn
        cell = Cell(cell.check, nearest, cell.implementation, cell.seed)
        if self.board is not None:
            death = Verdict("crash", "crash", "the process that judged this cell died")
            cell_text = f"{cell.check.name} of {cell.implementation}: {nearest.id}"
            record = asdict(Failure(drawn, cell, death).record)
            self.board.say(cell=cell_text, judged=self.judged, judging=record)
        self.judged += 1
        jax_caches.forget(self.judged)
        verdict = judge(cell, self.plan.policy(cell))
        is_pass = verdict.kind == "unexpected-pass"
        return Failure(drawn, cell, Verdict("pass") if is_pass else verdict)

    def _count(self, failure: Failure) -> None:
        """Count a judged cell. If it fails, and not like a known failure, its failure is stored, shrunk
        and printed, unless one with the same cause is stored."""
        cell, verdict = failure.cell, failure.verdict
        known_entry = ""
        if verdict.status == "fail" and cell.implementation not in self.plan.functions:
            manifest, name = (
                self.plan.loaded_backend(cell.implementation).manifest,
                cell.implementation.name,
            )
            known_entry = manifest.similar(verdict, name, cell.check.name, cell.case.id)
        self.statuses["like known" if known_entry else verdict.status] += 1
        self.alike.update([known_entry] if known_entry else [])
        if known_entry or verdict.status not in BROKEN:
            return
        first = self.failures.setdefault(failure.record.cause, failure)
        if first is not failure:
            first.times += 1
            return
        deadline = time.monotonic() + SHRINK_SECONDS
        smallest_failing(
            failure.drawn, lambda x: time.monotonic() < deadline and self._fails(failure, x)
        )
        tell(self, failure)

    def _fails(self, failure: Failure, case: Case) -> bool:
        """True if a case fails with the cause of `failure`. Then `failure` is changed to this case."""
        judged = self.judge(failure.cell, case)
        if judged.verdict.status not in BROKEN or judged.record.cause != failure.record.cause:
            return False
        failure.cell, failure.verdict = judged.cell, judged.verdict
        return True


def search(options: SearchOptions, board: Board | None = None) -> int:
    """Search in this process. Prints failures and a summary, writes the files of the options, and returns
    the exit code. Writes the cell that is being judged to `board`."""
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
    leaks.record_deaths()  # this process ends with the search
    for case in cases:
        engine.judge_case(case)
    if not cases:
        engine.run()
    records = [failure.record for failure in engine.failures.values()]
    scripts = [found.script for found in records if found.script]
    if options.script and scripts:
        write_new(options.script, scripts[0])
        print(f"  saved   {options.script}")
    print(summary(engine))
    if options.results:
        counts = {"statuses": dict(engine.statuses), "seconds": time.monotonic() - engine.start}
        write(options, records, versions=plan.versions, examples=len(engine.seen), **counts)
    passes = engine.statuses["pass"] + engine.statuses["known"]
    return 1 if engine.failures else 0 if passes else 2


def tell(search: Search, failure: Failure) -> None:
    """Print a failure, and the script that reproduces it. Stores the script in `failure`."""
    cell, verdict = failure.cell, failure.verdict
    rerun_command = search_command(record(cell, verdict), search.plan.options, with_script=False)
    print(
        f"\n{verdict.status}: {verdict.kind}, {cell.check.name} of {cell.implementation}\n"
        f"  case    {cell.case.id}\n  drawn   shrunk from {failure.drawn.id}\n  {verdict.message}\n"
        f"  again   {rerun_command}\n          attention-conformance describe {cell.case.id}"
    )
    try:
        failure.script = script(cell, verdict)
        print(f"  as a script:\n\n{failure.script.rstrip()}", flush=True)
    except Exception as error:  # NoScript says why there is none
        print(f"  script  none: {error}", flush=True)


def write(options: SearchOptions, records: Sequence[FoundRecord], **counts: Any) -> None:
    """Write the result file of a search. `counts`: further fields of its header; none if the process of
    the search died."""
    stored = {n: v for n, v in asdict(options).items() if n not in ("script", "case", "results")}
    header = SearchHeader(**machine.origin(), options=stored, **counts)
    searches.save(options.results, SearchRun(header, tuple(records)))


def summary(search: Search) -> str:
    """Returns the text at the end of a search: numbers of examples and of cells by status, and
    failures."""
    names = ", ".join(map(str, search.plan.implementations))
    examples = f"{len(search.seen)} examples in {time.monotonic() - search.start:.0f} s"
    order = ("pass", "unsupported", "known", "like known", *BROKEN)
    lines = [
        f"\nseed {search.options.seed}: {examples}, of {names}",
        "  cells     " + ", ".join(f"{search.statuses[name]} {name}" for name in order),
        *(f"  like known, {times} times: {entry}" for entry, times in search.alike.items()),
    ]
    for found in (failure.record for failure in search.failures.values()):
        what_fails = f"{found.kind}, {found.check} of {found.implementation}"
        lines.append(f"  found {found.times} times: {what_fails}: {found.case}")
    return "\n".join(lines if search.failures else [*lines, "  nothing found"])
