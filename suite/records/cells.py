"""Records of judged cells: `pytest --results` writes them, reports read and merge them.

A file has a header, a line per judged cell, and a footer with totals (`suite.records.lines`). A record
has a field for every fact that a report needs. So reports parse neither case ids nor messages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from reprlib import repr as brief
from typing import TextIO

from attention_conformance.suite.records import diagnoses
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.lines import (
    Content,
    DuplicateCell,
    Fact,
    FileSchema,
    NonNegativeInt,
    RecordError,
    Seed,
)
from attention_conformance.suite.records.machine import Origin
from attention_conformance.suite.spec.vocabulary import STATUSES

KEY = ("check", "case", "backend", "implementation", "mode", "device", "seed")
"""The fields that identify a cell in a run, and across runs."""


class DifferentCaseLists(RecordError):
    """Two files cannot be merged: their runs had different lists of cells."""


class IncompleteShards(RecordError):
    """The shards do not add up to one whole run."""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One judged cell.

    - `question`: the name of the election question, "" in other cells
    - `features`: the features that the case needs (`suite.spec.operators.WORDS`)
    - `facts`: sizes, mask and options of the case by name (`suite.spec.case.Case.facts`)
    - `error_ratio`: max |error| / bound, None if nothing was measured
    - `ratios`: error ratios by operand or parameter, if several arrays were judged
    - `observed`: the answer to an election question, or a grade of invariance
    - `kernels`: the kernels that a compiled implementation ran, as its framework names them
    - `native`: the answer of the framework's own attention to the question, or ""
    - `inherited`: the finding that makes a failure of a user function known (`suite.run.steps`)
    """

    case: str
    check: str
    backend: str
    implementation: str
    mode: str
    device: str
    dtype: str
    status: str
    kind: str = ""
    message: str = ""
    error_ratio: float | None = None
    rms: float | None = None
    max_abs_error: float | None = None
    grade: str = ""
    observed: str = ""
    seconds: float = 0.0
    group: str = ""
    numerics: str = ""
    seed: Seed = 0
    operator: str = ""
    question: str = ""
    features: tuple[str, ...] = ()
    kernels: str = ""
    native: str = ""
    ratios: dict[str, float] = field(default_factory=dict, hash=False)
    facts: dict[str, Fact] = field(default_factory=dict, hash=False)
    inherited: str = ""

    def __post_init__(self) -> None:
        # Imports NumPy, which only a reader of records needs.
        from attention_conformance.suite.spec.dtypes import DTYPES

        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {brief(self.dtype)}; valid: {', '.join(DTYPES)}")
        if self.seed >= 2**64:
            raise ValueError("Expected `int` of 64 bits - at `$.seed`")
        for ratio in (self.error_ratio, *self.ratios.values()):
            if ratio is not None and ratio < 0:
                raise ValueError(f"expected an error ratio from 0 on, got {ratio:g}")

    @property
    def name(self) -> str:
        """The implementation with its backend: "torch:sdpa"."""
        return f"{self.backend}:{self.implementation}"

    @property
    def key(self) -> tuple[str, str, str, str, str, str, int]:
        """The values of the fields `KEY`."""
        return _key(self)


_key: Callable[[CellRecord], tuple[str, str, str, str, str, str, int]] = attrgetter(*KEY)


@dataclass(frozen=True)
class Header(Origin):
    """The header of a run.

    `digest` identifies the list of cells of the whole run, before it is sharded. `partial` is true if a
    filter left cells out. `shard` is "i/n" or "". `controls` are textbook implementations
    ("torch:eager"), which say more of the suite than of a framework. `again` are the options, besides
    backend and mode, with which a command judges a cell of the run again.
    """

    digest: str
    cells: NonNegativeInt
    partial: bool = False
    shard: str = ""
    controls: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    schema: int = 2


FILE_SCHEMA = FileSchema(
    name="cell",
    header=Header,
    record=CellRecord,
    statuses=STATUSES,
    origin="`pytest suite --results=FILE`",
    remarks={diagnoses.LINE_NAME: DiagnosisRecord},
)


@dataclass(frozen=True)
class Run:
    """A loaded result file."""

    header: Header
    cells: tuple[CellRecord, ...]
    source: str = ""
    complete: bool = True
    diagnoses: tuple[DiagnosisRecord, ...] = ()

    @property
    def totals(self) -> Counter[str]:
        """The number of cells by status."""
        return Counter(cell.status for cell in self.cells)

    def save(self, path: str | Path, file: TextIO | None = None) -> Path:
        """Write the run to a new file, and return its path. `file`: the file, if it is open already.
        Raises FileExistsError."""
        content = Content(self.header, self.cells, str(path), self.complete, self.diagnoses)
        return FILE_SCHEMA.save(path, content, file)


writer = FILE_SCHEMA.writer


def load(path: str | Path, partial: bool = False) -> Run:
    """Read a result file, and return its run. With `partial` the file of an unfinished run is read, too.
    Raises the errors of `FileSchema.load`."""
    content = FILE_SCHEMA.load(path, partial)
    header = content.header
    if content.complete and not header.shard and len(content.records) < header.cells:
        # -k, --maxfail or the name of one test file left cells out.
        header = replace(header, partial=True)
    return Run(header, content.records, content.source, content.complete, content.remarks)


def digest(keys: Iterable[tuple]) -> str:
    """Returns a short digest of a list of cell keys, independent of their order."""
    joined = "\n".join(sorted("|".join(map(str, key)) for key in keys))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def merge(runs: list[Run]) -> Run:
    """Merge the shards of one run, and return the whole run.

    Raises DifferentCaseLists, DuplicateCell, and IncompleteShards if cells are missing.
    """
    if not runs:
        raise IncompleteShards("no result files given")
    first = runs[0].header
    for run in runs[1:]:
        if run.header.digest != first.digest:
            raise DifferentCaseLists(
                f"{runs[0].source} and {run.source} were run on different lists of cells "
                f"({first.digest} and {run.header.digest}); shards must share every option but the "
                "shard"
            )
    merged = [cell for run in runs for cell in run.cells]
    counts = Counter(cell.key for cell in merged)
    duplicate = next((key for key, count in counts.items() if count > 1), None)
    if duplicate is not None:
        raise DuplicateCell(f"cell {' '.join(map(str, duplicate))} is in more than one shard")
    if digest(cell.key for cell in merged) != first.digest:
        raise IncompleteShards(
            f"the shards hold {len(merged)} cells that are not the whole run "
            f"(shards given: {', '.join(run.header.shard or 'whole' for run in runs)})"
        )
    header = replace(first, cells=len(merged), shard="")
    diagnoses = tuple(diagnosis for run in runs for diagnosis in run.diagnoses)
    return Run(header, tuple(merged), "+".join(run.source for run in runs), diagnoses=diagnoses)
