"""Derivatives of prepared calls by `tf.GradientTape`, for checks and for timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attention_conformance.backends.prepared import PreparedCall, underivable
from attention_conformance.backends.protocol import Step

Gradients = tuple[Any, dict[str, Any]]
"""The output of a call, and its gradients by operand."""


Pullback = tuple[Any, Callable[[Any], dict[str, Any]]]
"""The output of a call, and its gradients by operand as a function of the cotangent."""

UNDERIVABLE = "gradient registry has no entry for|No gradient defined for operation"
"""The messages of TensorFlow about an operation without a gradient."""


def by_tape(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """Output and gradients by `tf.GradientTape`, which watches only the operands `wrt`."""
    out, pull = pullback(prepared, wrt, again=False)
    return out, pull(cotangent)


def pullback(prepared: PreparedCall, wrt: Sequence[str], again: bool = True) -> Pullback:
    """Output and pullback by `tf.GradientTape`; `again` keeps the tape for another call."""
    import tensorflow as tf

    sources = {name: prepared.arguments[prepared.argument(name)] for name in wrt}
    with tf.GradientTape(persistent=again, watch_accessed_variables=False) as tape:
        tape.watch(list(sources.values()))
        out = prepared.output(prepared.arguments)

    def pull(cotangent: Any) -> dict[str, Any]:
        with underivable(UNDERIVABLE):
            gradients = tape.gradient(out, list(sources.values()), output_gradients=cotangent)
        # The gradient of what was gathered is IndexedSlices.
        dense = [None if x is None else tf.convert_to_tensor(x) for x in gradients]
        return dict(zip(sources, dense, strict=True))

    return out, pull


def step_by_tape(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """`Profiler.step` by `tf.GradientTape`; the step of a compiled call is compiled as a whole."""
    import tensorflow as tf

    wholes: list[Callable[..., Any]] = []

    def step(arguments: Mapping[str, Any], cotangent: Any) -> Gradients:
        return by_tape(replace(prepared, arguments=dict(arguments)), wrt, cotangent)

    def compiled(arrays: Mapping[str, Any], rest: Mapping[str, Any], cotangent: Any) -> Gradients:
        if not wholes:
            jit = prepared.compiled._jit_compile
            wholes.append(tf.function(lambda a, c: step({**a, **rest}, c), jit_compile=jit))
        return wholes[0](arrays, cotangent)

    def ready(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        arrays = {n: a for n, a in arguments.items() if tf.is_tensor(a)}
        rest = {n: a for n, a in arguments.items() if n not in arrays}
        if direction == "forward+backward":
            if prepared.compiled is None:
                return lambda: step(arguments, cotangent)
            return lambda: compiled(arrays, rest, cotangent)
        _, pull = pullback(replace(prepared, arguments=dict(arguments)), wrt)
        return lambda: (None, pull(cotangent))

    return ready
