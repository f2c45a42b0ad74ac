"""Compilations, memory and kernels of calls, as JAX and XLA report them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from attention_conformance.backends._jax import transforms
from attention_conformance.backends._jax.compilers import Ahead
from attention_conformance.backends._jax.programs import Jitted
from attention_conformance.backends.compilers import kernels_in
from attention_conformance.backends.engine import Step
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
"""The event of `jax.monitoring` for every program that XLA compiles."""


class Compilations:
    """Counts JAX's events in this process from its creation on: `count` traces, lowerings and
    compilations, `programs` only compilations."""

    def __init__(self) -> None:
        import jax

        self.count = self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self._count_event)

    def _count_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event.startswith("/jax/core/compile/")
        self.programs += event == COMPILE_EVENT


def _program(prepared: PreparedCall) -> Any:
    """Returns XLA's program of the call; None if the call is not one program."""
    handle = prepared.compiled
    if isinstance(handle, Jitted):
        return handle.compiled(prepared.arguments)
    return handle.program if isinstance(handle, Ahead) else None


class JaxProfiler(Backend):
    """Kernels and memory of XLA's programs, and JAX's compilations."""

    attention_functions = ("jax.nn.dot_product_attention",)

    def kernels(self, prepared: PreparedCall) -> str:
        """Returns the kernels in XLA's program of the call. If the call is not one program, returns the
        numbers of products and custom calls."""
        import jax

        program = _program(prepared)
        if program is not None:
            return kernels_in(program.as_text())
        arrays = {n: a for n, a in prepared.arguments.items() if isinstance(a, jax.Array)}
        traced = jax.make_jaxpr(lambda arrays: prepared.function(**prepared.arguments | arrays))
        names = re.findall(r"\b(\w*dot_general\w*|\w+_call\w*)\[", str(traced(arrays)))
        return ", ".join(f"{n} {name}" for name, n in sorted(Counter(names).items()))

    def sync(self, outputs: Any) -> None:
        import jax

        jax.block_until_ready(outputs)

    def timed_step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        return transforms.step(prepared, direction, wrt)

    @cached_property
    def _compilations(self) -> Compilations:
        return Compilations()

    def compilations(self, prepared: PreparedCall) -> int:
        return self._compilations.count

    def copied(self, array: Any) -> Callable[[], Any]:
        return lambda: -array

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """Returns the bytes of temporaries and output of a call that is one program, as XLA planned them;
        else None."""
        program = _program(prepared)
        plan = None if program is None else program.memory_analysis()
        return None if plan is None else int(plan.temp_size_in_bytes + plan.output_size_in_bytes)
