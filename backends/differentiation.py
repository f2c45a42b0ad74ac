"""How each framework differentiates a prepared call; the framework is handed in as a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from backends.base import ForwardOnly, Prepared

Found = tuple[Any, dict[str, Any]]
"""A call's output, and its gradients by operand."""

Step = Callable[[Mapping[str, Any], Any], Callable[[], Any]]
"""What `Backend.step` returns."""


def by_tape(tf: Any, prepared: Prepared, wrt: Sequence[str], cotangent: Any) -> Found:
    """`tf.GradientTape`, which watches the operands that ask for a gradient and nothing else."""
    sources = {name: prepared.arguments[prepared.operands[name]] for name in wrt}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(sources.values()))
        out = prepared()
    found = tape.gradient(out, list(sources.values()), output_gradients=cotangent)
    return out, dict(zip(sources, found, strict=True))


def by_transform(jax: Any, prepared: Prepared, wrt: Sequence[str], cotangent: Any) -> Found:
    """`jax.vjp` of the call as a function of the operands that ask for a gradient.

    No gradients where the output has another dtype than the cotangent.
    """

    def call(*arrays: Any) -> Any:
        return prepared.call(prepared.with_operands(dict(zip(wrt, arrays, strict=True))))

    out, pull = jax.vjp(call, *(prepared.arguments[prepared.operands[name]] for name in wrt))
    if out.dtype != cotangent.dtype:
        return out, {}  # the answer's dtype is the fault; vjp would refuse the cotangent
    return out, dict(zip(wrt, pull(cotangent), strict=True))


def pushed_by_transform(jax: Any, prepared: Prepared, tangents: Mapping[str, Any]) -> Any:
    """`jax.jvp` of the call as a function of the operands that move."""
    names = list(tangents)

    def call(*arrays: Any) -> Any:
        return prepared.call(prepared.with_operands(dict(zip(names, arrays, strict=True))))

    given = tuple(prepared.arguments[prepared.operands[name]] for name in names)
    return jax.jvp(call, given, tuple(tangents.values()))[1]


def step_by_tape(tf: Any, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
    """`Backend.step` by `tf.GradientTape`; the whole step of a compiled call is compiled as one."""
    compiled = getattr(prepared.function, "compiled", None)

    def made(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        arrays = {n: a for n, a in arguments.items() if tf.is_tensor(a)}
        rest = {n: a for n, a in arguments.items() if n not in arrays}
        if direction == "forward+backward":
            whole = wholes[0] if wholes else step
            return lambda: whole(arrays, rest, cotangent)
        sources = {n: arguments[prepared.operands[n]] for n in wrt}
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(list(sources.values()))
            out = prepared.call(arguments)

        def backward() -> Any:
            found = tape.gradient(out, list(sources.values()), output_gradients=cotangent)
            return None, dict(zip(sources, found, strict=True))

        return backward

    def step(arrays: Mapping[str, Any], rest: Mapping[str, Any], cotangent: Any) -> Found:
        return by_tape(tf, replace(prepared, arguments={**arrays, **rest}), wrt, cotangent)

    wholes = []
    if compiled is not None:
        jit = compiled._jit_compile
        inlined: dict[tuple, Callable[..., Any]] = {}

        def once(arrays: Mapping[str, Any], rest: Mapping[str, Any], cotangent: Any) -> Found:
            if () not in inlined:
                inlined[()] = tf.function(lambda a, c: step(a, rest, c), jit_compile=jit)
            return inlined[()](arrays, cotangent)

        wholes.append(once)
    return made


def step_by_transform(jax: Any, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
    """`Backend.step` by `jax.vjp`; the whole step of a compiled call is compiled as one."""
    compiled = getattr(prepared.function, "compiled", None) is not None
    pulled = jax.jit(lambda pull, cotangent: pull(cotangent)) if compiled else None

    def made(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        arrays = {n: a for n, a in arguments.items() if isinstance(a, jax.Array)}
        rest = {n: a for n, a in arguments.items() if n not in arrays}
        if direction == "forward+backward":
            if not whole:

                def step(arrays: Any, cotangent: Any) -> Found:
                    given = replace(prepared, arguments={**arrays, **rest})
                    return by_transform(jax, given, wrt, cotangent)

                whole.append(jax.jit(step) if compiled else step)
            return lambda: whole[0](arrays, cotangent)

        if not taped:

            def taken(arrays: Any) -> Any:
                def call(*moving: Any) -> Any:
                    given = {prepared.operands[n]: x for n, x in zip(wrt, moving, strict=True)}
                    return prepared.call({**arrays, **rest, **given})

                return jax.vjp(call, *(arrays[prepared.operands[n]] for n in wrt))[1]

            # The derivative of one trace: that of another call would be compiled anew.
            taped.append(jax.jit(taken) if compiled else taken)
        pull = taped[0](arrays)

        def backward() -> Any:
            found = pulled(pull, cotangent) if pulled else pull(cotangent)
            return None, dict(zip(wrt, found, strict=True))

        return backward

    whole: list[Callable[..., Any]] = []
    taped: list[Callable[..., Any]] = []
    return made
