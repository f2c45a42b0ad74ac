"""Searching: tasks that draw problems, judge some of them, and make small what was found.

A search on a cluster shrinks nothing, so that what it draws hangs on no verdict: one task draws its
cases, others judge parts of them and say what they met. Of every cause one case is made small, in a task
of its own. A part whose process dies is judged again in a child, and its parent knows the cell.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from suite.front.child import Fields
from suite.front.options import Options
from suite.front.plan import Plan
from suite.judge.cell import Cell
from suite.judge.verdict import Verdict
from suite.records.searches import Cause, Finding, Hit, Near, Searched
from suite.spec.case import Case
from suite.spec.text import printable
from suite.sweep.alone import CellEnded, Children, serve_judge
from suite.sweep.tasks import OfSeries, SweepError

if TYPE_CHECKING:
    from suite.search.engine import Search
    from suite.search.failures import Failure

NEAREST = 3
"""Cases kept of every implementation, check and dtype whose answers come nearest to their bounds."""

MOST_SECONDS = 45.0
"""Seconds after which a task judges no further case: what is lost where it dies, or is given up."""


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


class Nearest:
    """The cases that come nearest to their bounds, of those that it is told: `NEAREST` of every
    implementation, check and dtype."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)

    def take(self, near: Near) -> None:
        """Keep a case, where it is among the nearest; of two as near the one whose id comes first."""
        kept = self._kept[near.implementation, near.check, near.dtype]
        kept[near.case] = max(near.ratio, kept.get(near.case, 0.0))
        if len(kept) > NEAREST:
            del kept[max(kept, key=lambda case: (-kept[case], case))]

    def found(self) -> tuple[Near, ...]:
        """What is kept, in an order that does not hang on that in which it came."""
        return tuple(
            Near(*key, case, ratio)
            for key, kept in sorted(self._kept.items())
            for case, ratio in sorted(kept.items(), key=lambda entry: (-entry[1], entry[0]))
        )


@dataclass(frozen=True)
class Cases:
    """The ids of the cases of a search, in order, their digest, and the versions of the machine."""

    cases: tuple[str, ...]
    digest: str
    versions: dict[str, str]


@dataclass(frozen=True)
class CasesTask(OfSearch):
    """Draw the cases of the search with this seed, so many, and judge none."""

    seed: int
    examples: int

    @property
    def name(self) -> str:
        return f"{self.group}, draw of seed {self.seed}"

    def run(self) -> Cases:
        from suite.search.engine import Search

        cases: list[str] = []
        search = Search(
            planned(self.options), self.seed, None, self.examples, self.gradients,
            drawn=lambda case: cases.append(case.id), shrinks=False,
        )  # fmt: skip
        digest = search.draw().digest
        return Cases(tuple(cases), digest, search.plan.versions)


@dataclass(frozen=True)
class SearchTask(OfSearch):
    """Judge these cases: the `first` and those after it `of` so many that the search with this seed drew,
    whose ids have this digest; or some of the corpus.

    After `MOST_SECONDS` it says what it met, and leaves the rest.
    """

    seed: int
    cases: tuple[str, ...]
    first: int = 0
    of: int = 0
    digest: str = ""
    corpus: bool = False

    @property
    def name(self) -> str:
        what = f"seed {self.seed}, cases {self.first}-{self.first + len(self.cases)}"
        if self.corpus:
            what = f"{len(self.cases)} cases of the corpus from {self.cases[0]}"
        return f"{self.group}, {what}"

    def run(self) -> Searched:
        return self.judge()

    def judge(
        self,
        first: int = 0,
        end: int | None = None,
        judging: Callable[[Cell], None] = lambda cell: None,
    ) -> Searched:
        """Judge the cells `first` to `end` - 1 of each case. `judging` is told every cell."""
        from suite.search.engine import Search

        nearest = Nearest()

        def judged(cell: Cell, verdict: Verdict) -> None:
            ratio = verdict.measured.error_ratio
            if verdict.status == "pass" and ratio is not None and ratio > 0:
                words = (str(cell.implementation), cell.check.name, cell.dtype.name, cell.case.id)
                nearest.take(Near(*words, ratio))

        search = Search(
            planned(self.options), self.seed, gradients=self.gradients, judging=judging, judged=judged,
            shrinks=False,
        )  # fmt: skip
        summary = search.judge_these(map(Case.parse, in_time(self.cases)), first, end)
        return self.met(
            summary.examples, statuses=dict(summary.statuses), seconds=round(summary.seconds, 3),
            hits=tuple(map(_hit, summary.failures)), near=nearest.found(), versions=search.plan.versions,
        )  # fmt: skip

    def met(self, examples: int, **found: Any) -> Searched:
        """What there is to say of so many of the cases."""
        return Searched(
            self.options.backend, self.seed, examples, digest=self.digest, first=self.first, of=self.of,
            corpus=self.cases[:examples] if self.corpus else (), options=self.stated, **found,
        )  # fmt: skip

    def rest(self, examples: int) -> Self | None:
        """What is left where so many cases were judged; None where nothing is."""
        if examples >= len(self.cases):
            return None
        return replace(self, cases=self.cases[examples:], first=self.first + examples)


