"""Derivatives of prepared calls by `jax.vjp` and `jax.jvp`, and what is timed of them.

A call that is one program has its derivatives as one program each (`Jitted`); any other is differentiated
operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backends._jax.programs import Gradients, Jitted, by_operation, divided
from backends.prepared import PreparedCall
from backends.protocol import Step


def vjp(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """`jax.vjp` of the call as a function of the operands that ask for a gradient.

    No gradients where the output has another dtype than the cotangent.
    """
    if isinstance(prepared.function, Jitted):
        return prepared.function.vjp(prepared, wrt, cotangent)
    out, pull = _pull(prepared, wrt)
    if out.dtype != cotangent.dtype:
        return out, {}  # the answer's dtype is the fault; vjp would refuse the cotangent
    return out, dict(zip(wrt, pull(cotangent), strict=True))


def jvp(prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
    """`jax.jvp` of the call as a function of the operands that move."""
    import jax

    if isinstance(prepared.function, Jitted):
        return prepared.function.jvp(prepared, tangents)
    output, operands = prepared.of_operands([*tangents])
    return jax.jvp(output, tuple(operands), tuple(tangents.values()))[1]


def step(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """`Backend.step`; of a call that is one program, the whole step is one, too."""
    import jax

    if direction == "forward":
        return _forward(prepared)
    jitted = isinstance(prepared.function, Jitted)
    through: Callable[..., Any] = jax.jit if jitted else _as_it_is
    plain = by_operation(prepared)
    pulled = through(lambda pull, cotangent: pull(cotangent))
    # The derivative of one trace: that of another call would be compiled anew.
    programs: dict[str, Callable[..., Any]] = {}

    def ready(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        arrays, static = divided(arguments)

        def taped(arrays: Mapping[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
            return _pull(replace(plain, arguments=static.arguments(arrays)), wrt)

        def whole(arrays: Mapping[str, Any], cotangent: Any) -> Gradients:
            out, pull = taped(arrays)
            return out, dict(zip(wrt, pull(cotangent), strict=True))

        if direction == "forward+backward":
            both = programs.setdefault(direction, through(whole))
            return lambda: both(arrays, cotangent)
        _, pull = programs.setdefault(direction, through(taped))(arrays)
        return lambda: (None, dict(zip(wrt, pulled(pull, cotangent), strict=True)))

    return ready


def _forward(prepared: PreparedCall) -> Step:
    function = prepared.function
    if isinstance(function, Jitted):
        return lambda arguments, cotangent: function.ready(arguments)
    return lambda arguments, cotangent: lambda: prepared.call(arguments)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _pull(prepared: PreparedCall, wrt: Sequence[str]) -> tuple[Any, Callable[[Any], Any]]:
    """The output of a call, and what pulls a cotangent back to the operands `wrt`."""
    import jax

    output, operands = prepared.of_operands(wrt)
    return jax.vjp(output, *operands)
