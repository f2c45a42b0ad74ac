"""Measured times: `attention-conformance bench --results` writes them, with all raw samples."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Annotated

import msgspec

from attention_conformance.suite.records.lines import Content, FileSchema, NonNegativeInt
from attention_conformance.suite.records.machine import Origin

STATUSES = ("timed", "unsettled", "refused", "unsupported", "error")
"""Statuses of a measurement. "timed" and "unsettled" have times; after an "unsettled" warm-up times were
still changing. "refused" means a wrong answer or an implausible time."""

TIMED = ("timed", "unsettled")
"""The statuses of measurements that have times."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
"""The seconds of a call, always positive."""


@dataclass(frozen=True)
class SpeedRecord:
    """One workload in one implementation and direction.

    - `samples`: seconds per call
    - `first_call`: seconds of the first call, with tracing and compilation
    - `gemm`, `copy`: the best rates of this process in operations and bytes per second
    - `peak_bytes`: peak memory of the call, as the framework reports it
    - `error_ratio`: max |error| / bound of the timed output
    - `keys`: the number of keys; `swept`: whether the workload belongs to the sweep over lengths
    - `tokens`: the tokens that a step of decoding computes, of all samples; 0 for other calls
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
    first_call: float | None = None
    flops: float | None = None
    bytes: NonNegativeInt | None = None
    gemm: float | None = None
    copy: float | None = None
    peak_bytes: NonNegativeInt | None = None
    error_ratio: float | None = None
    kernel: str = ""
    keys: NonNegativeInt = 0
    swept: bool = False
    tokens: NonNegativeInt = 0

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that identify a measurement in a file and across files."""
        return (
            self.workload, self.case, self.backend, self.implementation, self.direction, self.device,
            str(self.threads),
        )  # fmt: skip

    @property
    def seconds(self) -> float | None:
        """The median of the samples; None without samples."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def share_of_gemm(self) -> float | None:
        """Operations per second over the rate of the largest matrix product; None without a time."""
        seconds = self.seconds
        if not seconds or not self.flops or not self.gemm:
            return None
        return self.flops / seconds / self.gemm

    @property
    def share_of_copy(self) -> float | None:
        """Bytes per second over the rate of a copy of the same size; None without a time.

        Every operand is counted once, so a call that reads more than it writes can exceed 1.
        """
        seconds = self.seconds
        if not seconds or not self.bytes or not self.copy:
            return None
        return self.bytes / seconds / self.copy

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a decoding step over its median time; None without a time, and for other calls."""
        return self.tokens / self.seconds if self.seconds and self.tokens else None


@dataclass(frozen=True)
class SpeedHeader(Origin):
    """The header of a file of times."""

    schema: str = "speed-4"


SpeedRun = Content[SpeedHeader, SpeedRecord]
"""A loaded file of speed records."""


FILE_SCHEMA = FileSchema(
    name="speed",
    header=SpeedHeader,
    record=SpeedRecord,
    statuses=STATUSES,
    origin="`attention-conformance bench --results=FILE`",
)

writer, load, save = FILE_SCHEMA.writer, FILE_SCHEMA.load, FILE_SCHEMA.save
