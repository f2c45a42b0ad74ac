"""The corpus: what the searches of a sweep share.

Every seed of every table is a search of its own. Causes that any of them meets are known to all: of
each one case is made small, once. Problems that are interesting in one table, because they fail or
because answers come near to their bounds, are asked of the implementations of the other tables at the
end.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite.records import searches, sweeps
from suite.records.lines import RecordError
from suite.records.searches import FINDINGS, SEARCH, Finding, Hit, Searched
from suite.spec.text import printable
from suite.sweep.plan import SweepPlan, search_options, seeds_of
from suite.sweep.searching import AloneSearch, SearchTask, ShrinkTask
from suite.sweep.source import Source
from suite.sweep.tasks import SweepError, Task, check_versions

EXAMPLE_SECONDS = 0.15
"""What an example takes, about, before any was judged."""

TRIALS = 2
"""How often a case is made smaller whose process dies: a smaller case may end its process, too."""

AT_ONCE = 50
"""Problems of the corpus that a task asks."""


class Searches(Source):
    """The searches of a plan, whose records lie below `folder`. `told` hears what is found.

    Raises SweepError where records cannot be read.
    """

    def __init__(self, plan: SweepPlan, folder: Path, told: Callable[[str], None]) -> None:
        super().__init__()
        self.folder, self._told = folder, told
        self._queue: deque[SearchTask] = deque()
        self._shrink: deque[ShrinkTask] = deque()
        self._again: deque[Task[Any]] = deque()
        self._asked_all = False
        self._each = EXAMPLE_SECONDS
        self.searched: list[Searched] = []
        self.known: set[searches.Cause] = set()
        self._versions: dict[str, str] = {}
        # A search of each table; of those that differ in seeds alone, of the first.
        self.tables: list[SearchTask] = []
        for table in plan.search:
            options = search_options(plan, table)
            made = [
                SearchTask(options, "", table.gradients, seed, table.examples)
                for seed in seeds_of(table.seeds)
            ]
            if not any(table.stated == made[0].stated for table in self.tables):
                self.tables.append(made[0])
            self._queue += [task for task in made if not self._place(task).is_file()]
        try:
            self.known |= {finding.cause for finding in searches.findings(folder)}
            self.searched += searches.searched(folder)
        except RecordError as error:
            raise SweepError(str(error)) from error
        for found in self.searched:
            self._versions |= found.versions
            self._meet(found)

    def next(self, seconds: float) -> Task[Any] | None:
        for waiting in (self._again, self._shrink, self._queue):
            if waiting:
                return waiting.popleft()
        if not self._asked_all and not any(isinstance(task, SearchTask) for task in self.out):
            self._asked_all = True
            self._queue += self._asks_of_others()
            return self._queue.popleft() if self._queue else None
        return None

    def take(self, task: Task[Any], result: Any) -> None:
        self._same_machine(result.versions)
        if isinstance(result, Finding):
            self._keep(result)
            return
        assert isinstance(task, SearchTask)
        sweeps.write(self._place(task), searches.encoded(result))
        self.searched.append(result)
        if result.examples:
            self._each = result.seconds / result.examples
        self._told(
            f"{task.name}: {result.examples} examples, {len(result.hits)} ways of failing"
            + (f"; {result.ended}" if result.ended else "")
        )
        self._meet(result)

    def died(self, task: Task[Any], why: str) -> None:
        if isinstance(task, ShrinkTask):
            self._deaths[task.name] += 1
            if self._deaths[task.name] < TRIALS:
                self._told(f"{task.name} died ({why}); it is run again")
                self._again.append(task)
            else:
                how = f"the process that made it smaller died {TRIALS} times: {why}"
                self._keep(task.unshrunk(printable(how)))
            return
        self.survive(task, why)
        assert isinstance(task, SearchTask)
        self._again.append(AloneSearch.of(task))
        self._told(f"{task.name} died ({why}); it is run again in a process that is watched")

    @property
    def left(self) -> float:
        return self._each * sum(task.examples for task in self._queue)

    @property
    def finished(self) -> bool:
        return self._asked_all and not (self.out or self._again or self._shrink or self._queue)

    @property
    def found(self) -> bool:
        """Whether any search met a way of failing."""
        return any(one.hits for one in self.searched)

    def write_corpus(self) -> None:
        """Write down the problems that are interesting, a line each; what was there is of this sweep.

        Raises OSError.
        """
        lines = [
            json.dumps(
                {"case": hit.case, "why": hit.kind, "of": hit.cause[0], "check": hit.cause[1]}
            )
            for one in self.searched
            for hit in one.hits
        ]
        nearest = sorted(
            (near for one in self.searched for near in one.near), key=lambda n: -n.ratio
        )
        lines += [
            json.dumps({"case": near.case, "why": "near its bound", "of": near.implementation,
                        "check": near.check, "ratio": near.ratio})
            for near in nearest
        ]  # fmt: skip
        path = self.folder / SEARCH / "corpus.jsonl"
        path.unlink(missing_ok=True)
        sweeps.write(path, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())

    def _same_machine(self, versions: dict[str, str]) -> None:
        """Raise WrongMachine where what was taken in before had other versions."""
        check_versions(
            versions, {name: self._versions.get(name, v) for name, v in versions.items()}
        )
        self._versions |= versions

    def _meet(self, found: Searched) -> None:
        """Have every new cause made small, once."""
        for hit in found.hits:
            if hit.cause in self.known:
                continue
            self.known.add(hit.cause)
            self._told(f"found: {hit.kind}, {hit.cause[1]} of {hit.cause[0]}: {hit.case}")
            task = self._shrinking(found, hit)
            if hit.status == "crash":
                self._keep(task.unshrunk("it ends its process"))
            else:
                self._shrink.append(task)

    def _shrinking(self, found: Searched, hit: Hit) -> ShrinkTask:
        table = next(table for table in self.tables if table.stated == found.options)
        return ShrinkTask(
            table.options,
            "",
            table.gradients,
            hit.cause,
            hit.case,
            hit.status,
            hit.kind,
            hit.message,
        )

    def _keep(self, finding: Finding) -> None:
        place = self.folder / SEARCH / FINDINGS
        if finding.script and not (place / f"{finding.id}.py").exists():
            sweeps.write(place / f"{finding.id}.py", finding.script.encode())
        sweeps.write(place / f"{finding.id}.json", searches.encoded(finding))

    def _place(self, task: SearchTask) -> Path:
        """The file of what a search met."""
        table = re.sub(r"[^\w.-]+", "-", task.group)[:80]
        options = hashlib.sha256(repr(task.stated).encode()).hexdigest()[:8]
        asked = hashlib.sha256("\n".join(task.cases).encode()).hexdigest()[:12]
        name = f"corpus-{asked}" if task.cases else f"seed-{task.seed}-{task.examples}"
        return self.folder / SEARCH / f"{table}-{options}" / f"{name}.json"

    def _asks_of_others(self) -> list[SearchTask]:
        """The problems that are interesting in one table, as tasks of the other ones."""
        tasks = []
        for table in self.tables:
            own = table.stated
            others = [one for one in self.searched if not one.corpus and one.options != own]
            cases = {near.case for one in others for near in one.near}
            cases |= {hit.case for one in others for hit in one.hits if hit.status != "crash"}
            every = sorted(cases)
            for first in range(0, len(every), AT_ONCE):
                some = tuple(every[first : first + AT_ONCE])
                task = SearchTask(table.options, "", table.gradients, table.seed, len(some), some)
                tasks += [] if self._place(task).is_file() else [task]
        return tasks
