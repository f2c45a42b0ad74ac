"""What TensorFlow says of time, of memory, and of the kernels that ran."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from attention_conformance.backends._tensorflow.tape import step_by_tape
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.profiler import kernels_in
from attention_conformance.backends.protocol import Profiler, Step

_TRACING = "tensorflow.python.eager.polymorphic_function.tracing_compilation"


class TensorflowProfiler(Profiler):
    """What the graphs of compiled calls consist of, and what the allocator of a GPU counts."""

    def kernels(self, prepared: PreparedCall) -> str:
        function = prepared.compiled
        if function is None:
            return ""
        arrays = {n: a for n, a in prepared.arguments.items() if self.backend.is_array(a)}
        if function._jit_compile:
            return kernels_in(function.experimental_get_compiler_ir(arrays)("optimized_hlo"))
        graph = function.get_concrete_function(arrays).graph
        types = {op.type for op in graph.get_operations()}
        return ", ".join(sorted(t for t in types if "MatMul" in t or t in ("Einsum", "Softmax")))

    def sync(self, outputs: Any) -> None:
        import tensorflow as tf

        tf.test.experimental.sync_devices()

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_tape(prepared, direction, wrt)

    def compilations(self, prepared: PreparedCall) -> int:
        # Graphs traced in this process where TensorFlow counts them, else those of the call's function.
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

        if self.backend.device == "cpu":
            return None  # the CPU's allocator does not count
        memory = tf.config.experimental
        before = memory.get_memory_info("GPU:0")["current"]
        memory.reset_memory_stats("GPU:0")
        kept = call()
        peak = memory.get_memory_info("GPU:0")["peak"]
        del kept
        return int(peak - before)
