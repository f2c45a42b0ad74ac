"""Searches alone: the cases of a part that died, judged one by one in a child, so that who kills it is
seen.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from suite.front.child import Fields
from suite.front.plan import Plan
from suite.judge.cell import Cell
from suite.records.searches import Cause, Hit, Searched
from suite.spec.case import Case
from suite.spec.text import printable
from suite.sweep.alone import CellEnded, Children, serve_judge
from suite.sweep.searching import Nearest, SearchTask, in_time, planned
from suite.sweep.tasks import AS_A_CRASH, NO_MEMORY, SweepError


@dataclass(frozen=True)
class AloneSearch(SearchTask):
    """The same cases, one by one in a child: a cell that ends it is a way of failing like any other,
    and another child goes on with the next cell."""

    usual = ", case by case"

    def less(self) -> Sequence[AloneSearch]:
        """The halves; of one case the same with nothing beside it."""
        middle = len(self.cases) // 2
        rest = self.rest(middle)
        if not middle or rest is None:
            kind = NoMemorySearch if self.exclusive else AloneSearch
            return [kind.of_task(replace(self, exclusive=not self.exclusive))]
        return [replace(self, cases=self.cases[:middle]), rest]

    def run(self) -> Searched:
        met: list[Searched] = []
        examples = 0
        with Children("suite.sweep.search_alone", self.options, self.variables) as children:
            for case in in_time(self.cases):
                met += self._pieces(children, case)
                examples += 1
        return self._together(examples, met)

    def _pieces(
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
            yield from self._pieces(children, case, first, place)
        yield crashed
        if end is None or place + 1 < end:
            yield from self._pieces(children, case, place + 1, end)

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
            hits=tuple(hits.values()), near=nearest.entries(),
            ended=next((one.ended for one in reversed(met) if one.ended), ""),
            versions=planned(self.options).versions,
        )  # fmt: skip


class NoMemorySearch(AloneSearch):
    """One case that no memory was enough for; it is not judged, and nobody knows in which cell."""

    manner = AS_A_CRASH

    def less(self) -> Sequence[AloneSearch]:
        return ()

    def run(self) -> Searched:
        (case,) = self.cases
        cause = (
            " ".join(self.options.backend),
            "any",
            "crash",
            Case.parse(case).dtype.name,
            NO_MEMORY,
        )
        return self.met(
            1, statuses={"crash": 1}, seconds=0.0, ended=f"{NO_MEMORY}, at {case}",
            hits=(Hit(cause, case, "crash", "crash", NO_MEMORY),),
            versions=planned(self.options).versions,
        )  # fmt: skip


def _answer(plan: Plan, request: Fields) -> Fields:
    """What a case gives; the cell that is judged stands in a file: its number, and what it is called."""
    task = msgspec.convert(request["task"], SearchTask)
    board, numbers = Path(request["board"]), itertools.count()

    def judging(cell: Cell) -> None:
        words = (cell.implementation, cell.check.name, cell.dtype.name, cell.case.id)
        board.write_text(" ".join(map(str, (next(numbers), *words))), encoding="utf-8")

    first, end = request["cells"]
    return asdict(task.judge(first, end, judging))


if __name__ == "__main__":
    serve_judge(planned, _answer)
