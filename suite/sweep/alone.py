"""Alone: the cells of a batch that died, judged one by one in a child, so that who kills it is seen.

A cell whose child ends is a `crash`, and another child goes on with the next one. What ends a child from
outside (a signal that no fault of a cell raises: somebody's `kill`, or the system that is short of
memory) is held against a cell only where it comes again.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from suite.front import watchdog
from suite.front.child import Child, ChildEnded, Fields, serve
from suite.front.options import Options
from suite.front.plan import cell_name, crashed
from suite.records.cells import CellRecord
from suite.sweep.loaded import Loaded, begin_process, loaded
from suite.sweep.tasks import AS_A_CRASH, NO_MEMORY, JudgeTask, SweepError

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

TRIALS = 3
"""How often a cell is judged whose child is ended from outside."""

T = TypeVar("T")


class CannotStart(SweepError):
    """The child ends as it imports frameworks; the message says how."""


@dataclass(frozen=True)
class AloneTask(JudgeTask):
    """A batch whose cells may do to their process whatever they like. Raises CannotStart, too."""

    usual = ", cell by cell"

    def less(self) -> Sequence[AloneTask]:
        """The halves of the batch; of one cell the same with nothing beside it."""
        middle, seeds = (self.first + self.end) // 2, len(self.seeds) // 2
        if middle > self.first:
            return [replace(self, end=middle), replace(self, first=middle)]
        if seeds:
            parts = (slice(seeds), slice(seeds, None))
            return [
                replace(self, seeds=self.seeds[part], identities=self.identities[part])
                for part in parts
            ]
        kind = NoMemoryTask if self.exclusive else AloneTask
        return [kind.of_task(replace(self, exclusive=not self.exclusive))]

    @contextmanager
    def judging(self, state: Loaded) -> Iterator[Callable[[int, int, bool], CellRecord]]:
        # This process knows what the cells are called; it judges none.
        with Children("suite.sweep.alone", self.options, self.variables) as children:
            yield lambda position, seed, last: self._judged(children, state, position, seed)

    def _judged(self, children: Children, state: Loaded, position: int, seed: int) -> CellRecord:
        """The record of one cell: what a child says, or that it ended."""
        try:
            answer = children.ask({"position": position, "seed": seed})
            return msgspec.convert(answer, CellRecord)
        except CellEnded as end:
            return self._crashed(state, position, seed, end.kind, str(end))

    def _crashed(
        self, state: Loaded, position: int, seed: int, kind: str, message: str
    ) -> CellRecord:
        cell = state.cells[position]
        options = replace(state.plan.options, seed=seed)
        return crashed(cell.check.name, cell_name(cell), kind, message, options)


class NoMemoryTask(AloneTask):
    """One cell that no memory was enough for; it is not judged."""

    manner = AS_A_CRASH

    def less(self) -> Sequence[AloneTask]:
        return ()

    def _judged(self, children: Children, state: Loaded, position: int, seed: int) -> CellRecord:
        return self._crashed(state, position, seed, "crash", NO_MEMORY)


def how_it_ended(end: ChildEnded) -> str:
    """How a child ended, for people."""
    if end.code < 0:
        return f"it died of {signal.Signals(-end.code).name}"
    return f"it ended with exit code {end.code}, unasked"


class CellEnded(Exception):
    """A cell ended the child that judged it, and others that judged it again; the message says how,
    `kind` whether it took too long."""

    def __init__(self, kind: str, how: str) -> None:
        super().__init__(f"the process that judged this cell died: {how}")
        self.kind = kind


class Children:
    """One child after another, each started when it is needed: a module that serves what is asked with
    these options (`serve_judge`). A context that ends the last one."""

    def __init__(self, module: str, options: Options, variables: dict[str, str]) -> None:
        self._of = (module, variables)
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="attention-")
        self._watchdog = Path(self._folder.name, "watchdog")
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()
        self._folder.cleanup()

    def ask(self, request: Fields) -> Fields:
        """The answer of a child; one that is ended from outside is followed by another.

        Raises CellEnded, and CannotStart where a child ends before it is asked.
        """
        for trial in range(1, TRIALS + 1):
            try:
                return self._begun().ask(request)
            except ChildEnded as end:
                place = watchdog.where(self._watchdog)
                self.end()
                if -end.code in FROM_OUTSIDE and not place and trial < TRIALS:
                    continue
                kind = "timeout" if place else "crash"
                raise CellEnded(kind, place or how_it_ended(end)) from end
        raise AssertionError("the last trial returns")

    def _begun(self) -> Child:
        if self._child is None:
            self._child = Child(*self._of)
            try:
                hello = {"options": asdict(self._options), "watchdog": str(self._watchdog)}
                self._child.ask(hello)
            except ChildEnded as end:
                self.end()
                raise CannotStart(f"a process that imports frameworks again ends: {end}") from end
        return self._child

    def end(self) -> None:
        """End the child, where there is one."""
        if self._child is not None:
            self._child.end()
        self._child = None


def serve_judge(prepare: Callable[[Options], T], judge: Callable[[T, Fields], Fields]) -> None:
    """Be a child of `Children`: prepare once with the options, then judge until nobody asks."""
    prepared: list[T] = []

    def answer(request: Fields) -> Fields:
        if prepared:
            return judge(prepared[0], request)
        begin_process()
        watchdog.write_to(request["watchdog"])
        prepared.append(prepare(msgspec.convert(request["options"], Options)))
        return {}

    serve(answer)


if __name__ == "__main__":
    serve_judge(loaded, lambda state, cell: asdict(state.judge(cell["position"], cell["seed"])))
