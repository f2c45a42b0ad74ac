"""Reader and writer of result files, one JSON object per line: a header, records, remarks, a footer.

A `FileSchema` describes a kind of file; one writer and one reader serve every schema. Each record is
written at once, so a killed run leaves a readable file without a footer. NaN and infinity are written as
strings and read back as numbers.

Every defect of a file raises a `RecordError`. The message names the file and the line, says what was
expected and what was found, and what to do.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Any, ClassVar, Generic, Protocol, TextIO, TypeVar

import msgspec

from attention_conformance.suite.records.files import new_file, require_regular_file

NonNegativeInt = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A count. The limit is that of 64-bit columns."""

Seed = Annotated[int, msgspec.Meta(ge=0)]
"""A seed, of 64 bits without a sign. msgspec has no limit beyond 2**63; records have one."""

Fact = str | Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | float | bool | None
"""One fact about a case: a size, a word, a number, a flag, or None."""

CHANGED_FILE = "the file was changed after it was written: restore it, or run again"
"""The end of messages about a file that was changed after it was written."""


class RecordError(Exception):
    """A result file cannot be used; the message names the file and what to do."""


class NotARecordFile(RecordError):
    """The file does not start with a header of the expected schema."""


class OtherSchema(NotARecordFile):
    """A version of the suite with another schema wrote the file."""


class TruncatedRun(RecordError):
    """The file has no footer: the run that wrote it did not finish."""


class BrokenLine(RecordError):
    """A line is not valid JSON, lacks a field, or contradicts the lines before it."""


class DuplicateCell(RecordError):
    """The same cell, or the same measurement, occurs twice."""


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Record(Dataclass, Protocol):
    """The fields that the reader needs in a record."""

    @property
    def status(self) -> str: ...

    @property
    def key(self) -> tuple[Hashable, ...]: ...


