"""Searching: tasks that draw problems, and that make small what was found.

A search on a cluster shrinks nothing: it says what it met. Of every cause one case is made small, in a
task of its own. A search whose process dies is made again in a child, and its parent knows the cell.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from suite.front.child import Child, ChildEnded, Fields, serve
from suite.front.options import Options
from suite.front.plan import Plan
from suite.judge.cell import Cell
from suite.judge.verdict import Verdict
from suite.records.searches import Cause, Finding, Hit, Near, Searched
from suite.spec.case import Case
from suite.spec.text import printable
from suite.sweep.alone import how_it_ended
from suite.sweep.loaded import begin_process
from suite.sweep.tasks import OfSeries, SweepError

if TYPE_CHECKING:
    from suite.search.engine import Search
    from suite.search.failures import Failure

NEAREST = 3
"""Cases kept of every implementation, check and dtype whose answers come nearest to their bounds."""


@lru_cache(maxsize=1)
def planned(options: Options) -> Plan:
    """The plan of a search; the same one in later tasks of the process. Raises UsageError."""
    return Plan.make(options)


@dataclass(frozen=True)
class OfSearch(OfSeries):
    """What tasks of one search have in common: the options, and whether gradients are judged."""

    gradients: bool

    @property
    def group(self) -> str:
        return f"search {super().group}" + ("" if self.gradients else " without gradients")

    @property
    def stated(self) -> dict[str, Any]:
        """What records say of the table that it belongs to: all but seeds and examples."""
        options: dict[str, Any] = json.loads(json.dumps(asdict(self.options)))
        return options | {"gradients": self.gradients}


class _Nearest:
    """The cells that come nearest to their bounds, of those that it is told."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)

    def take(self, cell: Cell, verdict: Verdict) -> None:
        """Keep a passing cell, where it is among the nearest."""
        ratio = verdict.measured.error_ratio
        if verdict.status != "pass" or ratio is None or not ratio > 0:
            return
        kept = self._kept[str(cell.implementation), cell.check.name, cell.dtype.name]
        kept[cell.case.id] = ratio
        if len(kept) > NEAREST:
            del kept[min(kept, key=lambda case: kept[case])]

    def found(self) -> tuple[Near, ...]:
        return tuple(
            Near(*key, case, ratio)
            for key, kept in self._kept.items()
            for case, ratio in sorted(kept.items(), key=lambda entry: -entry[1])
        )


@dataclass(frozen=True)
class SearchTask(OfSearch):
    """Draw and judge so many cases, with this seed; or judge these `cases`, where there are any."""

    seed: int
    examples: int
    cases: tuple[str, ...] = ()
    board: str = ""
    """A file into which the cell that is judged is written, "" for none."""

    @property
    def name(self) -> str:
        what = f"seed {self.seed}"
        if self.cases:
            what = f"{len(self.cases)} cases of the corpus from {self.cases[0]}"
        return f"{self.group}, {what}"

    def run(self) -> Searched:
        from suite.search.engine import Search

        nearest = _Nearest()
        found: list[Failure] = []
        search = Search(
            planned(self.options), self.seed, None, self.examples, self.gradients,
            found=found.append, judging=self._announce, judged=nearest.take, shrinks=False,
        )  # fmt: skip
        if self.cases:
            summary = search.judge_these(Case.parse(text) for text in self.cases)
        else:
            summary = search.run()
        return Searched(
            self.options.backend, self.seed, summary.examples, dict(summary.statuses),
            round(summary.seconds, 3), summary.digest, tuple(map(_hit, summary.failures)),
            nearest.found(), corpus=bool(self.cases), options=self.stated,
            versions=search.plan.versions,
        )  # fmt: skip

    def _announce(self, cell: Cell) -> None:
        if self.board:
            name = f"{cell.implementation} {cell.check.name} {cell.dtype.name} {cell.case.id}"
            Path(self.board).write_text(name, encoding="utf-8")


