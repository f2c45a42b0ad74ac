"""Folders of sweeps: the records of many runs in Parquet files, a folder for every run.

    FOLDER/sweep.json                    what is swept, from which commit
    FOLDER/cells/RUN/FIRST-END.parquet   the cells FIRST to END - 1 of a run, in its own order

A file has the columns of `CellRecord`, and in its metadata the header of its run, made on the machine
that judged: it says all that a result file's first line says. Files are written under another name and
then renamed, so that a file is whole or not there; what is recorded of a run is what its files' names
say.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from suite.records.cells import FORM, KEY, CellRecord, Header, Run, digest
from suite.records.lines import CHANGED, BrokenLine, NotARecordFile, OtherSchema, RecordError

SWEEP = "sweep.json"
CELLS = "cells"
INSTALLED = "installed"
"""The release that stands for what the machines have."""

HEADER = b"attention-conformance"
"""The key of a file's metadata under which the header stands."""

SWITCHES = ("audit", "optimized")
"""Options of a run that its title names where they are on."""

_NAME = re.compile(r"(\d{8,})-(\d{8,})\.parquet")

_TEXTS = pa.map_(pa.string(), pa.float64())

_TYPES: dict[str, pa.DataType] = {
    "error_ratio": pa.float64(), "rms": pa.float64(), "max_abs_error": pa.float64(),
    "seconds": pa.float64(), "seed": pa.int64(), "features": pa.list_(pa.string()), "ratios": _TEXTS,
}  # fmt: skip

SCHEMA = pa.schema([(f.name, _TYPES.get(f.name, pa.string())) for f in fields(CellRecord)])
"""The columns: those of a record. `facts`, whose values are of several types, are JSON texts."""


class Overlap(RecordError):
    """Two files of a run hold the same cells."""