H = TypeVar("H", bound=Dataclass)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class FileSchema(Generic[H, R]):
    """A kind of result file.

    `name` marks the lines of records. `header` and `record` are dataclasses, `statuses` the valid
    statuses of a record. The default of the header's field `schema` is a prefix and a number. `origin` is
    the command that writes such files. `remarks` are dataclasses of lines that count in no total, by the
    name that marks them.
    """

    name: str
    header: type[H]
    record: type[R]
    statuses: tuple[str, ...]
    origin: str
    remarks: Mapping[str, type[Dataclass]] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The schema in headers of such files: a prefix and a number. It is the default of the header's
        field `schema`."""
        return str(self.header.__dataclass_fields__["schema"].default)

    def is_kind(self, schema: Any) -> bool:
        """True if `schema` is that of such files in any version: the same prefix, and any number."""
        prefix = self.schema.rstrip("0123456789")
        return re.fullmatch(prefix + r"\d{1,9}", str(schema)) is not None

    def writer(self, path: str | Path, header: H, file: TextIO | None = None) -> Writer[H, R]:
        """Returns a writer of a new file. `file`: the file, if it is open already. Raises
        FileExistsError, and RecordError if the header cannot be written."""
        return Writer(path, self, header, file)

    def save(self, path: str | Path, content: Content[H, R], file: TextIO | None = None) -> Path:
        """Write a new file, with a footer if `content` is complete. Returns the path. Raises as
        `Writer`."""
        writer = self.writer(path, content.header, file)
        for record in content.records:
            writer.write(record)
        for remark in content.remarks:
            name = next(name for name, kind in self.remarks.items() if isinstance(remark, kind))
            writer.remark(name, remark)
        writer.close(content.complete)
        return writer.path

    def load(self, path: str | Path, partial: bool = False) -> Content[H, R]:
        """Read a result file, and return its content. With `partial` a file without footer is read, too.

        Raises NotARecordFile, OtherSchema, BrokenLine, DuplicateCell and TruncatedRun.
        """
        path = Path(path)
        first, *lines = _lines(path)
        header = self._header(path, first)
        records: list[R] = []
        remarks: list[Any] = []
        seen_keys: set[tuple[Hashable, ...]] = set()
        complete = False
        for number, line in enumerate(lines, 2):
            where, is_last = f"{path}: line {number}", number == len(lines) + 1
            try:
                kind = _LINE_KIND.decode(line).record
            except (ValueError, RecursionError) as error:
                if is_last and partial:
                    break
                if is_last:
                    raise TruncatedRun(
                        f"{path}: the last line is cut off or damaged; the run was killed. Run it again, "
                        "or pass --partial to read what is there"
                    ) from error
                raise BrokenLine(
                    f"{where} is not a record: expected a JSON object, got {error}; {CHANGED_FILE}"
                ) from error
            if kind == self.name:
                record = _decode(where, line, self.record)
                self._check(where, record, seen_keys)
                seen_keys.add(record.key)
                records.append(record)
            elif kind in self.remarks:
                remarks.append(_decode(where, line, self.remarks[kind]))
            elif kind == "footer" and is_last:
                _check_totals(where, _decode(where, line, _Footer).totals, records)
                complete = True
            else:
                raise BrokenLine(
                    f"{where}: expected a {self.name}, or one footer at the end, got {brief(kind)}; "
                    "was a file appended to another?"
                )
        if not complete and not partial:
            raise TruncatedRun(
                f"{path}: no footer: the run did not finish, {len(records)} records are there. Run it "
                "again, or pass --partial to read them"
            )
        return Content(header, tuple(records), str(path), complete, tuple(remarks))

    def read_header(self, path: str | Path) -> H:
        """Read and return only the header of a result file. Raises NotARecordFile and OtherSchema."""
        path = Path(path)
        return self._header(path, _lines(path, first=True)[0])

    def accepts(self, path: str | Path) -> bool:
        """True if a file begins with a header of this schema, in any version."""
        try:
            line_kind = _LINE_KIND.decode(_lines(Path(path), first=True)[0])
        except (NotARecordFile, ValueError, RecursionError):
            return False
        return line_kind.record == "header" and self.is_kind(line_kind.schema)

    def _header(self, path: Path, line: str) -> H:
        """Returns the header in line 1. Raises NotARecordFile and OtherSchema."""
        expected = f"{path}: expected a result file written by {self.origin}"
        try:
            line_kind = _LINE_KIND.decode(line)
        except (ValueError, RecursionError) as error:
            raise NotARecordFile(f"{expected}; line 1 is no header") from error
        if line_kind.record != "header" or not self.is_kind(line_kind.schema):
            raise NotARecordFile(
                f"{expected}, whose line 1 is a header of schema {self.schema}; got "
                f"{brief(line_kind.record)} of schema {brief(line_kind.schema)}"
            )
        if str(line_kind.schema) != self.schema:
            raise OtherSchema(
                f"{path}: expected schema {self.schema}, got {line_kind.schema}: another version of the "
                "suite wrote the file; run again, or read the file with that version"
            )
        return _decode(f"{path}: line 1", line, self.header)

    def _check(self, where: str, record: R, seen_keys: Collection[tuple[Hashable, ...]]) -> None:
        """Raise BrokenLine for an unknown status, DuplicateCell if the record's key is in `seen_keys`."""
        if record.status not in self.statuses:
            raise BrokenLine(
                f"{where}: unknown status {brief(record.status)}; valid: {', '.join(self.statuses)}; "
                f"{CHANGED_FILE}"
            )
        if record.key in seen_keys:
            raise DuplicateCell(
                f"{where}: {' '.join(map(str, record.key))} occurs twice; {CHANGED_FILE}"
            )


@dataclass(frozen=True)
class Content(Generic[H, R]):
    """The content of the file `source`. `complete`: True if the file has its footer. `remarks`: further
    lines, such as diagnoses, which the totals of the footer do not count."""

    header: H
    records: tuple[R, ...]
    source: str = ""
    complete: bool = True
    remarks: tuple[Any, ...] = ()


