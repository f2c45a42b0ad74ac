"""What asv's benchmarks are made of: a subject memoised in the process, judged before it is timed.

asv runs `setup` before every timed call and spawns a process for every benchmark and parameter; whatever
is slow is therefore done once a process. An answer that is wrong fails its benchmark, one that is not
supported has no value. asv's own rule of sampling applies. What was installed stands in the results
themselves (`Versions`): of an existing environment asv keeps no versions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

from packaging.version import Version

from suite.measure import protocol
from suite.measure.worker import pin, rate_of
from suite.spec.catalogue import parse
from suite.spec.workloads import named

THREADS = "ATTENTION_THREADS"
"""The variable that says how many threads frameworks may start; 1 by default, 0 for all CPUs."""


def ids(*workloads: str) -> list[str]:
    """The case ids of workloads, in float32: the flat parameter that asv shows."""
    return [workload.case().id for name in workloads for workload in named(name)]


def version_of(cases: Sequence[str]) -> str:
    """What asv compares results by: the protocol and the cases, and not the text of the benchmark."""
    digest = hashlib.sha256("\n".join(cases).encode()).hexdigest()[:8]
    return f"protocol-{protocol.VERSION}-{digest}"


class Benchmark:
    """Base of all: `backend`, `cases` and `implementations` are set by the module of a framework."""

    backend = ""
    direction = "forward"
    cases: Sequence[str] = ()
    implementations: Sequence[str] = ()
    param_names = ["case", "implementation"]
    timeout = 120
    rounds = 2
    repeat = (3, 20, 2.0)
    number = 1
    warmup_time = 0

    def __init_subclass__(cls) -> None:
        cls.params = [list(cls.cases), list(cls.implementations)]  # type: ignore[attr-defined]
        cls.version = version_of(cls.cases)  # type: ignore[attr-defined]

    def setup(self, case: str, implementation: str) -> None:
        self.subject, self.judged = subject(self.backend, case, implementation, self.direction)

    def _call(self) -> None:
        self.subject.backend.sync(self.subject.call())


class Forward(Benchmark):
    """Seconds of one forward call."""

    def time_forward(self, case: str, implementation: str) -> None:
        self._call()


class Backward(Benchmark):
    """Seconds of one backward pass, the forward pass being done."""

    direction = "backward"

    def time_backward(self, case: str, implementation: str) -> None:
        self._call()


class Quality(Benchmark):
    """How right, and how near to what the machine can do."""

    def track_error_ratio(self, case: str, implementation: str) -> float:
        return self.judged.error_ratio

    track_error_ratio.unit = "max |error| / bound"  # type: ignore[attr-defined]

    def track_share_of_gemm(self, case: str, implementation: str) -> float:
        samples = sorted(self.subject.sample() for _ in range(5))
        fmt, backend = parse(case).dtype, self.subject.backend
        best = max(rate_of(backend, "gemm", size, fmt)[0] for size in (512, 1024))
        return self.subject.work.flops / samples[2] / best

    track_share_of_gemm.unit = "share of the largest matrix product"  # type: ignore[attr-defined]


class Memory(Benchmark):
    """Bytes at the peak: of the whole process by asv, of the call by the framework's own account."""

    def peakmem_forward(self, case: str, implementation: str) -> None:
        self._call()

    def track_peak_bytes(self, case: str, implementation: str) -> float:
        found = self.subject.peak_bytes()
        return float("nan") if found is None else float(found)

    track_peak_bytes.unit = "bytes"  # type: ignore[attr-defined]


class Versions:
    """What was measured, as a number that asv can plot: 21301 is version 2.13.1.

    `modules` are asked for the distribution they came in, without importing them; no value for what is
    not installed.
    """

    modules: Sequence[str] = ()
    param_names = ["module"]
    version = f"protocol-{protocol.VERSION}"

    def __init_subclass__(cls) -> None:
        cls.params = list(cls.modules)  # type: ignore[attr-defined]

    def track_version(self, module: str) -> int:
        names = metadata.packages_distributions().get(module)
        if not names:
            raise NotImplementedError(f"{module} is not installed")
        installed = Version(metadata.version(names[0]))
        return installed.major * 10_000 + installed.minor * 100 + installed.micro

    track_version.unit = "version"  # type: ignore[attr-defined]


class Conformance:
    """Cells of the check `values` at smoke, by status, of all implementations of attention.

    The module of a framework defines `setup_cache` as `counted(self.backend)`: asv knows it by the place
    it is defined at, and would give every framework the counts of one.
    """

    backend = ""
    params = ["pass", "fail", "known", "unsupported", "error"]
    param_names = ["status"]
    timeout = 600
    version = f"protocol-{protocol.VERSION}"

    def track_cells(self, counts: dict[str, int], status: str) -> int:
        return counts.get(status, 0)

    track_cells.unit = "cells"  # type: ignore[attr-defined]


def counted(backend: str) -> dict[str, int]:
    """Cells of the check `values` at smoke by status, manifests read."""
    from collections import Counter

    from suite.checks import all_checks
    from suite.plan import Options, Plan

    plan = Plan.make(Options(backend=(backend,), level="smoke"))
    (values,) = (check for check in all_checks() if check.name == "values")
    return dict(Counter(plan.judge(cell).status for cell in plan.cells(values)))


@lru_cache(maxsize=1)
def loaded(backend: str) -> dict[str, Any]:
    """The implementations of a backend by name, its threads and CPUs fixed before it is imported."""
    pin(int(os.environ.get(THREADS, "1")))
    from suite.measure.worker import implementations

    return implementations(backend, "cpu")[1]


@lru_cache(maxsize=4)
def subject(backend: str, case: str, implementation: str, direction: str) -> tuple[Any, Any]:
    """A subject that is warm and judged right, and its figures.

    Raises NotImplementedError, which asv takes for "no value", where the case is not supported, and
    Refused where the answer is wrong or its time cannot be true.
    """
    from suite.measure.subject import Subject, Unsupported

    found = loaded(backend)
    if implementation not in found:
        raise NotImplementedError(f"{backend} has no {implementation} in this version")
    try:
        made = Subject(found[implementation], parse(case), direction)
        made.prepare()
        made.sample()
        return made, made.judge()
    except Unsupported as error:
        raise NotImplementedError(str(error)) from error
