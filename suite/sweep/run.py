"""Run a sweep: Ray runs every task that has no complete result file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any, Protocol

import msgspec

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.records import cells, lines, machine, searches
from attention_conformance.suite.records.files import new_file, new_folder
from attention_conformance.suite.records.sweeps import SWEEP
from attention_conformance.suite.run.progress import span
from attention_conformance.suite.spec.text import printable, uncoloured
from attention_conformance.suite.spec.vocabulary import BROKEN
from attention_conformance.suite.sweep.child import Outcome
from attention_conformance.suite.sweep.cluster import Lost
from attention_conformance.suite.sweep.plan import SweepPlan, Task, tasks

GREEN, FAILED, USAGE, UNFINISHED = 0, 1, 2, 3
"""Exit codes."""

USAGE_CODES = {"pytest": 4, "suite": 2}
"""The exit code of a child for invalid arguments, by module."""

SOURCES = (".py", ".toml", ".txt")
"""Suffixes of the suite's files on which records depend: code, manifests, lock files."""


class Engine(Protocol):
    """Runs tasks, as `suite.sweep.cluster.Cluster` does."""

    def submit(self, task: Task) -> Any: ...

    def ended(self, handles: Sequence[Any], seconds: float) -> list[Any]: ...

    def outcome(self, handle: Any) -> Outcome: ...

    def cancel(self, handle: Any) -> None: ...


class NotRecorded(Exception):
    """The result of a task is not kept; the message says why."""


class Sweep:
    """A plan and the folder of its result files: a new folder, or the folder of the same sweep.

    Raises UsageError if the folder holds anything else, OSError if the folder cannot be written.
    """

    def __init__(self, plan: SweepPlan, folder: Path) -> None:
        self.folder, self.tasks = folder, tasks(plan)
        self._versions: dict[tuple[str, str], str] = {}
        _claim(
            folder, {"digest": plan.digest, "source": source(), "plan": msgspec.to_builtins(plan)}
        )

    def path(self, task: Task) -> Path:
        """The result file of a task."""
        return self.folder / f"{task.name}.jsonl"

    def run(self, engine: Engine, hours: float = 0.0) -> int:
        """Run the unfinished tasks, for at most `hours` (0: no limit); returns the exit code.

        A result file that cannot be read is renamed, and its task runs again.

        Raises UsageError if the arguments of a task are invalid or another driver is at work on the
        folder, OSError if a file cannot be written.
        """
        with _only_driver(self.folder):
            return self._run(engine, hours)

    def _run(self, engine: Engine, hours: float) -> int:
        whole = [task for task in self.tasks if self._is_recorded(task)]
        left = [task for task in self.tasks if task not in whole]
        for task in whole:
            self._learn_versions(task, self.path(task))
        say(f"{len(self.tasks)} tasks, {len(whole)} of them recorded")
        began = time.monotonic()
        handles = {engine.submit(task): task for task in left}
        until = began + 3600 * hours if hours else math.inf
        lost = 0
        try:
            while handles and (now := time.monotonic()) < until:
                for handle in engine.ended([*handles], min(until - now, 60.0)):
                    task = handles.pop(handle)
                    place = f"{len(left) - len(handles)}/{len(left)} {task.title}"
                    try:
                        counts = self._take(task, engine.outcome(handle))
                        say(f"{place}: {_counted(counts)}")
                    except (Lost, NotRecorded) as error:
                        lost += 1
                        say(f"{place} is not recorded: {error}")
        finally:
            for handle in handles:
                engine.cancel(handle)
        say(f"{len(left) - len(handles) - lost} tasks recorded in {span(time.monotonic() - began)}")
        if handles or lost:
            reason = (
                f"--hours={hours:g} is reached" if handles else f"{lost} tasks are not recorded"
            )
            say(f"{reason}; the same command continues the sweep")
            return UNFINISHED
        say(f"tables: attention-conformance report {self.folder}")
        totals = [lines.totals(self.path(task)) or {} for task in self.tasks]
        return FAILED if any(map(_broken, totals)) else GREEN

    def _is_recorded(self, task: Task) -> bool:
        """Whether a task has a result file; renames a file that cannot be read."""
        path = self.path(task)
        if not path.is_file():
            return False
        try:
            schema_of(path).load(path)
        except lines.RecordError as error:
            aside = path.replace(path.with_suffix(".damaged"))
            say(f"{error}\nrenamed to {aside.name}; {task.title} runs again")
            return False
        return True

    def _take(self, task: Task, outcome: Outcome) -> dict[str, int]:
        """Save the result file of a task; returns its totals.

        Raises NotRecorded, UsageError and OSError.
        """
        how = f"exit code {outcome.code}; its last lines:\n{outcome.said}"
        if not outcome.records and outcome.code == USAGE_CODES[task.words[0]]:
            raise UsageError(f"{task.title}: {how}")
        part = self.path(task).with_suffix(".part")
        try:
            part.write_text(outcome.records, encoding="utf-8")
            totals = lines.totals(part)
            # A red run without failed cells: no record says why, so its output is shown.
            if totals is None or outcome.code != (FAILED if _broken(totals) else GREEN):
                raise NotRecorded(how)
            self._learn_versions(task, part)
            if task.release:
                part.write_text(_of_release(outcome.records, task.release), encoding="utf-8")
            part.replace(self.path(task))
        finally:
            part.unlink(missing_ok=True)
        return totals

    def _learn_versions(self, task: Task, path: Path) -> None:
        """Note the versions of a task. Raises NotRecorded if another task of the release differs."""
        for name, version in schema_of(path).read_header(path).versions.items():
            before = self._versions.setdefault((task.release, name), version)
            if version != before:
                raise NotRecorded(
                    f"its machine has {name} {version}, the sweep began with {before}; install the same "
                    "version on every machine"
                )


