"""The worker process that holds timed calls of one backend.

`suite.measure.pool` starts this module, in this or another environment. A request is one line of JSON on
standard input, and so is its answer. Threads and CPUs are fixed before the framework is imported.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from dataclasses import asdict, replace
from typing import Any

import msgspec

from attention_conformance.backends.declared import THROUGH
from attention_conformance.backends.threads import thread_variables
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import Fields

GEMM_SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
"""Rows of the square matrices whose products are timed; the fastest product is the limit."""

GEMM_SECONDS = 0.5
"""After a product that takes longer, no larger matrix is tried."""


class Server:
    """Holds timed calls by key, and answers requests. The field `do` of a request names the method.
    `limits`: measured rates of the machine, by ("gemm" or "copy", dtype, bytes)."""

    def __init__(self, request: Fields) -> None:
        if request["cpus"]:
            os.sched_setaffinity(0, request["cpus"])
        self.backend, self.implementations, self.function_facts = load_implementations(
            request["backend"], msgspec.convert(request["options"], Options)
        )
        self.calls: dict[str, Any] = {}
        self.limits: dict[tuple[str, str, int], float] = {}

    def hello(self) -> Fields:
        """Returns the answer to the first request: implementations, versions, and notes for people."""
        offers = [
            {"name": i.name, "mode": i.mode, "operator": i.operator.name}
            for i in self.implementations.values()
        ]
        return {
            "implementations": offers,
            "versions": {name: str(text) for name, text in self.backend.versions.items()},
            "python": sys.version.split()[0],
            "notes": [note for facts in self.function_facts.values() for note in facts.notes],
        }

    def open(self, request: Fields) -> Fields:
        """Prepare a call of an implementation ("NAME", or "NAME@COMPILER") and store it under a key.
        Returns the facts of its preparation."""
        from attention_conformance.suite.measure.call import TimedCall
        from attention_conformance.suite.spec.case import Case

        call = TimedCall(
            self.implementations[request["implementation"]],
            Case.parse(request["case"]),
            request["direction"],
            request["seed"],
            self.function_facts.get(request["implementation"].partition(THROUGH)[0]),
        )
        preparation = call.prepare()
        self.calls[request["key"]] = call
        return asdict(preparation)

    def sample(self, request: Fields) -> Fields:
        """Time one sample of `inner` calls, slowed by the fraction `slow` (a gate's injected slowdown).
        Returns the seconds of one call."""
        call = self.calls[request["key"]]
        # Another process used the CPU and its caches: the first call is not part of the sample.
        call.slowdown = 0.0
        call.sample(1)
        call.slowdown = request["slow"]
        return {"seconds": call.sample(request["inner"])}

    def judge(self, request: Fields) -> Fields:
        """Judge the answers of a timed call. Returns the error ratio. Raises RefusedTime."""
        return {"error_ratio": self.calls[request["key"]].judge()}

    def facts(self, request: Fields) -> Fields:
        """Returns the peak bytes and the kernels of a call."""
        call = self.calls[request["key"]]
        return {"peak_bytes": call.peak_bytes(), "kernel": call.kernels()}

    def close(self, request: Fields) -> Fields:
        """Delete a call, and free its memory."""
        self.calls.pop(request["key"], None)
        gc.collect()
        return {}

    def limit(self, request: Fields) -> Fields:
        """Returns two limits of the machine: "gemm", the fastest matrix product of a dtype in operations
        per second, and "copy", the fastest copy of `bytes` bytes in bytes per second. Limits are measured
        once; with `again` once more, and then the faster result counts."""
        from attention_conformance.suite.spec.dtypes import dtype

        fmt, device = dtype(request["dtype"]), self.backend.device
        gemm, copy = ("gemm", fmt.name, 0), ("copy", fmt.name, request["bytes"])
        if gemm not in self.limits or request["again"]:
            best = self.limits.get(gemm, 0.0)
            for size in GEMM_SIZES[device]:
                rate, seconds = rate_of(self.backend, "gemm", size, fmt)
                best = max(best, rate)
                if seconds > GEMM_SECONDS:
                    break
            self.limits[gemm] = best
        if request["bytes"] and (copy not in self.limits or request["again"]):
            rate = rate_of_copy(self.backend, request["bytes"], fmt)
            self.limits[copy] = max(self.limits.get(copy, 0.0), rate)
        return {"gemm": self.limits[gemm], "copy": self.limits.get(copy)}


def rate_of(backend: Any, kind: str, size: int, fmt: Any) -> tuple[float, float]:
    """Time a product of two matrices ("gemm") with `size` rows and columns, or a copy ("copy") of `size`
    elements, in the dtype `fmt`. Returns its operations or bytes per second in the best of five samples,
    and its seconds."""
    call, amount = backend.machine_limit(kind, size, fmt)
    for _ in range(2):
        first, _ = protocol.timed(call, backend.sync, 1)
    inner = protocol.calls_per_sample(first)
    seconds = min(protocol.timed(call, backend.sync, inner)[0] for _ in range(5))
    return amount / seconds, seconds


def rate_of_copy(backend: Any, moved: int, fmt: Any) -> float:
    """Returns the bytes per second of a copy that moves `moved` bytes: half are read, half written."""
    return rate_of(backend, "copy", max(1, moved // 2 // fmt.itemsize), fmt)[0]


def implementations(name: str, options: Options) -> tuple[Any, dict[str, Any]]:
    """Returns a backend and its implementations by name: the framework's, user functions, and compiled
    forms of both. Raises UsageError and BackendUnavailable.
    """
    backend, by_name, _ = load_implementations(name, options)
    return backend, by_name


def load_implementations(name: str, options: Options) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Returns a backend, its implementations by name (see `implementations`), and `FunctionFacts` by the
    names of user functions."""
    from attention_conformance.backends import registry
    from attention_conformance.backends.compilers import compiled_forms

    backend = registry.load(name, options.device)
    functions = [_load_user_function(backend, options, text) for text in options.function]
    implementations = [*registry.implementations(backend), *(function for function, _ in functions)]
    # Implementations that exist only to test a compiler's rewrites are not timed.
    eager = list(implementations)
    for compiled in compiled_forms(backend, eager):
        if compiled.inner in eager and compiled.compiler in backend.timed_compilers:
            implementations.append(compiled)
    names = [i.name for i in implementations]
    if duplicate := next((name for name in names if names.count(name) > 1), ""):
        raise registry.UsageError(f"two implementations of {backend.name} are called {duplicate!r}")
    facts_by_name = {function.name: facts for function, facts in functions}
    return backend, dict(zip(names, implementations, strict=True)), facts_by_name


def _load_user_function(backend: Any, options: Options, text: str) -> tuple[Any, Any]:
    """Returns the user function that the options call `text`, as an implementation, and its
    `FunctionFacts`. If the options isolate functions, a child process makes its calls. Raises
    UsageError."""
    from attention_conformance.suite.judge.fitting import fit
    from attention_conformance.suite.measure.clock import measure_round_trip
    from attention_conformance.suite.measure.function_facts import FunctionFacts
    from attention_conformance.suite.run.isolation.remote import forbids_native, isolated
    from attention_conformance.suite.run.loading import user_function

    # Conformance runs judge ignored parameters.
    options = replace(options, allow_unused=True)
    own_backend, round_trip, notes = backend, 0.0, tuple[str, ...]()
    if options.isolates:
        own_backend = isolated(options, text)
        round_trip = measure_round_trip(own_backend)
        notes = tuple(f"{text}: {sentence}" for sentence in own_backend.link.unenforced)
    function, _ = user_function(own_backend, text, options)
    fit(function)
    remarks = (remark for remark in function.remarks if remark.startswith("binding: "))
    notes += tuple(f"{text}: {remark}" for remark in remarks)
    watched = function if options.claims.get("forbid") or forbids_native(options) else None
    return function.unwatched, FunctionFacts(round_trip, watched, notes)


def cpus_for(threads: int) -> list[int]:
    """Returns the numbers of the last `threads` CPUs of this process; all for 0; [] if the system does
    not say. Workers of one thread thus share a CPU, and no worker has a faster CPU."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[-threads:] if threads else cpus


def pin(threads: int) -> None:
    """Set threads and CPUs of this process. Must be called before a framework is imported."""
    os.environ.update(thread_variables(threads))
    if cpus := cpus_for(threads):
        os.sched_setaffinity(0, cpus)


def main() -> None:
    """Answer requests until standard input ends. The output of frameworks goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    servers: list[Server] = []

    def answer(request: Fields) -> Fields:
        try:
            if not servers:
                servers.append(Server(request))
                return servers[0].hello()
            return getattr(servers[0], request["do"])(request)
        except Exception as error:
            return _failure(error)

    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def _failure(error: Exception) -> Fields:
    """Returns the answer to a request that raised `error`. Its field `failed` is a status of speed
    records, or "usage"."""
    from attention_conformance.backends.protocol import BackendUnavailable
    from attention_conformance.backends.registry import UsageError
    from attention_conformance.suite.measure.protocol import RefusedTime, UnsupportedCall

    if isinstance(error, RefusedTime):
        return {"failed": "refused", "kind": error.kind, "message": error.message,
                "error_ratio": error.error_ratio}  # fmt: skip
    if isinstance(error, UnsupportedCall):
        return {"failed": "unsupported", "kind": "", "message": str(error)}
    if isinstance(error, UsageError | BackendUnavailable):
        return {"failed": "usage", "kind": "", "message": str(error)}
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    return {"failed": "error", "kind": "harness",
            "message": f"{type(error).__name__}: {error} ({where})"}  # fmt: skip


if __name__ == "__main__":
    main()
