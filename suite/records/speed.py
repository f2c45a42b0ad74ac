"""Records of measured times: what `--results` of `python -m suite bench` writes.

Raw samples are kept, so that every figure can be computed again (`suite.records.lines`).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from suite.records import lines
from suite.records.lines import Content, FileSchema, NonNegativeInt, Writer
from suite.records.machine import Origin

SCHEMA = 2
PREFIX = "speed-"

STATUSES = ("timed", "unsettled", "refused", "unsupported", "error")
"""What becomes of a measurement. Only the first two carry a time: "unsettled" is one whose warming up
never came to rest; "refused" is an answer that was not judged right, or a time that cannot be true."""

TIMED = ("timed", "unsettled")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
"""What a call took, which is never nothing."""


@dataclass(frozen=True)
class SpeedRecord:
    """One workload in one implementation and direction.

    `operator` is what the case asks for, `keys` the number of its keys; `swept` says that the workload is
    one of the sweep over lengths.

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
    threads: NonNegativeInt
    status: str
    kind: str = ""
    message: str = ""
    samples: tuple[Seconds, ...] = ()
    device_samples: tuple[Seconds, ...] = ()
    inner: NonNegativeInt = 0
    convert: float | None = None
    first_call: float | None = None
    pairs: NonNegativeInt = 0
    flops: float | None = None
    bytes: NonNegativeInt | None = None
    gemm: float | None = None
    copy: float | None = None
    peak_bytes: NonNegativeInt | None = None
    error_ratio: float | None = None
    grade: str = ""
    kernel: str = ""
    seed: NonNegativeInt = 0
    operator: str = ""
    keys: NonNegativeInt = 0
    swept: bool = False

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
        seconds = self.seconds
        if not seconds or not self.flops or not self.gemm:
            return None
        return self.flops / seconds / self.gemm

    @property
    def share_of_copy(self) -> float | None:
        """Bytes per second over those of a copy of as many; None without a time.

        Counts every operand once: a call that reads more than it writes can exceed 1.
        """
        seconds = self.seconds
        if not seconds or not self.bytes or not self.copy:
            return None
        return self.bytes / seconds / self.copy


@dataclass(frozen=True)
class SpeedHeader(Origin):
    """Where times were measured, by which protocol; import times by backend in seconds."""

    protocol: NonNegativeInt
    imports: dict[str, float] = field(default_factory=dict)
    schema: str = f"{PREFIX}{SCHEMA}"


SpeedRun = Content[SpeedHeader, SpeedRecord]
"""A loaded file of speed records."""


FILE_SCHEMA = FileSchema(
    name="speed",
    header=SpeedHeader,
    record=SpeedRecord,
    statuses=STATUSES,
    schema=SCHEMA,
    prefix=PREFIX,
    origin="`python -m suite bench --results=FILE`",
)


def writer(path: str | Path, header: SpeedHeader) -> Writer[SpeedHeader, SpeedRecord]:
    """A writer of a new file of measurements. Raises FileExistsError."""
    return Writer(path, FILE_SCHEMA, header)


def load(path: str | Path, partial: bool = False) -> SpeedRun:
    """Read a file of speed records. Raises what `lines.read` raises."""
    return lines.read(path, FILE_SCHEMA, partial)
