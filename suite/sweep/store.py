"""The store: the folder of a sweep as its driver sees it. One process at a time writes into it.

What is recorded is what its files' names say (`suite.records.sweeps`): a driver that was killed is
continued from them, and nothing is asked twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from backends.registry import UsageError
from suite.records import machine, sweeps
from suite.records.files import new_file, new_folder
from suite.records.machine import PACKAGES
from suite.records.sweeps import CELLS, SWEEP, Batch
from suite.spec.text import printable
from suite.sweep.plan import Series, SweepPlan
from suite.sweep.tasks import Judged

SCHEMA = "sweep-1"

SPENT = "spent.json"

SOURCES = (".py", ".toml", ".txt")
"""Files of the suite on which records depend: code, manifests, lock files."""

Span = tuple[int, int]
"""The first of some neighbouring cells, and the one after the last."""


class Store:
    """The folder of a sweep, new or to be continued; a context that nobody else may enter meanwhile.

    Raises UsageError where the folder holds anything else, or another process writes into it, and OSError
    where it cannot be written.
    """

    def __init__(self, folder: str | Path, plan: SweepPlan) -> None:
        self.folder = Path(folder)
        self.commit, self.dirty = machine.commit()
        self._source = source()
        self.continued = (self.folder / SWEEP).is_file()
        if not self.continued:
            self._begin(plan)
        self._lock = (self.folder / SWEEP).open("r", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(f"another process sweeps into {self.folder}; wait for it") from error
        try:
            self._check(plan)
        except UsageError:
            self._lock.close()
            raise
        for part in self.folder.rglob("*.part"):
            part.unlink()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.close()

    def run(self, series: Series, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / CELLS / series.name(seed)

    def recorded(self, series: Series, seed: int) -> list[Batch]:
        """The files of a run. Raises RecordError."""
        return sweeps.batches(self.run(series, seed))

    def write(self, series: Series, judged: Judged) -> None:
        """Write down what came back. Raises OSError."""
        name = sweeps.file_name(judged.first, judged.end)
        sweeps.write(self.run(series, judged.seed) / name, judged.data)

    @property
    def core_seconds(self) -> float:
        """What was spent, also before the sweep was continued; 0 where nobody wrote it down."""
        try:
            return float(
                json.loads((self.folder / SPENT).read_text(encoding="utf-8"))["core_seconds"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def spend(self, core_seconds: float) -> None:
        """Write down what was spent. Raises OSError."""
        text = json.dumps({"core_seconds": round(core_seconds, 1)})
        sweeps.write(self.folder / SPENT, text.encode(), anew=True)

    def _begin(self, plan: SweepPlan) -> None:
        try:
            new_folder(self.folder)
        except FileExistsError as error:
            raise UsageError(f"--results={self.folder} holds something, and no sweep") from error
        stated = {"schema": SCHEMA, **machine.origin(), "source": self._source, "digest": plan.digest,
                  "plan": asdict(plan)}  # fmt: skip
        # Beside, then renamed: a folder whose sweep.json is cut off could never be continued.
        with new_file(self.folder / f"{SWEEP}.part") as file:
            json.dump(stated, file, indent=1, ensure_ascii=False)
        (self.folder / f"{SWEEP}.part").replace(self.folder / SWEEP)

    def _check(self, plan: SweepPlan) -> None:
        """Raise UsageError where the folder holds the sweep of another plan, or of another suite."""
        try:
            stated: dict[str, Any] = json.loads((self.folder / SWEEP).read_text(encoding="utf-8"))
            digest, schema = stated["digest"], stated["schema"]
            commit, files = stated["commit"], stated["source"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.folder / SWEEP} cannot be read: {error}") from error
        if schema != SCHEMA:
            raise UsageError(f"{self.folder}: expected schema {SCHEMA}, got {schema}")
        if digest != plan.digest:
            raise UsageError(
                f"{self.folder} holds the sweep of another plan; name a folder of its own for this one "
                "(reports read several)"
            )
        if commit != self.commit:
            raise UsageError(
                f"{self.folder} was begun with the suite's commit {commit[:12] or 'unknown'}, this is "
                f"{self.commit[:12] or 'unknown'}: continue it with that one, or begin another folder"
            )
        if files != self._source:
            raise UsageError(
                f"{self.folder} was begun with other files of the suite than this machine has: continue "
                "it with those, or begin another folder"
            )


def source(root: Path = machine.ROOT) -> str:
    """What identifies the files of the suite that a sweep is carried out with, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(p for name in PACKAGES for p in (root / name).rglob("*")):
        if path.suffix in SOURCES and path.is_file():
            data = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


class Spanned(Protocol):
    """What holds the cells `first` to `end` - 1."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...


def gaps(held: Iterable[Spanned], count: int) -> list[Span]:
    """Which of `count` cells nothing holds, of what is `held` in its order."""
    return list(_gaps(held, count))


def _gaps(held: Iterable[Spanned], count: int) -> Iterator[Span]:
    done = 0
    for one in held:
        if one.first > done:
            yield done, one.first
        done = one.end
    if done < count:
        yield done, count


@dataclass
class SweepLimits:
    """What ends a sweep before its end: hours of this process, and money, at what an hour of one core
    costs.

    Money is paid for all cores that the cluster has, busy or not; `spend` is told how many those are.
    What was spent before the sweep was continued counts; `core_seconds` begins with it.
    """

    hours: float = 0.0
    money: float = 0.0
    core_hour: float = 0.0
    seconds: float = 0.0
    core_seconds: float = 0.0

    def spend(self, seconds: float, cores: float) -> None:
        """So many seconds went by, in which there were so many cores."""
        self.seconds += seconds
        self.core_seconds += seconds * cores

    @property
    def spent(self) -> float:
        """The money that is spent."""
        return self.core_seconds / 3600 * self.core_hour

    @property
    def reached(self) -> str:
        """Which limit is reached, for people; "" for none."""
        if self.hours and self.seconds >= 3600 * self.hours:
            return f"--hours={self.hours:g}"
        if self.money and self.spent >= self.money:
            return f"--money={self.money:g}"
        return ""


def say(text: str) -> None:
    """Tell people, at once."""
    print(printable(text), flush=True)
