"""What asv's benchmarks are made of: a call memoised in the process, judged before it is timed.

asv runs `setup` before every timed call and spawns a process for every benchmark and parameter; whatever
is slow is therefore done once a process. A wrong answer fails its benchmark, and so does a name that does
not exist: asv takes NotImplementedError for "no value", which nobody looks at. Only a case that an
implementation declares unsupported has no value. asv's own rule of sampling applies. What was installed
stands in the results themselves (`Versions`): of an existing environment asv keeps no versions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar, TypeVar

from packaging.version import Version

from backends.protocol import UsageError
from suite.measure import protocol
from suite.measure.call import Accuracy, TimedCall, UnsupportedCall
from suite.measure.worker import implementations, pin, rate_of
from suite.run.options import Options
from suite.spec.case import Case
from suite.spec.catalogue.workloads import named
from suite.spec.vocabulary import STATUSES

THREADS = "ATTENTION_THREADS"
"""The variable that says how many threads frameworks may start; 1 by default, 0 for all CPUs."""


def ids(*workloads: str) -> list[str]:
    """The case ids of workloads, in float32: the flat parameter that asv shows."""
    return [workload.case().id for name in workloads for workload in named(name)]


def version_of(cases: Sequence[str]) -> str:
    """What asv compares results by: the protocol and the cases, and not the text of the benchmark."""
    digest = hashlib.sha256("\n".join(cases).encode()).hexdigest()[:8]
    return f"protocol-{protocol.VERSION}-{digest}"


F = TypeVar("F", bound=Callable[..., Any])


def unit(text: str) -> Callable[[F], F]:
    """Mark a benchmark that is no time with what asv writes at its axis."""

    def mark(function: F) -> F:
        function.__dict__["unit"] = text
        return function

    return mark


class Benchmark:
    """Base of all: `backend`, `cases` and `implementations` are set by the module of a framework."""

    backend = ""
    direction = "forward"
    cases: Sequence[str] = ()
    implementations: Sequence[str] = ()
    params: ClassVar[list[list[str]]]
    version: ClassVar[str]
    param_names = ["case", "implementation"]
    timeout = 120
    rounds = 2
    repeat = (3, 20, 2.0)
    number = 1
    warmup_time = 0
    last: Any = None

    def __init_subclass__(cls) -> None:
        cls.params = [list(cls.cases), list(cls.implementations)]
        cls.version = version_of(cls.cases)

    def setup(self, case: str, implementation: str) -> None:
        self.timed, self.accuracy = timed_call(self.backend, case, implementation, self.direction)

    def _call(self) -> None:
        self.last = self.timed.call()
        self.timed.backend.profiler.sync(self.last)

    def teardown(self, case: str, implementation: str) -> None:
        """Judge the last answer. Raises RefusedTime."""
        if self.last is not None:
            self.timed.look(self.last)
            self.timed.judge_seen()


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

    @unit("max |error| / bound")
    def track_error_ratio(self, case: str, implementation: str) -> float | None:
        return self.accuracy.error_ratio

    @unit("share of the largest matrix product")
    def track_share_of_gemm(self, case: str, implementation: str) -> float:
        samples = sorted(self.timed.sample() for _ in range(5))
        fmt, work = self.timed.case.dtype, self.timed.work
        if work is None:
            raise NotImplementedError(f"nobody has counted the operations of {case}")
        best = max(rate_of(self.timed.backend, "gemm", size, fmt)[0] for size in (512, 1024))
        return work.flops / samples[2] / best


class ProcessMemory(Benchmark):
    """Bytes of the whole process at its peak, as asv counts them."""

    def peakmem_forward(self, case: str, implementation: str) -> None:
        self._call()


class Memory(ProcessMemory):
    """Bytes at the peak of the process, and of the call by the framework's own account."""

    @unit("bytes")
    def track_peak_bytes(self, case: str, implementation: str) -> int:
        peak = self.timed.peak_bytes()
        if peak is None:
            raise NotImplementedError(f"{self.backend} counts no bytes of a call")
        return peak


class Versions:
    """What was measured, as a number that asv can plot: 21301 is version 2.13.1.

    `modules` are asked for the distribution they came in, without importing them; no value for what is
    not installed.
    """

    modules: Sequence[str] = ()
    params: ClassVar[list[str]]
    param_names = ["module"]
    version = f"protocol-{protocol.VERSION}"

    def __init_subclass__(cls) -> None:
        cls.params = list(cls.modules)

    @unit("version")
    def track_version(self, module: str) -> int:
        names = metadata.packages_distributions().get(module)
        if not names:
            raise NotImplementedError(f"{module} is not installed")
        installed = Version(metadata.version(names[0]))
        return installed.major * 10_000 + installed.minor * 100 + installed.micro


class Conformance:
    """Cells of the check `values` at smoke, by status, of all implementations of attention itself.

    The module of a framework defines `setup_cache` as `counted(self.backend)`: asv knows it by the place
    it is defined at, and would give every framework the counts of one.
    """

    backend = ""
    params = [*STATUSES]
    param_names = ["status"]
    timeout = 600
    version = f"protocol-{protocol.VERSION}"

    @unit("cells")
    def track_cells(self, counts: dict[str, int], status: str) -> int:
        return counts.get(status, 0)


def counted(backend: str) -> dict[str, int]:
    """Cells of the check `values` at smoke by status, manifests read; layers are not counted."""
    from collections import Counter

    from suite.checks import all_checks
    from suite.judge.judge import judge
    from suite.run.plan import Plan

    plan = Plan.make(Options(backend=(backend,), level="smoke"))
    (values,) = (check for check in all_checks() if check.name == "values")
    cells = (cell for cell in plan.cells(values) if not cell.case.operator.is_layer)
    return dict(Counter(judge(cell, plan.policy(cell)).status for cell in cells))


@lru_cache(maxsize=1)
def loaded(backend: str) -> dict[str, Any]:
    """The implementations of a backend by name, its threads and CPUs fixed before it is imported."""
    pin(int(os.environ.get(THREADS, "1")))
    return implementations(backend, Options())[1]


@lru_cache(maxsize=4)
def timed_call(
    backend: str, case: str, implementation: str, direction: str
) -> tuple[TimedCall, Accuracy]:
    """A call that is warm and judged right, and how right it is.

    Raises what `resolved` raises, and RefusedTime if the answer is wrong or its time cannot be true.
    """
    call = resolved(backend, case, implementation, direction)
    call.prepare()
    call.sample()
    return call, call.judge()


def resolved(backend: str, case: str, implementation: str, direction: str) -> TimedCall:
    """The call that these names stand for; nothing is computed.

    Raises NotImplementedError, which asv takes for "no value", if the implementation declares the case
    unsupported. For a name that does not exist raises UsageError with the valid names, ValueError of a
    case.
    """
    every, problem = loaded(backend), Case.parse(case)
    named = every.get(implementation)
    if named is None or named.operator is not problem.operator:
        valid = ", ".join(n for n, i in every.items() if i.operator is problem.operator)
        raise UsageError(
            f"unknown implementation {implementation!r} of {problem.operator.name} in {backend}; "
            f"valid: {valid or 'none'}"
        )
    try:
        return TimedCall(named, problem, direction)
    except UnsupportedCall as error:
        raise NotImplementedError(str(error)) from error
