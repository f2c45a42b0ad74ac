"""Records of machine-made mutants, which `--results` writes, and the verdicts on survivors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from suite.records.lines import Content, FileSchema, NonNegativeInt, RecordError
from suite.records.machine import Origin

STATUSES = ("killed", "survived", "timed-out", "not-imported", "error")
"""What becomes of a mutant: a run that ends red, green, or not in time; a framework that cannot be
imported any more; or a run that could not be made, whose message says why."""

SEEN = ("killed", "timed-out")
"""Who is seen: a run that does not end in time is red, too."""


@dataclass(frozen=True)
class FaultRecord:
    """One change in one module of a framework, and what a run of the suite made of it.

    `line` and `start` say where (line, and character of the file), `old` became `new`. `backend` is the
    last that was asked; `check`, `case` and `implementation` are those of its first cell that failed.
    """

    framework: str
    version: str
    module: str
    function: str
    line: NonNegativeInt
    start: NonNegativeInt
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
    backend: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """The old and the new text, each in one line."""
        return " ".join(self.old.split()), " ".join(self.new.split())

    @property
    def described(self) -> str:
        """The change, in a line."""
        old, new = self.texts
        return f"{old} -> {new or 'nothing'}"

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
    line: NonNegativeInt
    old: str
    new: str
    verdict: str
    why: str

    def matches(self, record: FaultRecord) -> bool:
        """Whether this speaks of the mutant; runs of blanks in a change count as one."""
        mine = (self.module, self.version, self.line, self.old, self.new)
        return mine == (record.module, record.version, record.line, *record.texts)


class _Survivors(msgspec.Struct, forbid_unknown_fields=True):
    survivor: list[Survivor] = []


def survivors(path: Path = SURVIVORS) -> tuple[Survivor, ...]:
    """The survivors that were read. Raises RecordError for what is no such file."""
    try:
        entries = msgspec.toml.decode(path.read_text(encoding="utf-8"), type=_Survivors).survivor
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    for n, survivor in enumerate(entries, 1):
        if survivor.verdict not in VERDICTS:
            raise RecordError(
                f"{path}: survivor {n}: unknown verdict {survivor.verdict!r}; valid: "
                f"{', '.join(VERDICTS)}"
            )
    return tuple(entries)


def verdict_of(record: FaultRecord, read: Iterable[Survivor]) -> tuple[str, str]:
    """The verdict on a mutant, and why: "unread" where nobody has read a survivor, "" for others."""
    if record.status != "survived":
        return "", ""
    mine = next((survivor for survivor in read if survivor.matches(record)), None)
    return ("unread", "") if mine is None else (mine.verdict, mine.why)


@dataclass(frozen=True)
class FaultHeader(Origin):
    """Which mutants were made, and where."""

    schema: str = "mutants-1"


FaultRun = Content[FaultHeader, FaultRecord]
"""A loaded file of mutants."""


FILE_SCHEMA = FileSchema(
    name="mutant",
    header=FaultHeader,
    record=FaultRecord,
    statuses=STATUSES,
    origin="`python -m tests.mutation --framework=NAME --results=FILE`",
)

writer, load = FILE_SCHEMA.writer, FILE_SCHEMA.load
