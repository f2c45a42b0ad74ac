"""Records: the result file of a run, one JSON object per line.

First a header, then one line per cell as it is judged, at last a footer with totals. A run that is
killed leaves a readable file without a footer; comparison needs nothing but these files, and works
on a machine that has none of the frameworks. Nothing is imported but the standard library and the
statuses.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from suite.judge.verdict import STATUSES

SCHEMA = 1

GRADES = ("exact", "fused", "eager", "stepwise", "working", "single", "none")
"""What `CellRecord.grade` can be, from the narrowest numerics class to no class at all."""


class RecordError(Exception):
    """A result file cannot be used; the message names the file and what to do."""


class NotARecordFile(RecordError):
    """The file does not start with a header of this schema."""


class TruncatedRun(RecordError):
    """The file has no footer: the run that wrote it did not finish."""


class BrokenLine(RecordError):
    """A line is not valid JSON, lacks a field, or contradicts the lines before it."""


class DuplicateCell(RecordError):
    """The same cell occurs twice."""


class DifferentCaseLists(RecordError):
    """Two files that are to be combined were run on different lists of cases."""


class IncompleteShards(RecordError):
    """The shards do not add up to one whole run."""


@dataclass(frozen=True)
class CellRecord:
    """One judged cell. `error_ratio` is max |error| / bound; None where nothing was measured."""

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
    seed: int = 0

    @property
    def key(self) -> tuple[str, str, str, str, str, str, int]:
        """What identifies the cell in a run, and across runs."""
        return (
            self.check,
            self.case,
            self.backend,
            self.implementation,
            self.mode,
            self.device,
            self.seed,
        )


@dataclass(frozen=True)
class Header:
    """What a run was: the suite's commit, versions, machine, options and the list of cells.

    `digest` identifies the cells that the whole, unsharded run consists of; `partial` is true where
    cells were left out by a filter; `shard` is "i/n" or "".
    """

    digest: str
    cells: int
    commit: str = ""
    dirty: bool = False
    suite_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    shard: str = ""
    started: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True)
class Run:
    """A loaded result file."""

    header: Header
    cells: tuple[CellRecord, ...]
    source: str = ""
    complete: bool = True

    @property
    def totals(self) -> Counter[str]:
        return Counter(cell.status for cell in self.cells)


def digest(keys: Iterable[tuple]) -> str:
    """A short digest of a list of cell keys, independent of their order."""
    joined = "\n".join(sorted("|".join(map(str, key)) for key in keys))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def new_folder(folder: Path) -> Path:
    """Make the folder. Raises FileExistsError where it holds anything: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} exists and is not an empty folder; name one that is absent or empty"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Writer:
    """Appends a run to a new file, flushing every line. Raises FileExistsError: nothing a user
    produced is overwritten."""

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A framework's message may hold what UTF-8 cannot; that must not end the run.
        self._file: TextIO = self.path.open("x", encoding="utf-8", errors="replace", newline="\n")
        self.totals: Counter[str] = Counter()
        self._line({"record": "header", **asdict(header)})

    def cell(self, record: CellRecord) -> None:
        self.totals[record.status] += 1
        self._line({"record": "cell", **asdict(record)})

    def close(self, finished: bool = True) -> None:
        """Write the footer, unless the run was cut short, and close the file."""
        if finished:
            self._line({"record": "footer", "totals": dict(self.totals)})
        self._file.close()

    def _line(self, entry: dict[str, Any]) -> None:
        # Strict JSON has no NaN or infinity: they are written as strings and read back.
        safe = {k: str(v) if _not_finite(v) else v for k, v in entry.items()}
        self._file.write(json.dumps(safe, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()


def load(path: str | Path, partial: bool = False) -> Run:
    """Read a result file.

    Raises NotARecordFile, BrokenLine, DuplicateCell, and TruncatedRun where there is no footer
    (unless `partial`, which reads what is there).
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise NotARecordFile(f"{path}: cannot be read: {error}") from error
    # Not splitlines: JSON leaves U+2028 and its like as they are within a string.
    lines = text.rstrip("\n").split("\n")
    header: Header | None = None
    cells: list[CellRecord] = []
    seen: set[tuple] = set()
    footer = False
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            kind = entry.pop("record")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if number == 1:
                raise NotARecordFile(
                    f"{path}: expected a result file written by --results; line 1 is no header"
                ) from error
            if number == len(lines) and partial:
                break
            if number == len(lines):
                raise TruncatedRun(
                    f"{path}: the last line is cut off; the run was killed. Run it again, or pass "
                    "--partial to read the cells that are there"
                ) from error
            raise BrokenLine(f"{path}: line {number} is not a record: {error}") from error
        if number == 1:
            if kind != "header" or entry.get("schema") != SCHEMA:
                raise NotARecordFile(
                    f"{path}: expected a header of schema {SCHEMA}, got {kind!r} of schema "
                    f"{entry.get('schema')!r}"
                )
            header = _read(Header, entry, path, number)
        elif kind == "cell":
            cell = _read(CellRecord, entry, path, number)
            if cell.status not in STATUSES:
                raise BrokenLine(
                    f"{path}: line {number}: unknown status {cell.status!r}; valid: "
                    f"{', '.join(STATUSES)}"
                )
            if cell.key in seen:
                raise DuplicateCell(f"{path}: line {number}: cell {' '.join(map(str, cell.key))}")
            seen.add(cell.key)
            cells.append(cell)
        elif kind == "footer" and number == len(lines):
            footer = True
            counted = Counter(cell.status for cell in cells)
            if entry.get("totals") != counted:
                raise BrokenLine(
                    f"{path}: the footer counts {entry.get('totals')}, the file holds "
                    f"{dict(counted)}: lines were lost or added"
                )
        else:
            raise BrokenLine(
                f"{path}: line {number}: expected a cell, or one footer at the end, got {kind!r}; "
                "was a file appended to another?"
            )
    assert header is not None
    if not footer and not partial:
        raise TruncatedRun(
            f"{path}: no footer: the run did not finish ({len(cells)} of {header.cells} cells). "
            "Run it again, or pass --partial to read the cells that are there"
        )
    if not header.shard and len(cells) < header.cells:
        # Whatever left cells out, -k or --maxfail or a file named alone: the run is not whole.
        header = replace(header, partial=True)
    return Run(header, tuple(cells), str(path), footer)


def merge(runs: list[Run]) -> Run:
    """The shards of one run as one run.

    Raises DifferentCaseLists, DuplicateCell, and IncompleteShards where cells are missing.
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
    cells = [cell for run in runs for cell in run.cells]
    keys = Counter(cell.key for cell in cells)
    twice = next((key for key, n in keys.items() if n > 1), None)
    if twice is not None:
        raise DuplicateCell(f"cell {' '.join(map(str, twice))} is in more than one shard")
    if digest(keys) != first.digest:
        raise IncompleteShards(
            f"the shards hold {len(cells)} cells that are not the whole run "
            f"(shards given: {', '.join(run.header.shard or 'whole' for run in runs)})"
        )
    header = replace(first, cells=len(cells), shard="")
    return Run(header, tuple(cells), "+".join(run.source for run in runs))


def _read(kind: type, entry: dict[str, Any], path: Path, number: int) -> Any:
    known = {f.name for f in fields(kind)}
    try:
        return kind(**{k: _number(k, v) for k, v in entry.items() if k in known})
    except (TypeError, ValueError) as error:
        raise BrokenLine(f"{path}: line {number}: {error}") from error


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _number(name: str, value: Any) -> Any:
    return float(value) if name in _FLOATS and isinstance(value, str) else value


_FLOATS = {"error_ratio", "rms", "max_abs_error", "seconds"}
