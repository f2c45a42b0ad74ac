"""Base classes of the asv benchmarks: a call is cached in its process, and judged before asv times it.

- asv spawns a process for every benchmark and parameter, and runs `setup` before every timed call.
  Slow work is therefore cached once per process.
- A wrong answer or an unknown name fails its benchmark. Only a declared-unsupported case raises
  NotImplementedError, which asv reads as "no value".
- asv's own sampling applies.
- `Versions` stores the installed versions, because asv keeps none of an existing environment.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar, TypeVar

from packaging.version import Version

from attention_conformance.backends.protocol import UsageError
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.call import TimedCall
from attention_conformance.suite.measure.protocol import UnsupportedCall
from attention_conformance.suite.measure.worker import implementations, pin, rate_of, rate_of_copy
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue.workloads import find_workloads
from attention_conformance.suite.spec.operator import Work
from attention_conformance.suite.spec.vocabulary import STATUSES

THREADS = "ATTENTION_THREADS"
"""The environment variable with the number of threads of a framework: default 1, 0 for all CPUs."""


def ids(*workloads: str) -> list[str]:
    """Returns the case ids of workloads in float32, as an asv parameter."""
    return [workload.case().id for name in workloads for workload in find_workloads(name)]


def version_of(cases: Sequence[str]) -> str:
    """Returns asv's version of a benchmark: the protocol's version and a digest of the case ids. asv
    compares only results of equal versions."""
    digest = hashlib.sha256("\n".join(cases).encode()).hexdigest()[:8]
    return f"protocol-{protocol.VERSION}-{digest}"


F = TypeVar("F", bound=Callable[..., Any])


def unit(label: str) -> Callable[[F], F]:
    """Returns a decorator that sets asv's axis label of a benchmark. Needed for benchmarks that return no
    time."""

    def set_unit(function: F) -> F:
        function.__dict__["unit"] = label
        return function

    return set_unit


class Benchmark:
    """Base class of benchmarks. A framework's base class sets `backend`, and defaults of `cases` and
    `implementations`. It is the second base of a benchmark, so that the values of its first base have
    precedence."""

    backend = ""
    direction = "forward"
    cases: Sequence[str] = ids("gpt2-train")
    implementations: Sequence[str] = ()
    params: ClassVar[list[list[str]]]
    version: ClassVar[str]
    param_names = ["case", "implementation"]
    timeout = 120
    rounds = 2
    repeat = (3, 20, 2.0)
    number = 1
    warmup_time = 0
    last_output: Any = None

    def __init_subclass__(cls) -> None:
        cls.params = [list(cls.cases), list(cls.implementations)]
        cls.version = version_of(cls.cases)

    def setup(self, case: str, implementation: str) -> None:
        self.timed, self.error_ratio = timed_call(
            self.backend, case, implementation, self.direction
        )

    def _call(self) -> None:
        self.last_output = self.timed.calls()
        self.timed.backend.sync(self.last_output)

    def _median(self) -> float:
        """Returns the median of five samples, in seconds per call."""
        return statistics.median(self.timed.sample() for _ in range(5))

    def _work(self, case: str) -> Work:
        """Returns the operations and bytes of the call. Raises NotImplementedError if the operator does
        not count them."""
        if self.timed.work is None:
            raise NotImplementedError(f"the operator of {case} counts no operations")
        return self.timed.work

    def teardown(self, case: str, implementation: str) -> None:
        """Judge the last answer. Raises RefusedTime for a wrong answer."""
        if self.last_output is not None:
            self.timed.record(self.last_output)
            self.timed.judge_recorded()


class Forward(Benchmark):
    """Seconds of one forward call."""

    def time_forward(self, case: str, implementation: str) -> None:
        self._call()


class Backward(Benchmark):
    """Seconds of one backward pass, without the forward pass."""

    direction = "backward"

    def time_backward(self, case: str, implementation: str) -> None:
        self._call()


class Decode(Forward):
    """Seconds of a step of decoding, and speed as a share of a copy of the bytes that the step moves."""

    cases = ids("llama-cache", "llama-cache-batch", "llama-cache-server")
    implementations = ["textbook-cached"]
    timeout = 300

    @unit("share of a copy")
    def track_share_of_copy(self, case: str, implementation: str) -> float:
        moved_bytes = self._work(case).bytes
        rate = rate_of_copy(self.timed.backend, moved_bytes, self.timed.case.dtype)
        return moved_bytes / self._median() / rate


class DecodePaged(Decode):
    """A step of decoding over keys and values in pages."""

    cases = ids("llama-paged-decode")
    implementations = ["textbook-paged"]


class DecodeCodes(Decode):
    """A step of decoding over keys and values in codes."""

    cases = ids("llama-int8-decode")
    implementations = ["textbook-quantized"]


class DecodeLatent(Decode):
    """A step of decoding over latents."""

    cases = ids("deepseek-decode")
    implementations = ["textbook-latent"]


class Quality(Benchmark):
    """Error ratio, and speed as a share of the fastest matrix product."""

    @unit("max |error| / bound")
    def track_error_ratio(self, case: str, implementation: str) -> float | None:
        return self.error_ratio

    @unit("share of the largest matrix product")
    def track_share_of_gemm(self, case: str, implementation: str) -> float:
        work, fmt = self._work(case), self.timed.case.dtype
        best = max(rate_of(self.timed.backend, "gemm", size, fmt)[0] for size in (512, 1024))
        return work.flops / self._median() / best


class ProcessMemory(Benchmark):
    """Peak bytes of the process, as asv counts them."""

    def peakmem_forward(self, case: str, implementation: str) -> None:
        self._call()


class Memory(ProcessMemory):
    """Peak bytes of the process, and of the call as the framework counts them."""

    @unit("bytes")
    def track_peak_bytes(self, case: str, implementation: str) -> int:
        peak = self.timed.peak_bytes()
        if peak is None:
            raise NotImplementedError(f"{self.backend} does not count the bytes of a call")
        return peak


class Versions:
    """The installed version of each module's distribution, as a number to plot: 2.13.1 is 21301.

    A module is not imported. A module that is not installed has no value.
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
    """Number of cells of the check `values` at level smoke by status, over all attention functions.

    Each framework's module defines its own `setup_cache`, which returns `count_cells(self.backend)`: asv
    identifies `setup_cache` by file and line, so a shared one would give all frameworks the same counts.
    """

    backend = ""
    params = [*STATUSES]
    param_names = ["status"]
    timeout = 600
    version = f"protocol-{protocol.VERSION}"

    @unit("cells")
    def track_cells(self, counts: dict[str, int], status: str) -> int:
        return counts.get(status, 0)