@dataclass(frozen=True)
class Batch:
    """A file of records: the cells `first` to `end` - 1 of the run whose folder it lies in."""

    path: Path
    first: int
    end: int

    @property
    def header(self) -> Header:
        """The header of its run, from the machine that judged. Raises RecordError."""
        return _header(self.path)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Its records, or some of their columns. Raises RecordError."""
        try:
            table = pq.ParquetFile(self.path).read(columns=columns and [*columns])
        except (OSError, pa.ArrowException) as error:
            raise NotARecordFile(f"{self.path}: cannot be read: {error}") from error
        if len(table) != self.end - self.first:
            raise BrokenLine(
                f"{self.path}: expected {self.end - self.first} records, as its name says, got "
                f"{len(table)}; {CHANGED}"
            )
        return table


def file_name(first: int, end: int) -> str:
    """What the file of the cells `first` to `end` - 1 is called."""
    return f"{first:08}-{end:08}.parquet"


def encoded(header: Header, records: Iterable[CellRecord]) -> bytes:
    """A file of records."""
    rows = [asdict(record) | {"facts": _json(record.facts)} for record in records]
    for row in rows:
        row["ratios"] = list(row["ratios"].items())
    columns = {name: [_clean(row[name]) for row in rows] for name in SCHEMA.names}
    stated = SCHEMA.with_metadata({HEADER: _json(asdict(header)).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=stated), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def records(table: pa.Table) -> list[CellRecord]:
    """The records of a table with all columns. Raises BrokenLine."""
    cells = []
    for row in table.to_pylist():
        row |= {"ratios": dict(row["ratios"]), "facts": json.loads(row["facts"])}
        try:
            cells.append(msgspec.convert(row, CellRecord))
        except (ValueError, TypeError) as error:
            raise BrokenLine(f"a record of {row.get('case')}: {error}; {CHANGED}") from error
    return cells


def write(path: Path, data: bytes, anew: bool = False) -> None:
    """Write a file that is whole or not there; `anew` in the place of what it held.

    Raises FileExistsError where it is there otherwise, and OSError where it cannot be written, as on a
    full disk; then nothing is left of it.
    """
    if not anew and path.exists():
        raise FileExistsError(f"{path} exists and is not overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_sweep(path: Path) -> bool:
    """Whether a path is the folder of a sweep, of some of its runs, or of one."""
    if not path.is_dir():
        return False
    return (path / SWEEP).is_file() or any(_NAME.fullmatch(f.name) for f in path.rglob("*.parquet"))


def batches(folder: Path) -> list[Batch]:
    """The files of one run's folder, in the order of its cells. Raises Overlap."""
    files = []
    for path in folder.glob("*.parquet"):
        if match := _NAME.fullmatch(path.name):
            files.append(Batch(path, int(match[1]), int(match[2])))
    files.sort(key=lambda batch: batch.first)
    for one, other in pairwise(files):
        if other.first < one.end:
            raise Overlap(f"{one.path} and {other.path} hold the same cells; remove one of them")
    return files


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep: its folder, its files, and the header of the first of them."""

    folder: Path
    batches: tuple[Batch, ...]
    header: Header

    @property
    def recorded(self) -> int:
        """How many cells are recorded."""
        return sum(batch.end - batch.first for batch in self.batches)

    @property
    def complete(self) -> bool:
        """Whether every cell is recorded."""
        return self.recorded == self.header.cells

    @property
    def release(self) -> str:
        """The release that was judged."""
        return release_of(self.header)

    @property
    def seed(self) -> int:
        """The seed of the values."""
        return seed_of(self.header)

    @property
    def title(self) -> str:
        """Which run it is, but for the release and the seed."""
        return title_of(self.header)

    def check(self) -> None:
        """Raise BrokenLine where all cells are recorded and are not those that the header's digest speaks
        of."""
        if not self.complete:
            return
        keys = [key for batch in self.batches for key in _rows(batch.table(KEY), KEY)]
        if digest(keys) != self.header.digest:
            raise BrokenLine(f"{self.folder}: its cells are not those of its header; {CHANGED}")

    def load(self) -> Run:
        """Its records as a run, as they would be read from a result file. Raises RecordError."""
        self.check()
        cells = tuple(cell for batch in self.batches for cell in records(batch.table()))
        return Run(self.header, cells, str(self.folder), self.complete)


def title_of(header: Header) -> str:
    """Which run a header is of, but for the release and the seed: "torch tf standard", in one mode, of
    some implementations or dtypes."""
    options = header.options
    words = [*options.get("backend", ()), options.get("level", "")]
    mode = options.get("mode", "")
    words += [mode] if mode != "eager" else []
    words += [*options.get("implementation", ()), *options.get("dtype", ())]
    words += switched_on(options)
    return " ".join(map(str, words))


def switched_on(options: Mapping[str, Any]) -> list[str]:
    """Which of the `SWITCHES` a run was asked for."""
    return [name for name in SWITCHES if options.get(name)]


def release_of(header: Header) -> str:
    """The release that a run judged, `INSTALLED` for what the machine had."""
    return str(header.options.get("release") or INSTALLED)


def seed_of(header: Header) -> int:
    """The seed of a run's values."""
    return int(header.options.get("seed", 0))


def runs(folder: str | Path) -> Iterator[SweptRun]:
    """The runs below a folder, in the order of their names. Raises RecordError."""
    folder = Path(folder)
    places = sorted(
        {path.parent for path in folder.rglob("*.parquet") if _NAME.fullmatch(path.name)}
    )
    for place in places:
        files = batches(place)
        yield SweptRun(place, tuple(files), files[0].header)


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _header(path: Path) -> Header:
    try:
        stated = (pq.read_schema(path).metadata or {}).get(HEADER)
    except (OSError, pa.ArrowException) as error:
        raise NotARecordFile(f"{path}: cannot be read: {error}") from error
    if stated is None:
        raise NotARecordFile(f"{path}: expected a file written by `python -m suite sweep`")
    entry = json.loads(stated)
    if entry.get("schema") != FORM.schema:
        raise OtherSchema(
            f"{path}: expected schema {FORM.schema}, got {entry.get('schema')}: another version of the "
            "suite wrote the file"
        )
    try:
        return msgspec.convert(entry, Header)
    except ValueError as error:
        raise BrokenLine(f"{path}: {error}; {CHANGED}") from error


def _json(value: Any) -> str:
    """JSON as Python writes it, NaN and infinity included; the same for the same value."""
    return json.dumps(value, ensure_ascii=False)


def _clean(value: Any) -> Any:
    """A text that UTF-8 has bytes for; any other value as it is."""
    return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value
