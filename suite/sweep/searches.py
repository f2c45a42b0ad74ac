"""Searches: what the searches of a plan draw, and what becomes of it.

Every seed of every table is a search of its own, whose cases are judged in parts. What any of them meets
is known to all (`suite.sweep.corpus`): of each cause one case is made small, once, and problems that are
interesting in one table are asked of the implementations of the other tables at the end.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.records import searches, sweeps
from suite.records.lines import RecordError
from suite.records.searches import FINDINGS, SEARCH, Hit, Searched, SearchFinding
from suite.spec.text import printable
from suite.sweep.corpus import Corpus, table_of
from suite.sweep.plan import SweepPlan, search_options, seeds_of
from suite.sweep.search_alone import AloneSearch
from suite.sweep.searching import CasesTask, OfSearch, SearchTask, ShrinkTask
from suite.sweep.source import Source
from suite.sweep.store import Span, gaps
from suite.sweep.tasks import SweepError, Task, check_versions

EXAMPLE_SECONDS = 0.15
"""What an example takes, about, before any was judged."""

TRIALS = 2
"""How often a case is made smaller whose process dies: a smaller case may end its process, too."""

AT_ONCE = 50
"""Problems of the corpus that a task asks at most."""


@dataclass
class _Open:
    """A search whose cases are drawn: them all, their digest, and which are left."""

    task: CasesTask
    cases: tuple[str, ...]
    digest: str
    gaps: list[Span]


class Searches(Source):
    """The searches of a plan, whose records lie below `folder`. `told` hears what is found.

    Raises SweepError where records cannot be read.
    """

    def __init__(self, plan: SweepPlan, folder: Path, told: Callable[[str], None]) -> None:
        super().__init__(told)
        self.folder = folder
        self._shrink: deque[ShrinkTask] = deque()
        self._open: deque[_Open] = deque()
        self._asks: deque[SearchTask] = deque()
        self._asked_all = False
        # Seconds and examples by table.
        self._took: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.has_hits = False
        """Whether any search met a way of failing."""
        # What is recorded, by table and seed; of the corpus, by table.
        self._parts: defaultdict[tuple[str, int], list[Searched]] = defaultdict(list)
        self._corpus_cases: defaultdict[str, set[str]] = defaultdict(set)
        self.known: set[searches.Cause] = set()
        self.corpus = Corpus(folder)
        self._versions: dict[str, str] = {}
        try:
            self.known |= {finding.cause for finding in searches.findings(folder)}
            recorded = list(searches.searched(folder))
        except RecordError as error:
            raise SweepError(str(error)) from error
        # A search of each table; of those that differ in seeds alone, of the first.
        self._tables: dict[str, CasesTask] = {}
        self._draws: deque[CasesTask] = deque()
        for table in plan.search:
            options = search_options(plan, table)
            tasks = [
                CasesTask(options, "", table.gradients, seed, table.examples)
                for seed in seeds_of(table.seeds)
            ]
            self._tables.setdefault(table_of(tasks[0].stated), tasks[0])
            self._draws += tasks
        for record in recorded:
            self._meet(record)
        self._draws = deque(task for task in self._draws if not self._whole(task))

    def next(self, seconds: float) -> Task[Any] | None:
        for waiting in (self._ready, self._shrink):
            if waiting:
                return waiting.popleft()
        if self._open:
            return self._part(self._open[0], seconds)
        if self._draws:
            return self._draws.popleft()
        if not self._asked_all and not any(
            isinstance(task, CasesTask | SearchTask) for task in self.out
        ):
            self._asked_all = True
            self._asks += self._asks_of_others()
        return self._asks.popleft() if self._asks else None

    def _part(self, search: _Open, seconds: float) -> SearchTask:
        """The first cases that are left of a search, about so many seconds of them."""
        task = search.task
        first, end = search.gaps.pop(0)
        if not self._took[task.group][1]:
            seconds /= 4
        stop = min(end, first + max(1, int(seconds / self._each(task))))
        if stop < end:
            search.gaps.insert(0, (stop, end))
        if not search.gaps:
            self._open.popleft()
        return SearchTask(
            task.options, "", task.gradients, task.seed, search.cases[first:stop], first,
            len(search.cases), search.digest,
        )  # fmt: skip

    def take(self, task: Task[Any], result: Any) -> None:
        self._same_machine(result.versions)
        if isinstance(result, SearchFinding):
            self._keep(result)
            return
        if isinstance(task, CasesTask):
            self._begin(task, result.cases, result.digest)
            return
        assert isinstance(task, SearchTask)
        sweeps.write(self._place(task, result), searches.encoded(result))
        if (rest := task.rest(result.examples)) is not None:
            self._ready.append(rest)
        self._told(
            f"{task.name}: {result.examples} examples, {len(result.hits)} ways of failing"
            + (f"; {result.ended}" if result.ended else "")
        )
        self._meet(result)

    def died(self, task: Task[Any], why: str, memory: bool = False) -> None:
        if isinstance(task, ShrinkTask):
            self._deaths[task.name] += 1
            if self._deaths[task.name] < TRIALS:
                self._told(f"{task.name} died ({why}); it is run again")
                self._ready.append(task)
            else:
                how = f"the process that made it smaller died {TRIALS} times: {why}"
                self._keep(task.unshrunk(printable(how)))
        else:
            super().died(task, why, memory)

    def alone(self, task: Task[Any]) -> Task[Any]:
        return AloneSearch.of_task(task) if type(task) is SearchTask else task

    @property
    def left(self) -> float:
        of_drawn = sum(
            self._each(search.task) * (end - first)
            for search in self._open
            for first, end in search.gaps
        )
        return of_drawn + sum(self._each(task) * task.examples for task in self._draws)

    @property
    def finished(self) -> bool:
        waiting = (self.out, self._ready, self._shrink, self._open, self._draws, self._asks)
        return self._asked_all and not any(waiting)

    def _each(self, task: OfSearch) -> float:
        """Seconds of an example of a table."""
        seconds, examples = self._took[task.group]
        return seconds / examples if examples and seconds else EXAMPLE_SECONDS

    def _recorded(self, task: CasesTask) -> list[Searched]:
        """What parts of a search met, in the order of their cases."""
        return sorted(self._parts[table_of(task.stated), task.seed], key=lambda one: one.first)

    def _whole(self, task: CasesTask) -> bool:
        """Whether all that a search draws is recorded."""
        parts = self._recorded(task)
        return bool(parts) and not gaps(parts, parts[0].of)

    def _begin(self, task: CasesTask, cases: tuple[str, ...], digest: str) -> None:
        """Have the cases judged that no file has. Raises SweepError."""
        parts = self._recorded(task)
        if {one.digest for one in parts} - {digest}:
            raise SweepError(
                f"{task.name}: other cases were drawn than those of which {self.folder} holds a part; go "
                "on with the Hypothesis that drew those, or begin another folder"
            )
        # One that draws nothing is recorded, too.
        left = gaps(parts, len(cases)) if cases else [(0, 0)]
        if left:
            self._open.append(_Open(task, cases, digest, left))

    def _same_machine(self, versions: dict[str, str]) -> None:
        """Raise WrongMachine where what was taken in before had other versions."""
        check_versions(
            versions, {name: self._versions.get(name, v) for name, v in versions.items()}
        )
        self._versions |= versions

    def _meet(self, record: Searched) -> None:
        """Take in what was met, and have every new cause made small, once."""
        name = table_of(record.options)
        if record.corpus:
            self._corpus_cases[name] |= set(record.corpus)
        else:
            self._parts[name, record.seed].append(record)
        self.has_hits = self.has_hits or bool(record.hits)
        self._versions |= record.versions
        table = self._tables[name]
        took = self._took[table.group]
        took[0] += record.seconds
        took[1] += record.examples
        self.corpus.take(record)
        for hit in record.hits:
            if hit.cause in self.known:
                continue
            self.known.add(hit.cause)
            self._told(f"found: {hit.kind}, {hit.cause[1]} of {hit.cause[0]}: {hit.case}")
            task = self._shrinking(table, hit)
            if hit.status == "crash":
                self._keep(task.unshrunk("it ends its process"))
            else:
                self._shrink.append(task)

    def _shrinking(self, table: OfSearch, hit: Hit) -> ShrinkTask:
        words = (hit.cause, hit.case, hit.status, hit.kind, hit.message)
        return ShrinkTask(table.options, "", table.gradients, *words)

    def _keep(self, finding: SearchFinding) -> None:
        place = self.folder / SEARCH / FINDINGS
        if finding.script and not (place / f"{finding.id}.py").exists():
            sweeps.write(place / f"{finding.id}.py", finding.script.encode())
        sweeps.write(place / f"{finding.id}.json", searches.encoded(finding))

    def _place(self, task: SearchTask, met: Searched) -> Path:
        """The file of what a task met."""
        table = re.sub(r"[^\w.-]+", "-", task.group)[:80]
        options = hashlib.sha256(table_of(task.stated).encode()).hexdigest()[:8]
        name = f"seed-{met.seed}-{met.first:06}-{met.end:06}"
        if met.corpus:
            name = "corpus-" + hashlib.sha256("\n".join(met.corpus).encode()).hexdigest()[:12]
        return self.folder / SEARCH / f"{table}-{options}" / f"{name}.json"

    def _asks_of_others(self) -> list[SearchTask]:
        """The problems that are interesting in one table, as tasks of the other ones, but for those
        that these were asked."""
        tasks = []
        for name, table in self._tables.items():
            every = sorted(self.corpus.of_others(name) - self._corpus_cases[name])
            for first in range(0, len(every), AT_ONCE):
                some = tuple(every[first : first + AT_ONCE])
                words = (table.options, "", table.gradients, table.seed, some)
                tasks.append(SearchTask(*words, corpus=True))
        return tasks