def in_time(cases: Iterable[str]) -> Iterator[str]:
    """Cases, the first of them and others until `MOST_SECONDS` are over."""
    until = time.monotonic() + MOST_SECONDS
    for number, case in enumerate(cases):
        if number and time.monotonic() > until:
            return
        yield case


def _hit(failure: Failure) -> Hit:
    verdict = failure.verdict
    return Hit(
        failure.key, failure.case.id, verdict.status, verdict.kind, verdict.message, failure.times
    )


@dataclass(frozen=True)
class AloneSearch(SearchTask):
    """The same cases, one by one in a child: a cell that ends it is a way of failing like any other,
    and another child goes on with the next cell."""

    @classmethod
    def of_task(cls, task: SearchTask) -> AloneSearch:
        """The same cases, alone."""
        return cls(**vars(task))

    def run(self) -> Searched:
        met: list[Searched] = []
        examples = 0
        with Children("suite.sweep.searching", self.options, self.variables) as children:
            for case in in_time(self.cases):
                met += self._asked(children, case)
                examples += 1
        return self._together(examples, met)

    def _asked(
        self, children: Children, case: str, first: int = 0, end: int | None = None
    ) -> Iterator[Searched]:
        """What the cells `first` to `end` - 1 of a case gave, in pieces: those that end a child lie
        between."""
        with tempfile.TemporaryDirectory(prefix="attention-") as folder:
            board = Path(folder, "cell")
            task = asdict(replace(self, cases=(case,)))
            try:
                answer = children.ask({"task": task, "cells": [first, end], "board": str(board)})
            except CellEnded as ended:
                if not board.is_file():
                    raise SweepError(f"{self.name}: before {case} was judged, {ended}") from ended
                number, *cell = board.read_text(encoding="utf-8").split(" ")
                crashed = self._ended(ended, *cell)
            else:
                yield msgspec.convert(answer, Searched)
                return
        place = first + int(number)
        if place > first:
            yield from self._asked(children, case, first, place)
        yield crashed
        if end is None or place + 1 < end:
            yield from self._asked(children, case, place + 1, end)

    def _ended(
        self, end: CellEnded, implementation: str, check: str, dtype: str, case: str
    ) -> Searched:
        """What there is to say of a cell that ended its child."""
        how = printable(str(end))
        cause = (implementation, check, end.kind, dtype, how)
        hit = Hit(cause, case, "crash", end.kind, how)
        return self.met(
            0, statuses={"crash": 1}, seconds=0.0, hits=(hit,), ended=f"{how}, at {case}"
        )

    def _together(self, examples: int, met: Sequence[Searched]) -> Searched:
        """What so many cases gave, of which each was judged alone."""
        statuses: Counter[str] = Counter()
        hits: dict[Cause, Hit] = {}
        nearest = Nearest()
        for one in met:
            statuses.update(one.statuses)
            for hit in one.hits:
                times = hits[hit.cause].times if hit.cause in hits else 0
                hits[hit.cause] = replace(hits.get(hit.cause, hit), times=times + hit.times)
            for near in one.near:
                nearest.take(near)
        return self.met(
            examples, statuses=dict(statuses), seconds=round(sum(one.seconds for one in met), 3),
            hits=tuple(hits.values()), near=nearest.found(),
            ended=next((one.ended for one in reversed(met) if one.ended), ""),
            versions=planned(self.options).versions,
        )  # fmt: skip


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


def _asked(plan: Plan, request: Fields) -> Fields:
    """What a case gives; the cell that is judged stands in a file: its number, and what it is called."""
    task = msgspec.convert(request["task"], SearchTask)
    board, numbers = Path(request["board"]), itertools.count()

    def judging(cell: Cell) -> None:
        words = (cell.implementation, cell.check.name, cell.dtype.name, cell.case.id)
        board.write_text(" ".join(map(str, (next(numbers), *words))), encoding="utf-8")

    first, end = request["cells"]
    return asdict(task.judge(first, end, judging))


if __name__ == "__main__":
    serve_judge(planned, _asked)
