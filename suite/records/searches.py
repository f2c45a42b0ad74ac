"""Records of random searches: `attention-conformance search --results` writes them.

A search writes its file at its end. The header holds options and counts; each record is one kind of
failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attention_conformance.suite.records.lines import Content, FileSchema, NonNegativeInt
from attention_conformance.suite.records.machine import Origin
from attention_conformance.suite.spec.vocabulary import BROKEN

Cause = tuple[str, str, str, str, str]
"""The cause of a failure: implementation, check, kind, dtype, and the message without its numbers.
Failures with equal causes are one record."""


@dataclass(frozen=True)
class SearchHeader(Origin):
    """The header of a search.

    `examples` is the number of drawn cases, `statuses` counts cells. The counts are 0 if the process of
    the search died.
    """

    examples: NonNegativeInt = 0
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    schema: str = "search-3"


@dataclass(frozen=True)
class FoundRecord:
    """One kind of failure.

    - `case`: the smallest case that fails in the same way as the drawn one
    - `dtype`: "" if failures of all dtypes are one record
    - `said`: the message without its numbers
    - `times`: the number of failures
    - `script`: a script that shows the failure, or ""
    """

    implementation: str
    check: str
    kind: str
    dtype: str
    said: str
    status: str
    case: str
    message: str
    times: NonNegativeInt = 1
    script: str = ""

    @property
    def cause(self) -> Cause:
        """The fields that make two failures one record."""
        return (self.implementation, self.check, self.kind, self.dtype, self.said)

    key = cause


SearchRun = Content[SearchHeader, FoundRecord]
"""A loaded file of a search."""

FILE_SCHEMA = FileSchema(
    name="found",
    header=SearchHeader,
    record=FoundRecord,
    statuses=BROKEN,
    origin="`attention-conformance search --results=FILE`",
)

load, save = FILE_SCHEMA.load, FILE_SCHEMA.save