class _LineKind(msgspec.Struct):
    """The fields that say what a line is."""

    record: Any
    schema: Any = None


class _Footer(msgspec.Struct):
    """The last line: the number of records by status."""

    totals: dict[str, int]


_LINE_KIND = msgspec.json.Decoder(_LineKind)


class Writer(Generic[H, R]):
    """Writes the lines of a new result file, and flushes each. The constructor creates the file, unless
    it is open already (`file`), and writes the header. `totals`: the numbers of written records by
    status.

    Raises FileExistsError if the file exists, and RecordError if a line cannot be written.
    """

    def __init__(
        self, path: str | Path, file_schema: FileSchema[H, R], header: H, file: TextIO | None = None
    ) -> None:
        self.path = Path(path)
        self.totals: Counter[str] = Counter()
        self._file_schema = file_schema
        self._file = new_file(self.path) if file is None else file
        self._line("header", asdict(header))

    def write(self, record: R) -> None:
        """Write one record."""
        self.totals[record.status] += 1
        self._line(self._file_schema.name, asdict(record))

    def remark(self, name: str, remark: Dataclass) -> None:
        """Write a line that counts in no total (see `FileSchema.remarks`)."""
        self._line(name, asdict(remark))

    def close(self, finished: bool = True) -> None:
        """Close the file. If the run is `finished`, the footer is written before."""
        if finished:
            self._line("footer", {"totals": dict(self.totals)})
        self._file.close()

    def _line(self, name: str, fields: dict[str, Any]) -> None:
        """Write and flush a line that `name` marks."""
        entry = {"record": name, **_without_nonfinite(fields)}
        text = json.dumps(entry, ensure_ascii=False, allow_nan=False)
        # A framework's message may contain surrogates, which UTF-8 cannot encode.
        try:
            self._file.write(re.sub("[\ud800-\udfff]", "\ufffd", text) + "\n")
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            raise RecordError(
                f"{self.path} cannot be written to: {error.strerror}; make room or raise the limit of "
                "file sizes, and run again"
            ) from error


def _lines(path: Path, first: bool = False) -> list[str]:
    """Returns the lines of a file, or a list of only the first. Raises NotARecordFile if the file cannot
    be read."""
    try:
        if _is_standard_input(path):
            text = _standard_input()
        else:
            with require_regular_file(path).open(encoding="utf-8-sig", errors="replace") as file:
                text = file.readline() if first else file.read()
    except (OSError, ValueError) as error:
        raise NotARecordFile(f"{path}: cannot be read: {error}") from error
    # Not splitlines, which also splits at U+2028 within a JSON string.
    return text.rstrip("\n").split("\n")


def _is_standard_input(path: Path) -> bool:
    """True if the path is "-", or names the pipe of standard input, such as /dev/stdin."""
    return str(path) == "-" or (path.is_fifo() and os.path.samestat(path.stat(), os.fstat(0)))


@cache
def _standard_input() -> str:
    """Returns the text of standard input, which can be read only once."""
    return sys.stdin.buffer.read().decode("utf-8-sig", errors="replace")


T = TypeVar("T")


def _decode(where: str, line: str, kind: type[T]) -> T:
    """Returns a line as an instance of `kind`. Numbers may be written as texts ("nan"). Raises
    BrokenLine."""
    try:
        return msgspec.json.decode(line, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BrokenLine(f"{where}: {error}; {CHANGED_FILE}") from error


def _check_totals(where: str, totals: dict[str, int], records: list[R]) -> None:
    """Raise BrokenLine if the footer's `totals` are not the numbers of records by status."""
    counts = Counter(record.status for record in records)
    if totals != counts:
        raise BrokenLine(
            f"{where}: the footer counts {totals}, the file holds {dict(counts)}: lines were lost or "
            f"added; {CHANGED_FILE}"
        )


def _without_nonfinite(value: Any) -> Any:
    """Returns the value with NaN and infinity replaced by texts, also inside dictionaries, lists and
    tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {name: _without_nonfinite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(entry) for entry in value]
    return value
