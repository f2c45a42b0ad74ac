"""Judging: the batches of a series of runs, and what becomes of them.

Cells lie in the order of `suite.front.order`: neighbours share an oracle, or what a framework compiled. A
batch is a span of them, sized by what its cells were measured to take. Where programs are compiled a
batch has all seeds, which share them; elsewhere one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from backends.registry import UsageError
from suite.records.cells import digest
from suite.records.lines import RecordError
from suite.records.sweeps import Batch
from suite.sweep.alone import AloneTask
from suite.sweep.costs import Costs, batch_end
from suite.sweep.loaded import Survey
from suite.sweep.plan import Series
from suite.sweep.source import Source
from suite.sweep.store import Span, Store, gaps, say
from suite.sweep.tasks import (
    Failure,
    Judged,
    JudgeTask,
    SurveyTask,
    SweepError,
    Task,
    WarmTask,
    listed,
)

MOST = 4000
"""Cells of a batch at most: what is lost where it dies."""

MOST_SEEDS = 64
"""Seeds of a batch at most, where seeds share programs."""


class SeriesRuns(Source):
    """The runs of a series. `failing` hears of failing cells, `judged` the cells by backend and status
    with the seconds that they took, `surveyed` how many cells of each backend are left, once.
    Meanwhile `warm` processes besides that of the survey prepare to judge."""

    def __init__(
        self,
        series: Series,
        store: Store,
        failing: Callable[[Failure, str], None],
        judged: Callable[[Judged, list[str]], None],
        surveyed: Callable[[Survey, Counter[str]], None],
        warm: int = 0,
    ) -> None:
        super().__init__(say)
        self.series, self.store = series, store
        self.survey: Survey | None = None
        self.gaps: dict[int, list[Span]] = {}
        self._failing, self._judged, self._surveyed = failing, judged, surveyed
        of = (series.options, series.release)
        self._ready.append(SurveyTask(*of))
        self._ready += [WarmTask(*of, number) for number in range(1, warm + 1)]
        self._costs = Costs([])
        self._digests: dict[int, str] = {}

    def next(self, seconds: float) -> Task[Any] | None:
        if self._ready:
            return self._ready.popleft()
        if self.survey is None:
            return None
        seed = next((seed for seed, spans in self.gaps.items() if spans), None)
        return None if seed is None else self._batch(self.survey, seed, seconds)

    def _batch(self, survey: Survey, seed: int, seconds: float) -> JudgeTask:
        """The batch that begins with the first cell that is left of a run."""
        first, stop = self.gaps[seed][0]
        costs = self._costs.of(first, min(stop, first + 2 * MOST))
        seeds = [seed]
        if survey.compiles:
            same = [s for s, spans in self.gaps.items() if spans and spans[0][0] == first]
            seeds = same[:MOST_SEEDS]
            stop = min(self.gaps[s][0][1] for s in seeds)
            costs = costs[: stop - first] * len(seeds)
        seconds = seconds if self._costs.known else seconds / 4
        most = max(1, MOST // len(seeds))
        end = batch_end(costs, survey.places[first:stop], first, seconds, most)
        self._costs.owe(first, end, -len(seeds))
        for each in seeds:
            _, last = self.gaps[each].pop(0)
            if end < last:
                self.gaps[each].insert(0, (end, last))
        return JudgeTask(
            self.series.options, self.series.release, survey.order, first, end, tuple(seeds),
            tuple(self._identity(s) for s in seeds), self.store.commit, self.store.dirty,
        )  # fmt: skip

    def take(self, task: Task[Any], result: Any) -> None:
        if isinstance(result, Survey):
            self._begin(result)
            return
        if isinstance(task, WarmTask):
            return
        for judged in result:
            self.store.write(self.series, judged)
            self._costs.learn(judged.first, judged.seconds)
            self._judged(judged, self._backends(judged.first, judged.end))
            for failure, line in judged.failing.items():
                self._failing(failure, line)

    def died(self, task: Task[Any], why: str, memory: bool = False) -> None:
        if not isinstance(task, WarmTask):
            super().died(task, why, memory)

    def alone(self, task: Task[Any]) -> Task[Any]:
        return AloneTask.of_task(task) if type(task) is JudgeTask else task

    @property
    def left(self) -> float:
        return self._costs.left

    @property
    def finished(self) -> bool:
        return self.survey is not None and not (self.out or self._ready or any(self.gaps.values()))

    def _begin(self, survey: Survey) -> None:
        """Find out what is recorded. Raises UsageError and SweepError."""
        if survey.stale:
            raise UsageError("stale expectations:\n  " + "\n  ".join(survey.stale))
        if not survey.keys:
            raise UsageError(f"{self.series.title}: no cell is left")
        self.survey = survey
        # A key is check, case, backend, implementation and so on.
        self._costs = Costs([(key[0], key[2]) for key in survey.keys])
        left: Counter[str] = Counter()
        for seed in self.series.seeds:
            try:
                batches = self.store.recorded(self.series, seed)
                for batch in batches:
                    self._check(batch, seed)
            except RecordError as error:
                raise SweepError(str(error)) from error
            self.gaps[seed] = gaps(batches, len(survey.keys))
            for span in self.gaps[seed]:
                left.update(self._backends(*span))
                self._costs.owe(*span)
        self._surveyed(survey, left)

    def _check(self, batch: Batch, seed: int) -> None:
        """Raise SweepError where a file holds other cells than are asked, or what other software
        answered."""
        assert self.survey is not None
        header = batch.header
        if header.digest != self._identity(seed)["digest"]:
            raise SweepError(
                f"{batch.path.parent} holds other cells than the suite asks now; begin another folder"
            )
        if header.versions != self.survey.versions:
            raise SweepError(
                f"{batch.path} was judged with {listed(header.versions)}, this machine has "
                f"{listed(self.survey.versions)}; go on with the former, or begin another folder"
            )

    def _backends(self, first: int, end: int) -> list[str]:
        assert self.survey is not None
        return [key[2] for key in self.survey.keys[first:end]]

    def _identity(self, seed: int) -> dict[str, Any]:
        """What headers say of one of the runs."""
        assert self.survey is not None
        if seed not in self._digests:
            self._digests[seed] = digest((*key, seed) for key in self.survey.keys)
        return self.survey.identity(self._digests[seed])
