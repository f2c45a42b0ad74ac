"""Records of random searches, which `--results` of `python -m suite search` writes.

A search writes its file at its end: the header says what was searched and how many cells were judged,
and each record is one way of failing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from suite.records import lines
from suite.records.lines import Content, FileSchema, NonNegativeInt, Writer
from suite.records.machine import Origin
from suite.spec.vocabulary import BROKEN

SCHEMA = 1
PREFIX = "search-"

Cause = tuple[str, str, str, str, str]
"""What makes two failures one: implementation, check, kind, dtype, and the message without its
numbers."""


@dataclass(frozen=True)
class SearchHeader(Origin):
    """One search: its options, how many cases it drew, its cells by status, and the digest of its cases.

    The counts are 0 if the process that searched died.
    """

    examples: NonNegativeInt = 0
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    digest: str = ""
    schema: str = f"{PREFIX}{SCHEMA}"


@dataclass(frozen=True)
class FoundRecord:
    """One way of failing: the case as it was drawn, the smallest case that fails so, and how often it
    failed.

    `dtype` is "" if failures of all dtypes are one. `said` is the message without its numbers.
    `repeats` is whether the case failed again when it was judged once more. `script` shows the failure
    without this project; it is "" if no script could be written.
    """

    implementation: str
    check: str
    kind: str
    dtype: str
    said: str
    status: str
    case: str
    drawn: str
    message: str
    times: NonNegativeInt = 1
    repeats: bool = True
    script: str = ""

    @property
    def cause(self) -> Cause:
        """What makes two failures one."""
        return (self.implementation, self.check, self.kind, self.dtype, self.said)

    @property
    def key(self) -> Cause:
        """What identifies a record in its file."""
        return self.cause


SearchRun = Content[SearchHeader, FoundRecord]
"""A loaded file of a search."""

FILE_SCHEMA = FileSchema(
    name="found",
    header=SearchHeader,
    record=FoundRecord,
    statuses=BROKEN,
    schema=SCHEMA,
    prefix=PREFIX,
    origin="`python -m suite search --results=FILE`",
)


def writer(path: str | Path, header: SearchHeader) -> Writer[SearchHeader, FoundRecord]:
    """A writer of a new file. Raises FileExistsError."""
    return Writer(path, FILE_SCHEMA, header)


def load(path: str | Path) -> SearchRun:
    """Read the file of a search. Raises what `lines.read` raises."""
    return lines.read(path, FILE_SCHEMA)
