"""Searching: tasks that draw problems, judge some of them, and make small what was found.

A search on a cluster shrinks nothing, so that what it draws hangs on no verdict: one task draws its
cases, others judge parts of them and say what they met. Of every cause one case is made small, in a task
of its own. A part whose process dies is judged again in a child, and its parent knows the cell.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from suite.front.options import Options
from suite.front.plan import Plan
from suite.judge.cell import Cell
from suite.judge.verdict import Verdict
from suite.records.searches import Cause, Hit, Near, Searched, SearchFinding
from suite.spec.case import Case
from suite.spec.text import printable
from suite.sweep.tasks import OfSeries, Task

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

    def entries(self) -> tuple[Near, ...]:
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
        return f"{self.group}, draw of seed {self.seed}{self.manner}"

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
        return f"{self.group}, {what}{self.manner}"

    def less(self) -> Sequence[Task[Any]]:
        return ()

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
            hits=tuple(map(_hit, summary.failures)), near=nearest.entries(),
            versions=search.plan.versions,
        )  # fmt: skip

    def met(self, examples: int, **fields: Any) -> Searched:
        """What there is to say of so many of the cases."""
        return Searched(
            self.options.backend, self.seed, examples, digest=self.digest, first=self.first, of=self.of,
            corpus=self.cases[:examples] if self.corpus else (), options=self.stated, **fields,
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

    def run(self) -> SearchFinding:
        from suite.search.engine import Search

        failures: list[Failure] = []
        search = Search(
            planned(self.options), gradients=self.gradients, examples=1, found=failures.append
        )
        search.implementations = [i for i in search.implementations if str(i) == self.cause[0]]
        search.checks = [check for check in search.checks if check.name == self.cause[1]]
        search.judge_these([Case.parse(self.case)])
        same = next((failure for failure in failures if failure.key == self.cause), None)
        if same is not None:
            return self._finding(search, same)
        return replace(self.unshrunk("it was not seen again"), versions=search.plan.versions)

    def unshrunk(self, why: str) -> SearchFinding:
        """The case as it was drawn, and why there is no smaller one, and no script."""
        return SearchFinding(
            self.cause, self.options.backend, self.case, self.case, self.status, self.kind, self.message,
            repeats=False, no_script=why,
        )  # fmt: skip

    def _finding(self, search: Search, failure: Failure) -> SearchFinding:
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
        return SearchFinding(
            self.cause, self.options.backend, self.case, failure.case.id, verdict.status, verdict.kind,
            verdict.message, failure.repeats, text, printable(why),
            search.plan.versions,
        )  # fmt: skip
