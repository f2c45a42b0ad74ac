"""Alone: the cells of a batch that died, judged one by one in a child, so that who kills it is seen.

A cell whose child ends is a `crash`, and another child goes on with the next one. What ends a child from
outside (a signal that no fault of a cell raises: somebody's `kill`, or the system that is short of
memory) is held against a cell only where it comes again.
"""

from __future__ import annotations

import signal
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import msgspec

from suite.front import watchdog
from suite.front.child import Child, ChildEnded, Fields, serve
from suite.front.options import Options
from suite.front.plan import cell_name, crashed
from suite.records.cells import CellRecord
from suite.sweep.loaded import Loaded, begin_process, loaded
from suite.sweep.tasks import Judged, JudgeTask, SweepError

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

TRIALS = 3
"""How often a cell is judged whose child is ended from outside."""


class CannotStart(SweepError):
    """The child ends as it imports frameworks; the message says how."""


@dataclass(frozen=True)
class AloneTask(JudgeTask):
    """A batch whose cells may do to their process whatever they like. Raises CannotStart, too."""

    @classmethod
    def of(cls, task: JudgeTask) -> AloneTask:
        """The same batch, cell by cell."""
        return cls(**{field.name: getattr(task, field.name) for field in fields(task)})

    def run(self) -> list[Judged]:
        # This process knows what the cells are called; it judges none.
        state = loaded(self.options)
        self.check(state.order, state.plan.versions)
        found: dict[int, list[CellRecord]] = {seed: [] for seed in self.seeds}
        with tempfile.TemporaryDirectory(prefix="attention-") as folder:
            children = _Children(self, Path(folder) / "watchdog")
            try:
                for position in range(self.first, self.end):
                    for seed in self.seeds:
                        found[seed].append(_judged(children, state, position, seed))
            finally:
                children.end()
        return self.results(state, found)


def _judged(children: _Children, state: Loaded, position: int, seed: int) -> CellRecord:
    """The record of one cell: what a child says, or that it ended."""
    for trial in range(1, TRIALS + 1):
        try:
            answer = children.ask({"position": position, "seed": seed})
        except ChildEnded as end:
            place = watchdog.where(children.watchdog)
            children.end()
            if -end.code in FROM_OUTSIDE and not place and trial < TRIALS:
                continue
            return _crash(state, position, seed, end, place)
        return msgspec.convert(answer, CellRecord)
    raise AssertionError("the last trial returns")


def _crash(state: Loaded, position: int, seed: int, end: ChildEnded, place: str) -> CellRecord:
    cell = state.cells[position]
    return crashed(
        cell.check.name,
        cell_name(cell),
        "timeout" if place else "crash",
        f"the process that judged this cell died: {place or how_it_ended(end)}",
        replace(state.plan.options, seed=seed),
    )


def how_it_ended(end: ChildEnded) -> str:
    """How a child ended, for people."""
    if end.code < 0:
        return f"it died of {signal.Signals(-end.code).name}"
    return f"it ended with exit code {end.code}, unasked"


class _Children:
    """One child after another, each started when it is needed."""

    def __init__(self, task: JudgeTask, path: Path) -> None:
        self.watchdog = path
        self._task = task
        self._child: Child | None = None

    def ask(self, request: Fields) -> Fields:
        """The answer of the child. Raises ChildEnded, and CannotStart where it ends before the first."""
        if self._child is None:
            self._child = Child("suite.sweep.alone", self._task.variables)
            hello = {"options": asdict(self._task.options), "watchdog": str(self.watchdog)}
            try:
                self._child.ask(hello)
            except ChildEnded as end:
                raise CannotStart(f"a process that imports frameworks again ends: {end}") from end
        return self._child.ask(request)

    def end(self) -> None:
        """End the child, where there is one."""
        if self._child is not None:
            self._child.end()
        self._child = None


def main() -> None:
    """Judge cells until nobody asks."""
    states: list[Loaded] = []

    def answer(request: Fields) -> Fields:
        if not states:
            begin_process()
            watchdog.write_to(request["watchdog"])
            states.append(loaded(msgspec.convert(request["options"], Options)))
            return {}
        return asdict(states[0].judge(request["position"], request["seed"]))

    serve(answer)


if __name__ == "__main__":
    main()