def _hit(failure: Failure) -> Hit:
    verdict = failure.verdict
    return Hit(
        failure.key, failure.case.id, verdict.status, verdict.kind, verdict.message, failure.times
    )


@dataclass(frozen=True)
class AloneSearch(SearchTask):
    """The same search in a child, whose end is a way of failing like any other."""

    @classmethod
    def of(cls, task: SearchTask) -> AloneSearch:
        """The same search, alone."""
        return cls(**vars(task))

    def run(self) -> Searched:
        with tempfile.TemporaryDirectory(prefix="attention-") as folder:
            board = Path(folder) / "cell"
            child = Child("suite.sweep.searching", self.variables)
            try:
                answer = child.ask({**asdict(self), "board": str(board)})
            except ChildEnded as end:
                return self._ended(end, board)
            finally:
                child.end()
        return msgspec.convert(answer, Searched)

    def _ended(self, end: ChildEnded, board: Path) -> Searched:
        """What there is to say of a search whose process ended. Raises SweepError where none began."""
        if not board.is_file():
            raise SweepError(f"{self.name}: a process that imports frameworks ends: {end}")
        implementation, check, dtype, case = board.read_text(encoding="utf-8").split(" ")
        how = printable(f"the process that judged this cell died: {how_it_ended(end)}")
        hit = Hit((implementation, check, "crash", dtype, how), case, "crash", "crash", how)
        return Searched(
            self.options.backend,
            self.seed,
            0,
            {"crash": 1},
            0.0,
            "",
            (hit,),
            (),
            f"{how}, at {case}",
            bool(self.cases),
            self.stated,
        )


@dataclass(frozen=True)
class ShrinkTask(OfSearch):
    """Make the case of a cause small, and write its script."""

    cause: Cause
    case: str
    status: str
    kind: str
    message: str

    @property
    def name(self) -> str:
        return (
            f"{self.group}, a smaller case than {self.case} for {self.cause[1]} of {self.cause[0]}"
        )

    def run(self) -> Finding:
        from suite.search.engine import Search

        found: list[Failure] = []
        search = Search(
            planned(self.options), gradients=self.gradients, examples=1, found=found.append
        )
        search.implementations = [i for i in search.implementations if str(i) == self.cause[0]]
        search.checks = [check for check in search.checks if check.name == self.cause[1]]
        search.judge_these([Case.parse(self.case)])
        same = next((failure for failure in found if failure.key == self.cause), None)
        if same is not None:
            return self._finding(search, same)
        return replace(self.unshrunk("it was not seen again"), versions=search.plan.versions)

    def unshrunk(self, why: str) -> Finding:
        """The case as it was drawn, and why there is no smaller one, and no script."""
        return Finding(
            self.cause, self.options.backend, self.case, self.case, self.status, self.kind, self.message,
            repeats=False, no_script=why,
        )  # fmt: skip

    def _finding(self, search: Search, failure: Failure) -> Finding:
        from suite.search.script import NoScript, script

        text = why = ""
        try:
            seed = search.plan.options.seed
            text = script(
                Cell(failure.check, failure.case, failure.implementation, seed), failure.verdict
            )
        except NoScript as reason:
            why = str(reason)
        except Exception as error:
            why = f"{type(error).__name__} while it was written: {error}"
        verdict = failure.verdict
        return Finding(
            self.cause, self.options.backend, self.case, failure.case.id, verdict.status, verdict.kind,
            verdict.message, failure.repeats, text, printable(why),
            search.plan.versions,
        )  # fmt: skip


def main() -> None:
    """Search once, as is asked."""

    def answer(request: Fields) -> Fields:
        begin_process()
        request["options"] = msgspec.convert(request["options"], Options)
        request["cases"] = tuple(request["cases"])
        found: dict[str, Any] = asdict(SearchTask(**request).run())
        return found

    serve(answer)


if __name__ == "__main__":
    main()
