"""Compilations, peak memory and operations of a call, as JAX and XLA report them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from backends._jax.compilers import Ahead
from backends._jax.programs import Jitted
from backends.hlo import kernels_in
from backends.prepared import PreparedCall

COLD_BYTES = 256 * 2**20
"""The bytes to write to empty a GPU's L2 cache, more than the largest cache (NVIDIA H200: 50 MB)."""

COMPILED = "/jax/core/compile/backend_compile_duration"
"""The event of `jax.monitoring` for every program that XLA compiles."""


class Compilations:
    """Counts what JAX traces, lowers and compiles in this process from now on; `programs` counts programs
    that XLA compiled."""

    def __init__(self) -> None:
        import jax

        self.count = self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event.startswith("/jax/core/compile/")
        self.programs += event == COMPILED


def _program(prepared: PreparedCall) -> Any:
    """XLA's program of the call; None if the call is not one program."""
    handle = prepared.compiled
    if isinstance(handle, Jitted):
        return handle.compiled(prepared.arguments)
    return handle.program if isinstance(handle, Ahead) else None


def peak_bytes(prepared: PreparedCall) -> int | None:
    """Bytes of temporaries and output by XLA's plan; None if the call is not one program."""
    program = _program(prepared)
    plan = None if program is None else program.memory_analysis()
    return None if plan is None else int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def kernels(prepared: PreparedCall) -> str:
    """The operations of XLA's program, or the operations that JAX passes to XLA one by one."""
    import jax

    program = _program(prepared)
    if program is not None:
        return kernels_in(program.as_text())
    arrays = {n: a for n, a in prepared.arguments.items() if isinstance(a, jax.Array)}
    traced = jax.make_jaxpr(lambda arrays: prepared.function(**prepared.arguments | arrays))
    names = re.findall(r"\b(\w*dot_general\w*|\w+_call\w*)\[", str(traced(arrays)))
    return ", ".join(f"{n} {name}" for name, n in sorted(Counter(names).items()))
