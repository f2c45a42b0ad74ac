"""Derivatives of prepared calls by `tf.GradientTape`, for checks and for timing; memory, compilations and
kernels of calls, as TensorFlow reports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attention_conformance.backends.compilers import kernels_in
from attention_conformance.backends.engine import Step
from attention_conformance.backends.prepared import (
    Gradients,
    PreparedCall,
    Pullback,
    no_derivative_as_forward_only,
)
from attention_conformance.backends.protocol import Backend

_TRACING = "tensorflow.python.eager.polymorphic_function.tracing_compilation"


UNDERIVABLE = "gradient registry has no entry for|No gradient defined for operation"
"""Pattern of TensorFlow's messages about an operation without a gradient."""


def by_tape(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """Returns output and gradients by `tf.GradientTape`, which watches only the operands `wrt`."""
    out, pull = pullback(prepared, wrt, persistent=False)
    return out, pull(cotangent)


def pullback(prepared: PreparedCall, wrt: Sequence[str], persistent: bool = True) -> Pullback:
    """Returns output and pullback by `tf.GradientTape`. `persistent`: the pullback can be called
    again."""
    import tensorflow as tf

    sources = {name: prepared.arguments[prepared.argument(name)] for name in wrt}
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as tape:
        tape.watch(list(sources.values()))
        out = prepared.output(prepared.arguments)

    def pull(cotangent: Any) -> dict[str, Any]:
        with no_derivative_as_forward_only(UNDERIVABLE):
            gradients = tape.gradient(out, list(sources.values()), output_gradients=cotangent)
        # The gradient of what was gathered is IndexedSlices.
        tensors = [None if x is None else tf.convert_to_tensor(x) for x in gradients]
        return dict(zip(sources, tensors, strict=True))

    return out, pull


def step_by_tape(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """Returns `Engine.timed_step` by `tf.GradientTape`. The step of a compiled call is compiled as a
    whole."""
    import tensorflow as tf

    programs: list[Callable[..., Any]] = []

    def step(arguments: Mapping[str, Any], cotangent: Any) -> Gradients:
        return by_tape(replace(prepared, arguments=dict(arguments)), wrt, cotangent)

    def compiled_step(
        arrays: Mapping[str, Any], values: Mapping[str, Any], cotangent: Any
    ) -> Gradients:
        if not programs:
            jit = prepared.compiled._jit_compile
            programs.append(tf.function(lambda a, c: step({**a, **values}, c), jit_compile=jit))
        return programs[0](arrays, cotangent)

    def ready(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        arrays = {n: a for n, a in arguments.items() if tf.is_tensor(a)}
        values = {n: a for n, a in arguments.items() if n not in arrays}
        if direction == "forward+backward":
            if prepared.compiled is None:
                return lambda: step(arguments, cotangent)
            return lambda: compiled_step(arrays, values, cotangent)
        _, pull = pullback(replace(prepared, arguments=dict(arguments)), wrt)
        return lambda: (None, pull(cotangent))

    return ready


class TensorflowProfiler(Backend):
    """Operations in the graphs of compiled calls, and memory as a GPU's allocator counts it."""

    def kernels(self, prepared: PreparedCall) -> str:
        function = prepared.compiled
        if function is None:
            return ""
        arrays = {n: a for n, a in prepared.arguments.items() if self.is_array(a)}
        if function._jit_compile:
            return kernels_in(function.experimental_get_compiler_ir(arrays)("optimized_hlo"))
        graph = function.get_concrete_function(arrays).graph
        types = {op.type for op in graph.get_operations()}
        return ", ".join(sorted(t for t in types if "MatMul" in t or t in ("Einsum", "Softmax")))

    def sync(self, outputs: Any) -> None:
        import tensorflow as tf

        tf.test.experimental.sync_devices()

    def timed_step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().timed_step(prepared, direction, wrt)
        return step_by_tape(prepared, direction, wrt)

    def compilations(self, prepared: PreparedCall) -> int:
        # TensorFlow's count of all traced graphs of the process, or else of the call's function.
        timer = getattr(sys.modules.get(_TRACING), "_graph_building_time_counter", None)
        if timer is not None:
            return int(timer.get_cell().value())
        function = prepared.compiled
        return 0 if function is None else int(function.experimental_get_tracing_count())

    def multiplied(self, array: Any) -> Callable[[], Any]:
        import tensorflow as tf

        return lambda: tf.matmul(array, array)

    def copied(self, array: Any) -> Callable[[], Any]:
        import tensorflow as tf

        return lambda: tf.negative(array)

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        import tensorflow as tf

        if self.device == "cpu":
            return None  # the CPU's allocator does not count
        memory = tf.config.experimental
        before = memory.get_memory_info("GPU:0")["current"]
        memory.reset_memory_stats("GPU:0")
        answer = call()
        peak = memory.get_memory_info("GPU:0")["peak"]
        del answer
        return int(peak - before)
