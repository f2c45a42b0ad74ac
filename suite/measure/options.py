"""The options of `attention-conformance bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attention_conformance.backends import registry
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import number, option, whole_number
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.run.options import CELL_OPTIONS, Options, shared
from attention_conformance.suite.spec.catalogue.workloads import QUICK, Workload, find_workloads
from attention_conformance.suite.spec.dtypes import dtype
from attention_conformance.suite.spec.vocabulary import DIRECTIONS

QUICK_SAMPLES = 5

UNSTORED_OPTIONS = (
    "level", "shard", "audit", "optimized", "quick", "against", "seconds", "results", "verdict",
    "verdict_fd",
)  # fmt: skip
"""Options without effect on a measurement, which the header of records leaves out."""


@dataclass(frozen=True)
class BenchOptions(Options):
    """The options of a benchmark run, stored in the header of the records.

    Defaults: every workload, float32, every direction. Directions other than "forward" apply only to
    workloads of training. `threads` 0 means one thread per CPU.
    """

    fixed = CELL_OPTIONS

    backend: tuple[str, ...] = shared(
        "backend",
        help="time the implementations of this backend; each backend has its own process; repeatable",
    )
    function: tuple[str, ...] = shared(
        "function",
        help="time a function, as it is (docs/signatures.md); repeatable",
    )
    dtype: tuple[str, ...] = shared("dtype", help="dtype of the workloads, default f32; repeatable")
    threads: int = shared(
        "threads", help="threads of each worker, and its number of CPUs; 0: one thread per CPU"
    )
    mode: str = shared(
        "mode",
        help="eager, compiled (by the framework's deployment compilers), or all (default)",
        default="all",
    )
    cell_timeout: float = shared(
        "cell-timeout",
        help="seconds for each request to a worker: compile and warm up, take a sample, judge; 0: no "
        "limit",
    )
    results: str = shared(
        "results", help="a new file for the records; with --against for the raw pairs"
    )
    verdict: str = shared("verdict")
    verdict_fd: str = shared("verdict-fd")
    workload: tuple[str, ...] = option(
        "a workload, the id of a case, sweep, or all; repeatable; default: "
        f"{', '.join(QUICK)}, forward, {QUICK_SAMPLES} samples of each",
        "NAME",
        many=True,
    )
    direction: tuple[str, ...] = option(
        "default: forward, and every direction for workloads of training",
        many=True,
        valid=DIRECTIONS,
        checked=True,
    )
    samples: int | None = option(
        f"samples of each call; default {protocol.SAMPLES}", "N", default=None, kind=whole_number
    )
    quick: bool = option(f"take {QUICK_SAMPLES} samples of each call", switch=True)
    against: str = option(
        "baseline: another implementation, venv:PATH, or commit:REV of a --function's file", "OTHER"
    )
    seconds: float = option("seconds for the pairs of each case", default=20.0, kind=number)

    @property
    def backends(self) -> list[str]:
        """Canonical backend names. Raises UsageError."""
        names: list[str] = []
        for name in self.backend:
            names += registry.installed() if name == "all" else [registry.canonical(name)]
        return list(dict.fromkeys(names))

    @property
    def workloads(self) -> list[Workload]:
        """The workloads that `workload` names (default: all), each once. Raises UsageError for an unknown
        name."""
        try:
            workloads = [
                workload for text in self.workload or ("all",) for workload in find_workloads(text)
            ]
        except ValueError as error:
            raise UsageError(str(error)) from error
        return list({workload.name: workload for workload in workloads}.values())

    @property
    def directions(self) -> list[str]:
        return list(dict.fromkeys(self.direction or DIRECTIONS))

    @property
    def dtypes(self) -> list[str]:
        """Short names of dtypes, each once."""
        return list(dict.fromkeys(dtype(name).name for name in self.dtype or ("f32",)))

    @property
    def count(self) -> int:
        """Samples of each call."""
        return self.samples or (QUICK_SAMPLES if self.quick else protocol.SAMPLES)

    def check(self) -> None:
        """Raise UsageError for invalid options, FileExistsError if the results file exists."""
        super().check()
        _ = self.workloads
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"--samples must be positive, got {self.samples}")
        if not self.seconds > 0:
            raise UsageError(f"--seconds must be positive, got {self.seconds}")
        if not self.results:
            return
        place = Path(self.results)
        if place.exists():
            raise FileExistsError(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--results={place} cannot be written: {error}") from error
