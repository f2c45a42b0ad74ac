"""Records of what implementations compute: `attention-conformance explain --results` writes them.

A file has a line per implementation, with every measured fact by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attention_conformance.suite.records.lines import Content, FileSchema
from attention_conformance.suite.records.machine import Origin

READ = "read"
"""The only status of records of facts: a fact is no verdict."""


@dataclass(frozen=True)
class FactsHeader(Origin):
    """The header of a reading."""

    schema: str = "facts-1"


@dataclass(frozen=True)
class FactsRecord:
    """The answers of one implementation: `facts` by the names of rows (`suite.judge.diagnosis.facts`)."""

    backend: str
    implementation: str
    device: str
    facts: dict[str, str] = field(default_factory=dict, hash=False)
    status: str = READ

    @property
    def key(self) -> tuple[str, str, str]:
        """Backend, implementation and device: a file has one record of each."""
        return self.backend, self.implementation, self.device


FactsRun = Content[FactsHeader, FactsRecord]
"""A loaded file of facts."""

FILE_SCHEMA = FileSchema(
    name="facts",
    header=FactsHeader,
    record=FactsRecord,
    statuses=(READ,),
    origin="`attention-conformance explain --results=FILE`",
)

writer, load = FILE_SCHEMA.writer, FILE_SCHEMA.load
