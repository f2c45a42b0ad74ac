"""What each framework says of time and memory; the framework is handed in as a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from backends.base import Prepared

COLD_BYTES = 256 * 2**20
"""What is written to empty a GPU's L2: more than the largest one holds (NVIDIA H200: 50 MB)."""


class JaxCompilations:
    """Counts what JAX lowers and compiles in this process, from the moment it is made."""

    def __init__(self, jax: Any) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **more: Any) -> None:
        self.count += event.startswith("/jax/core/compile/")


def jax_peak(jax: Any, prepared: Prepared) -> int | None:
    """Temporaries and output of a jitted call, as XLA planned them; None where it is not jitted."""
    compiled = getattr(prepared.function, "compiled", None)
    jitted = getattr(compiled, "jitted", compiled)
    if jitted is None or not hasattr(jitted, "lower"):
        return None
    arrays = {n: a for n, a in prepared.arguments.items() if isinstance(a, jax.Array)}
    planned = jitted.lower(arrays).compile().memory_analysis()
    if planned is None:
        return None
    return int(planned.temp_size_in_bytes + planned.output_size_in_bytes)


def tensorflow_compilations(prepared: Prepared) -> int:
    """Graphs traced in this process where TensorFlow counts them, else those of the call's function."""
    name = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
    timer = getattr(sys.modules.get(name), "_graph_building_time_counter", None)
    if timer is not None:
        return int(timer.get_cell().value())
    compiled = getattr(prepared.function, "compiled", None)
    return 0 if compiled is None else int(compiled.experimental_get_tracing_count())


def tensorflow_peak(tf: Any, device: str, call: Callable[[], Any]) -> int | None:
    """The most that a call holds at a time on a GPU; None on the CPU, whose allocator does not count."""
    if device == "cpu":
        return None
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    kept = call()
    found = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    del kept
    return int(found - before)
