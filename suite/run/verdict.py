"""The verdict of a run as one JSON object, for programs that act on it.

A program reads the object and the exit code, and no text of the terminal. `VERSION` grows when a field
changes its meaning or goes; new fields leave it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.coverage import verdict_word
from attention_conformance.suite.spec.vocabulary import BROKEN, REFUSED

VERSION = 1

NOT_JUDGED = "not judged"
"""The verdict of a run that judged no cell, as after a usage error."""


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of a run, with facts for programs.

    - `verdict`: the word of the run's first line (`suite.records.coverage.verdict_word`) in small
      letters, or `NOT_JUDGED`; `exit_code` of the run
    - `reasons`: sentences, if the verdict follows from no single cell
    - `seed`: the seed of values and sizes, with which the run can be repeated
    - `cells`: the number of cells by status, and `missing` cells that have no verdict
    - `first_failure`: the first cell that fails, in the order of the run
    - `worst`: the cell with the greatest error ratio
    - `diagnoses`: sentences, the best first; `refusals`: the number of refused cells by message
    - `times`: times of `attention-conformance bench`, alone or for --time (see `suite.measure.verdict`)
    """

    verdict: str
    exit_code: int
    version: int = VERSION
    functions: tuple[str, ...] = ()
    seed: int = 0
    cells: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    first_failure: dict[str, Any] | None = None
    worst: dict[str, Any] | None = None
    diagnoses: tuple[str, ...] = ()
    refusals: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    times: tuple[dict[str, Any], ...] = ()


CELL_FIELDS = (
    "check",
    "case",
    "backend",
    "implementation",
    "mode",
    "status",
    "kind",
    "message",
    "error_ratio",
)


def run_verdict(
    exit_code: int, cells: Sequence[CellRecord], reasons: Sequence[str], **other_fields: Any
) -> RunVerdict:
    """Returns the verdict of a run with these records. It is "right" only if the exit code is 0.
    `other_fields` are further fields of `RunVerdict`."""
    failed = next((cell for cell in cells if cell.status in BROKEN), None)
    totals = Counter(cell.status for cell in cells)
    verdict = verdict_word(totals, [*reasons, *(["ended early"] if exit_code else [])]).lower()
    return RunVerdict(
        verdict if cells else NOT_JUDGED, exit_code,
        cells=dict(totals), reasons=tuple(dict.fromkeys(reasons)),
        first_failure=fields_of(failed), worst=fields_of(worst(cells)),
        refusals=dict(Counter(cell.message for cell in cells if cell.kind == REFUSED)),
        **other_fields,
    )  # fmt: skip


def worst(records: Sequence[Any]) -> Any:
    """Returns the record with the greatest error ratio, where NaN counts as infinity; None if no record
    has one."""

    def ratio(record: Any) -> float:
        return math.inf if math.isnan(record.error_ratio) else record.error_ratio

    return max((one for one in records if one.error_ratio is not None), key=ratio, default=None)


def fields_of(record: Any, names: Sequence[str] = CELL_FIELDS) -> dict[str, Any] | None:
    """Returns the fields of a record that have these names, by name; None if there is no record."""
    return None if record is None else {name: getattr(record, name) for name in names}


class VerdictOutput:
    """The outputs of a verdict: a new file, an open descriptor, both or none. It is false without
    outputs.

    `opened`: another process has created the file, which is not new. The constructor raises ValueError
    for a file that exists, and for a descriptor that is not open."""

    def __init__(self, path: str | None, descriptor: str | None, opened: bool = False) -> None:
        self._descriptors: list[int] = []
        if path:
            try:
                flags = 0 if opened else os.O_EXCL
                self._descriptors.append(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644))
            except OSError as error:
                raise ValueError(f"--verdict={path} cannot be made: {error}") from error
        if descriptor:
            try:
                self._descriptors.append(os.dup(int(descriptor)))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"--verdict-fd={descriptor} is no open descriptor: {error}"
                ) from error

    def __bool__(self) -> bool:
        return bool(self._descriptors)

    def write(self, verdict: RunVerdict) -> str:
        """Write the verdict to all outputs, and close them. A second call writes nothing. Returns the
        text of an error, "" for none. A pipe whose reader is gone is no error."""
        text, message = msgspec.json.encode(verdict) + b"\n", ""
        for descriptor in self._descriptors:
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(text)
            except BrokenPipeError:
                pass
            except OSError as error:
                message = f"the verdict cannot be written: {error.strerror}"
        self._descriptors = []
        return message
