"""Speed records: the result file of `python -m suite bench`, one JSON object per line.

Like the records of conformance (`suite.judge.records`): a header, a line per measurement as it is made,
a footer. Raw samples are kept, so that every figure can be computed again. Nothing is imported but the
standard library and those records.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from suite.judge.records import BrokenLine, NotARecordFile, TruncatedRun, Writer

SCHEMA = "speed-1"

STATUSES = ("timed", "unsettled", "refused", "unsupported", "error")
"""What becomes of a measurement. Only the first two carry a time: "unsettled" is one whose warming up
never came to rest; "refused" is an answer that was not judged right, or a time that cannot be true."""

TIMED = ("timed", "unsettled")


@dataclass(frozen=True)
class SpeedRecord:
    """One workload in one implementation and direction.

    Times are seconds of one call; `samples` are all of them, `device_samples` those of the device's own
    clock. `first_call` holds tracing and compilation, `convert` what it took to make the framework's
    arrays. `gemm` and `copy` are what the same process reached at best, in operations and bytes per
    second. `peak_bytes` is what the call held at most, by the framework's own account. `error_ratio` is
    that of the output that was timed.
    """

    workload: str
    case: str
    backend: str
    implementation: str
    mode: str
    device: str
    dtype: str
    direction: str
    threads: int
    status: str
    kind: str = ""
    message: str = ""
    samples: tuple[float, ...] = ()
    device_samples: tuple[float, ...] = ()
    inner: int = 0
    convert: float | None = None
    first_call: float | None = None
    pairs: int = 0
    flops: float | None = None
    bytes: int | None = None
    gemm: float | None = None
    copy: float | None = None
    peak_bytes: int | None = None
    error_ratio: float | None = None
    grade: str = ""
    kernel: str = ""
    seed: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the measurement in a file, and across files."""
        return (
            self.workload, self.case, self.backend, self.implementation, self.direction, self.device,
            str(self.threads),
        )  # fmt: skip

    @property
    def seconds(self) -> float | None:
        """The median of the samples; None where there is no time."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def share_of_gemm(self) -> float | None:
        """Operations per second over those of the largest matrix product; None without a time."""
        if not self.samples or not self.flops or not self.gemm:
            return None
        return self.flops / self.seconds / self.gemm  # type: ignore[operator]

    @property
    def share_of_copy(self) -> float | None:
        """Bytes per second over those of a copy of as many; None without a time.

        Counts every operand once: a call that reads more than it writes can exceed 1.
        """
        if not self.samples or not self.bytes or not self.copy:
            return None
        return self.bytes / self.seconds / self.copy  # type: ignore[operator]


@dataclass(frozen=True)
class SpeedHeader:
    """What was measured where: versions, machine and options, import times by backend in seconds."""

    protocol: int
    commit: str = ""
    dirty: bool = False
    suite_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, float] = field(default_factory=dict)
    started: str = ""
    schema: str = SCHEMA


@dataclass(frozen=True)
class SpeedRun:
    """A loaded file of speed records."""

    header: SpeedHeader
    records: tuple[SpeedRecord, ...]
    source: str = ""


class SpeedWriter(Writer):
    """Appends measurements to a new file. Raises FileExistsError: nothing is overwritten."""

    def __init__(self, path: str | Path, header: SpeedHeader) -> None:
        super().__init__(path, header)  # type: ignore[arg-type]

    def speed(self, record: SpeedRecord) -> None:
        self.totals[record.status] += 1
        self._line({"record": "speed", **asdict(record)})


def is_speed(path: str | Path) -> bool:
    """Whether a file begins with the header of speed records."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            entry = json.loads(file.readline())
        return isinstance(entry, dict) and entry.get("schema") == SCHEMA
    except (OSError, ValueError):
        return False


def load_speed(path: str | Path, partial: bool = False) -> SpeedRun:
    """Read a file of speed records.

    Raises NotARecordFile, BrokenLine, and TruncatedRun where there is no footer (unless `partial`).
    """
    path = Path(path)
    if not is_speed(path):
        raise NotARecordFile(
            f"{path}: expected a file written by `python -m suite bench --results`"
        )
    header: SpeedHeader | None = None
    records: list[SpeedRecord] = []
    footer: dict[str, int] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), 1):
        try:
            entry = json.loads(line)
            kind = entry.pop("record")
            if kind == "header":
                header = SpeedHeader(**_known(SpeedHeader, entry))
            elif kind == "speed":
                records.append(SpeedRecord(**_read(entry)))
            elif kind == "footer":
                footer = entry["totals"]
            else:
                raise ValueError(f"unknown record {kind!r}")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if partial:
                break
            raise BrokenLine(f"{path}: line {number} is not a speed record: {error}") from error
    assert header is not None
    if footer is None and not partial:
        raise TruncatedRun(
            f"{path}: no footer: the run did not finish. Run it again, or pass --partial"
        )
    if footer is not None and footer != _totals(records):
        raise BrokenLine(f"{path}: the footer counts {footer}, the file holds {_totals(records)}")
    return SpeedRun(header, tuple(records), str(path))


def _totals(records: Iterable[SpeedRecord]) -> dict[str, int]:
    return dict(Counter(record.status for record in records))


def _known(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in entry.items() if k in names}


def _read(entry: dict[str, Any]) -> dict[str, Any]:
    made = _known(SpeedRecord, entry)
    for name in ("samples", "device_samples"):
        made[name] = tuple(float(x) for x in made.get(name, ()))
    if isinstance(made.get("error_ratio"), str):
        made["error_ratio"] = float(made["error_ratio"])
    if made["status"] not in STATUSES:
        raise ValueError(f"unknown status {made['status']!r}; valid: {', '.join(STATUSES)}")
    return made
