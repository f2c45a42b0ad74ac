"""The process that holds subjects: one backend, its threads and CPUs fixed before it is imported.

Reads requests from standard input and answers each by a line of JSON; whatever frameworks print goes to
standard error. Started by `suite.measure.pool`, in this environment or in another one.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)  # fmt: skip
"""Where frameworks read how many threads they may start. XLA starts as many as it has CPUs."""

GEMM_SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
"""Rows of the square matrices whose product is the ceiling: the fastest of them counts."""

GEMM_SECONDS = 0.5
"""A product that takes longer is the last one tried."""


class Worker:
    """Subjects by key, and the ceilings of their process."""

    def __init__(self, asked: dict[str, Any]) -> None:
        if asked["cpus"]:
            os.sched_setaffinity(0, asked["cpus"])
        start = time.perf_counter()
        self.backend, self.implementations = implementations(
            asked["backend"], asked["device"], asked["functions"], asked["numerics"]
        )
        self.imported = time.perf_counter() - start
        self.subjects: dict[str, Any] = {}
        self.ceilings: dict[tuple[str, str, int], float] = {}

    def hello(self) -> dict[str, Any]:
        """What was imported, in how many seconds, and what there is to measure."""
        offered = [
            {"name": i.name, "mode": i.mode, "operator": i.operator}
            for i in self.implementations.values()
        ]
        return {
            "imported": self.imported,
            "implementations": offered,
            "versions": {name: str(text) for name, text in self.backend.versions.items()},
            "python": sys.version.split()[0],
        }

    def open(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make a subject ready under a key."""
        from suite.measure.subject import Subject
        from suite.spec.catalogue import parse

        subject = Subject(
            self.implementations[asked["implementation"]],
            parse(asked["case"]),
            asked["direction"],
            asked["seed"],
        )
        ready = subject.prepare()
        self.subjects[asked["key"]] = subject
        return asdict(ready)

    def sample(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One sample of a subject, slowed down by the share `slow`."""
        subject = self.subjects[asked["key"]]
        # Another process had the CPU and its caches: the first call after that is none of the sample.
        subject.slow = 0.0
        subject.sample(1)
        subject.slow = asked["slow"]
        seconds = subject.sample(asked["inner"])
        return {"seconds": seconds, "device": subject.device_sample() if asked["device"] else None}

    def judge(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Judge what a subject computed while it was timed."""
        return asdict(self.subjects[asked["key"]].judge())

    def facts(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a subject holds in memory, and which kernels it runs."""
        subject = self.subjects[asked["key"]]
        return {"peak_bytes": subject.peak_bytes(), "kernel": subject.kernel()}

    def close(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Forget a subject."""
        self.subjects.pop(asked["key"], None)
        gc.collect()
        return {}

    def ceiling(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The best matrix product of a dtype, in operations per second, and the best copy of as many
        bytes, in bytes per second; measured again and bettered where `again`."""
        from suite.spec.dtypes import dtype

        fmt, device = dtype(asked["dtype"]), self.backend.device
        gemm, copy = ("gemm", fmt.name, 0), ("copy", fmt.name, asked["bytes"])
        if gemm not in self.ceilings or asked["again"]:
            best = self.ceilings.get(gemm, 0.0)
            for size in GEMM_SIZES[device]:
                rate, took = rate_of(self.backend, "gemm", size, fmt)
                best = max(best, rate)
                if took > GEMM_SECONDS:
                    break
            self.ceilings[gemm] = best
        if asked["bytes"] and (copy not in self.ceilings or asked["again"]):
            size = max(1, asked["bytes"] // 2 // fmt.itemsize)
            rate, _ = rate_of(self.backend, "copy", size, fmt)
            self.ceilings[copy] = max(self.ceilings.get(copy, 0.0), rate)
        return {"gemm": self.ceilings[gemm], "copy": self.ceilings.get(copy)}


def rate_of(backend: Any, what: str, size: int, fmt: Any) -> tuple[float, float]:
    """Operations or bytes per second of `Backend.ceiling`, the best of five samples, and the seconds."""
    from suite.measure import protocol

    call, amount = backend.ceiling(what, size, fmt)
    for _ in range(2):
        once, _ = protocol.timed(call, backend.sync, 1)
    inner = protocol.calls_per_sample(once)
    took = min(protocol.timed(call, backend.sync, inner)[0] for _ in range(5))
    return amount / took, took


def implementations(
    name: str, device: str, functions: Sequence[str] = (), numerics: str = ""
) -> tuple[Any, dict[str, Any]]:
    """A backend, and by name its implementations, the user's functions, and both through the compilers
    that people deploy.

    Raises UsageError and BackendUnavailable.
    """
    from backends import registry
    from backends.compilation import compiled_forms

    backend = registry.load(name, device)
    found = backend.implementations()
    for text in functions:
        found.append(registry.function_implementation(backend, text, numerics))
    # Those a backend has for compilers alone are questions to a rewrite, and no workload.
    own = list(found)
    for compiled in compiled_forms(backend, found):
        if compiled.inner in own and compiled.compiler in backend.timed_compilers:
            found.append(compiled)
    return backend, {i.name: i for i in found}


def cpus_for(threads: int) -> list[int]:
    """The CPUs that so many threads run on, 0 for all: the last ones of this process's own, so that
    workers of one thread share one CPU and none has a better one."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    own = sorted(os.sched_getaffinity(0))
    return own[-threads:] if threads else own


def thread_variables(threads: int) -> dict[str, str]:
    """The environment of a process whose frameworks may start so many threads, 0 for all CPUs."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads or os.cpu_count() or 1))


def pin(threads: int) -> None:
    """Fix threads and CPUs of this process, before a framework is imported."""
    os.environ.update(thread_variables(threads))
    if cpus := cpus_for(threads):
        os.sched_setaffinity(0, cpus)


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if worker is None:
                worker = Worker(asked)
                answer = worker.hello()
            else:
                answer = getattr(worker, asked["do"])(asked)
        except Exception as error:
            answer = _failure(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _failure(error: Exception) -> dict[str, Any]:
    from backends.base import BackendUnavailable

    from backends.registry import UsageError
    from suite.measure.subject import Refused, Unsupported

    if isinstance(error, Refused):
        return {"failed": "refused", "kind": error.kind, "message": error.message,
                "error_ratio": error.error_ratio}  # fmt: skip
    if isinstance(error, Unsupported):
        return {"failed": "unsupported", "kind": "", "message": str(error)}
    if isinstance(error, UsageError | BackendUnavailable):
        return {"failed": "usage", "kind": "", "message": str(error)}
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    return {"failed": "error", "kind": "harness",
            "message": f"{type(error).__name__}: {error} ({where})"}  # fmt: skip


if __name__ == "__main__":
    main()
