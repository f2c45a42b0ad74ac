"""Records of machine-made mutants: what `--results` of `python -m suite mutants --framework` writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from suite.records import lines
from suite.records.lines import Form, RecordError, Whole, Writer

SCHEMA = 1
PREFIX = "mutants-"

STATUSES = ("killed", "survived", "timed-out", "not-imported", "error")
"""What becomes of a mutant: a run that ends red, green, or not in time; a framework that cannot be
imported any more; or a run that could not be made, whose message says why."""


@dataclass(frozen=True)
class FaultRecord:
    """One change in one module of a framework, and what a run of the suite made of it.

    `line` and `start` say where (line, and character of the file), `old` became `new`. `check`, `case`
    and `implementation` are those of the first cell that failed.
    """

    framework: str
    version: str
    module: str
    function: str
    line: Whole
    start: Whole
    change: str
    old: str
    new: str
    level: str
    status: str
    check: str = ""
    case: str = ""
    implementation: str = ""
    message: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, int, str, str, str]:
        """What identifies a change, at a level."""
        return (self.module, self.version, self.start, self.old, self.new, self.level)


VERDICTS = {
    "equivalent": "it changes no answer on the device that was asked",
    "not attention": "it changes what people read, or what is stored: messages, configurations",
    "missing": "a case or a check is owed",
}
"""What a survivor is, once somebody has read it."""

SURVIVORS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Survivor:
    """A mutant that survived and was read: which it is, one of `VERDICTS`, and why."""

    module: str
    version: str
    line: Whole
    old: str
    new: str
    verdict: str
    why: str

    def matches(self, record: FaultRecord) -> bool:
        """Whether this speaks of the mutant; runs of blanks in a change count as one."""
        mine = (self.module, self.version, self.line, self.old, self.new)
        old, new = (" ".join(text.split()) for text in (record.old, record.new))
        return mine == (record.module, record.version, record.line, old, new)


class _Survivors(msgspec.Struct, forbid_unknown_fields=True):
    survivor: list[Survivor] = []


def survivors(path: Path = SURVIVORS) -> tuple[Survivor, ...]:
    """The survivors that were read. Raises RecordError for what is no such file."""
    try:
        found = msgspec.toml.decode(path.read_text(encoding="utf-8"), type=_Survivors).survivor
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    for n, survivor in enumerate(found, 1):
        if survivor.verdict not in VERDICTS:
            raise RecordError(
                f"{path}: survivor {n}: unknown verdict {survivor.verdict!r}; valid: "
                f"{', '.join(VERDICTS)}"
            )
    return tuple(found)


def verdict_of(record: FaultRecord, read: Iterable[Survivor]) -> tuple[str, str]:
    """The verdict on a mutant that survived, and why; ("unread", "") where nobody has read it."""
    mine = next((survivor for survivor in read if survivor.matches(record)), None)
    return ("unread", "") if mine is None else (mine.verdict, mine.why)


@dataclass(frozen=True)
class FaultHeader:
    """Which mutants were made, and where: `options` of the command, versions, machine."""

    commit: str = ""
    dirty: bool = False
    suite_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    schema: str = f"{PREFIX}{SCHEMA}"


@dataclass(frozen=True)
class FaultRun:
    """A loaded file of mutants."""

    header: FaultHeader
    records: tuple[FaultRecord, ...]
    source: str = ""


def _as_it_is(record: FaultRecord) -> FaultRecord:
    return record


FORM = Form(
    name="mutant",
    header=FaultHeader,
    record=FaultRecord,
    statuses=STATUSES,
    schema=SCHEMA,
    prefix=PREFIX,
    origin="`python -m suite mutants --framework=NAME --results=FILE`",
    upgrade=_as_it_is,
)


def writer(path: str | Path, header: FaultHeader) -> Writer[FaultHeader, FaultRecord]:
    """A writer of a new file. Raises FileExistsError."""
    return Writer(path, FORM, header)


def load(path: str | Path, partial: bool = False) -> FaultRun:
    """Read a file of mutants. Raises what `lines.read` raises."""
    content = lines.read(path, FORM, partial)
    return FaultRun(content.header, content.records, str(path))
