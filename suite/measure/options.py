"""The options of `python -m suite bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends import registry
from backends.registry import UsageError
from suite.measure import protocol
from suite.run.flags import option
from suite.run.options import Options, shared
from suite.spec.catalogue.workloads import QUICK, Workload, named
from suite.spec.dtypes import dtype
from suite.spec.vocabulary import DIRECTIONS

QUICK_SAMPLES = 5

UNSTORED = (
    "level", "shard", "audit", "optimized", "quick", "against", "seconds", "results",
)  # fmt: skip
"""Options that say nothing of a measurement; the records leave them out."""


@dataclass(frozen=True)
class BenchOptions(Options):
    """What is to be measured, as plain data; stored in the header of the records.

    `threads` 0 means one for every CPU. Without `workload` all are measured, without `dtype` float32,
    without `direction` all; other directions than "forward" of workloads alone that are part of training.
    """

    fixed = (
        "level", "shard", "audit", "optimized", "claim", "elect", "drop_in", "allow_unused",
        "allow_refusals", "expect", "inherit_known",
    )  # fmt: skip

    backend: tuple[str, ...] = shared(
        "backend",
        help="whose implementations are timed, each backend in a process of its own; repeatable",
    )
    function: tuple[str, ...] = shared(
        "function",
        help="time a function with the backend's native attention signature; repeatable",
    )
    dtype: tuple[str, ...] = shared("dtype", help="dtype of the workloads, default f32; repeatable")
    threads: int = shared(
        "threads", help="of each worker, and the CPUs that it runs on; 0: one for every CPU"
    )
    mode: str = shared(
        "mode",
        help="eager, compiled (by the compilers that people deploy), or all (default)",
        default="all",
    )
    cell_timeout: float = shared(
        "cell-timeout",
        help="seconds in which a worker must answer: compile and warm up, take a sample, judge it; 0 for "
        "no limit",
    )
    results: str = shared(
        "results", help="a new file for the records, with --against for the raw pairs"
    )
    workload: tuple[str, ...] = option(
        "a workload, the id of a case, sweep, or all; repeatable; default: "
        f"{', '.join(QUICK)}, forward, {QUICK_SAMPLES} samples of each",
        "NAME",
        many=True,
    )
    direction: tuple[str, ...] = option(
        "default: forward, and the others of workloads that are part of training",
        many=True,
        valid=DIRECTIONS,
        checked=True,
    )
    samples: int | None = option(
        f"of each; default {protocol.SAMPLES}", "N", default=None, kind=int
    )
    quick: bool = option(f"{QUICK_SAMPLES} samples of each", switch=True)
    against: str = option(
        "another implementation, venv:PATH, or commit:REV of a --function's file", "OTHER"
    )
    seconds: float = option("of a gate's pairs, for each case", default=20.0, kind=float)

    @property
    def backends(self) -> list[str]:
        """Canonical backend names; each has a process of its own, so that all fit. Raises UsageError."""
        names: list[str] = []
        for name in self.backend:
            names += registry.installed() if name == "all" else [registry.canonical(name)]
        return list(dict.fromkeys(names))

    @property
    def workloads(self) -> list[Workload]:
        """The workloads by name, each once. Raises UsageError that lists the names."""
        try:
            every = [w for text in self.workload or ("all",) for w in named(text)]
        except ValueError as error:
            raise UsageError(str(error)) from error
        return list({w.name: w for w in every}.values())

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
        """Raise UsageError, and FileExistsError, for whatever can be known to be wrong before anything is
        started."""
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