def count_cells(backend: str) -> dict[str, int]:
    """Returns the numbers of cells of the check `values` at level smoke, by status. Layers are left out.
    Failures that manifests expect count as known."""
    from collections import Counter

    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.judge import judge
    from attention_conformance.suite.run.plan import Plan

    plan = Plan.make(Options(backend=(backend,), level="smoke"))
    values = all_checks()["values"]
    cells = (cell for cell in plan.cells(values) if not cell.case.operator.is_layer)
    return dict(Counter(judge(cell, plan.policy(cell)).status for cell in cells))


@lru_cache(maxsize=1)
def load_cell_calls(backend: str) -> dict[str, Any]:
    """Returns the implementations of a backend by name. Fixes threads and CPUs of this process, and then
    imports the framework."""
    pin(int(os.environ.get(THREADS, "1")))
    return implementations(backend, Options())[1]


@lru_cache(maxsize=4)
def timed_call(
    backend: str, case: str, implementation: str, direction: str
) -> tuple[TimedCall, float | None]:
    """Returns a warm call whose answer is right, and the error ratio of the answer.

    Raises the errors of `find_call`, and RefusedTime if the answer is wrong or its time cannot be true.
    """
    call = find_call(backend, case, implementation, direction)
    call.prepare()
    call.sample()
    return call, call.judge()


def find_call(backend: str, case: str, implementation: str, direction: str) -> TimedCall:
    """Returns the call with these names, not yet prepared.

    Raises NotImplementedError (asv: "no value") if the implementation declares the case unsupported,
    UsageError with the valid names for an unknown implementation, ValueError for an unknown case.
    """
    by_name, parsed = load_cell_calls(backend), Case.parse(case)
    chosen = by_name.get(implementation)
    if chosen is None or chosen.operator is not parsed.operator:
        valid = ", ".join(n for n, i in by_name.items() if i.operator is parsed.operator)
        raise UsageError(
            f"unknown implementation {implementation!r} of {parsed.operator.name} in {backend}; "
            f"valid: {valid or 'none'}"
        )
    try:
        return TimedCall(chosen, parsed, direction)
    except UnsupportedCall as error:
        raise NotImplementedError(str(error)) from error
