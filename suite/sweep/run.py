"""A sweep from its first task to its verdict, as people see it."""

from __future__ import annotations

import sys
import time
from collections import Counter

from suite.front.progress import EVERY, span
from suite.records.sweeps import CELLS, runs
from suite.report.swept import not_green
from suite.sweep.driver import Counted, Driver, Engine
from suite.sweep.judging import SeriesRuns
from suite.sweep.loaded import Survey
from suite.sweep.plan import Series, SweepPlan, seeds_text, series_of
from suite.sweep.searches import Searches
from suite.sweep.source import Source
from suite.sweep.store import Store, SweepLimits, say
from suite.sweep.tasks import Failure, Judged

GREEN, FAILED, USAGE, UNFINISHED = 0, 1, 2, 3
"""Exit codes."""

TOLD = 20
"""How many ways of failing are told of while the sweep runs, each with one cell; reports have all."""


class Sweep:
    """A plan that is carried out on an engine, within limits."""

    def __init__(self, plan: SweepPlan, store: Store, engine: Engine, limits: SweepLimits) -> None:
        self.store, self.limits = store, limits
        self.judged = 0
        self._told: set[Failure] = set()
        self._seconds = 0.0
        self._counted = Counted(EVERY[sys.stdout.isatty()], say)
        every = series_of(plan)
        # Cores that no survey has prepare to judge: those of the first series.
        spare = max(0, int(engine.cores()) - len(every))
        self.sources: list[Source] = [
            self._judging(series, 0 if number else spare) for number, series in enumerate(every)
        ]
        self.searches = Searches(plan, store.folder, say) if plan.search else None
        self.sources += [self.searches] if self.searches else []
        limits.core_seconds += store.core_seconds
        self.driver = Driver(engine, self.sources, limits, self._write_spent)
        self._failed_imports: dict[str, str] = {}

    def run(self) -> int:
        """Carry it out; returns the exit code. Raises UsageError, SweepError, RecordError and OSError."""
        began = time.monotonic()
        reached = self.driver.run()
        took = time.monotonic() - began
        say(f"{self._judged_text()}{span(took)}, {self._cost_text()}")
        if reached:
            say(f"{reached} is reached; the same command goes on with what is left")
            return UNFINISHED
        return self._verdict()

    def _write_spent(self) -> None:
        self.store.spend(self.limits.core_seconds)

    def _judged_text(self) -> str:
        if not self.judged:
            return ""
        return f"{self.judged} cells, {1e3 * self._seconds / self.judged:.1f} ms each, in "

    def _cost_text(self) -> str:
        hours = f"{self.limits.core_seconds / 3600:.2f} core-hours in all"
        return f"{hours} for {self.limits.spent:.2f}" if self.limits.core_hour else hours

    def _verdict(self) -> int:
        for run in runs(self.store.folder / CELLS):
            run.check()
        reasons = [f"{name} is {why}" for name, why in self._failed_imports.items()]
        reasons += not_green(self.store.folder / CELLS)
        if self.searches is not None:
            reasons += ["searches found something"] if self.searches.has_hits else []
        for reason in reasons[:TOLD]:
            say(reason)
        if len(reasons) > TOLD:
            say(f"... and {len(reasons) - TOLD} more runs that are not green")
        say(f"tables: python -m suite report {self.store.folder}")
        return FAILED if reasons else GREEN

    def _judging(self, series: Series, warm: int) -> SeriesRuns:
        def surveyed(survey: Survey, left: Counter[str]) -> None:
            self._counted.owe(left)
            owed = len(survey.keys) * len(series.seeds)
            done = owed - left.total()
            kept = f", {done} of them recorded" if done else ""
            seeds = f"seed{'s' if len(series.seeds) > 1 else ''} {seeds_text(series.seeds)}"
            say(f"{series.title}: {seeds}, {owed} cells{kept}")
            for note in (*survey.notes, *(f"{n} is {w}" for n, w in survey.unavailable.items())):
                say(f"  {note}")
            for name in survey.failed_imports:
                self._failed_imports[name] = survey.unavailable[name]

        return SeriesRuns(series, self.store, self._tell, self._take, surveyed, warm)

    def _take(self, judged: Judged, backends: list[str]) -> None:
        self.judged += judged.end - judged.first
        self._seconds += sum(judged.seconds)
        self._counted.take(backends, judged.seconds)

    def _tell(self, failure: Failure, line: str) -> None:
        if failure in self._told:
            return
        self._told.add(failure)
        if len(self._told) <= TOLD:
            say(line)
        elif len(self._told) == TOLD + 1:
            say("... further failures stand in the records alone")