def source(root: Path = machine.ROOT) -> str:
    """A digest of the suite's files, committed or not."""
    digest = hashlib.sha256()
    files = glob("attention_conformance/**", root_dir=root, recursive=True)  # links, too
    for path in sorted(root / name for name in files):
        if path.suffix in SOURCES and path.is_file():
            data = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


def _claim(folder: Path, stated: dict[str, Any]) -> None:
    """Create the folder of a sweep, or check that it is of this sweep. Raises UsageError."""
    path = folder / SWEEP
    if not path.is_file():
        try:
            new_folder(folder)
        except FileExistsError as error:
            raise UsageError(
                f"--results={folder} is not empty and holds no sweep: name a new folder"
            ) from error
        with new_file(path) as file:
            json.dump(stated, file, indent=1)
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): name a new folder") from error
    for name, what in (("digest", "another plan"), ("source", "other files of the suite")):
        if before.get(name) != stated[name]:
            raise UsageError(
                f"{folder} was begun with {what}: name a new folder for this sweep (reports read several "
                "folders)"
            )


@contextmanager
def _only_driver(folder: Path) -> Iterator[None]:
    """Lock the folder of a sweep. Raises UsageError if another process has locked it."""
    with (folder / SWEEP).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another driver is at work on {folder}: wait for its end, or name a new folder"
            ) from error
        yield


def schema_of(path: Path) -> Any:
    """The schema of a result file: of a search, or of judged cells."""
    of_search = searches.FILE_SCHEMA.accepts(path)
    return searches.FILE_SCHEMA if of_search else cells.FILE_SCHEMA


def _of_release(text: str, release: str) -> str:
    """The text of a result file, with the release added to its header."""
    first, _, rest = text.partition("\n")
    header = json.loads(first)
    header["options"]["release"] = Path(release).stem if release.endswith(".txt") else release
    return f"{json.dumps(header, ensure_ascii=False)}\n{rest}"


def _broken(totals: dict[str, int]) -> bool:
    return any(totals.get(status) for status in BROKEN)


def _counted(totals: dict[str, int]) -> str:
    return ", ".join(f"{n} {status}" for status, n in totals.items()) or "nothing found"


def say(text: str) -> None:
    """Print without colours, and flush."""
    print(printable(uncoloured(text)), flush=True)
