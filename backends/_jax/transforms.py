"""Derivatives of prepared calls by `jax.vjp` and `jax.jvp`, for checks and for timing.

The derivatives of a call that is one program are one program each (`Jitted`). Other calls are
differentiated operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from traceback import extract_tb
from typing import Any

from attention_conformance.backends._jax.programs import Jitted, by_operation, split_arguments
from attention_conformance.backends.engine import Step
from attention_conformance.backends.prepared import (
    ForwardOnly,
    Gradients,
    PreparedCall,
    Pullback,
    no_derivative_as_forward_only,
)

UNDERIVABLE = (
    "^(Differentiation rule for '.*' not implemented|Pure callbacks do not support JVP"
    "|The FFI call to .* cannot be differentiated|Linearization failed to produce known values"
    "|Reverse-mode differentiation does not work for lax.while_loop)"
)
"""Pattern of JAX's messages about an operation without a derivative, such as a Pallas kernel without
`jax.custom_vjp`."""

PALLAS_RULE = "_pallas_call_jvp_rule"
"""JAX's function that differentiates a Pallas kernel."""

NO_JVP = r"^can't apply forward-mode autodiff \(jvp\) to a custom_vjp function"
"""JAX's message about the JVP of a function with `jax.custom_vjp`."""


@contextmanager
def deriving() -> Iterator[None]:
    """A context in which an operation without a derivative raises ForwardOnly.

    If a kernel reads `program_id`, JAX's rule of Pallas kernels fails an assertion without a message;
    this also becomes ForwardOnly.
    """
    with no_derivative_as_forward_only(UNDERIVABLE):
        try:
            yield
        except AssertionError as error:
            if PALLAS_RULE not in {frame.name for frame in extract_tb(error.__traceback__)}:
                raise
            raise ForwardOnly(
                f"JAX's {PALLAS_RULE} fails: the kernel has no jax.custom_vjp"
            ) from error


def vjp(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """Returns output and gradients by `jax.vjp`, with respect to the operands `wrt`.

    There are no gradients if output and cotangent have different dtypes.
    """
    if isinstance(prepared.function, Jitted):
        return prepared.function.vjp(prepared, wrt, cotangent)
    out, pull = _output_and_vjp(prepared, wrt)
    if out.dtype != cotangent.dtype:
        return out, {}  # wrong dtype of the answer: vjp would refuse the cotangent
    return out, dict(zip(wrt, pull(cotangent), strict=True))


def pullback(prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
    """Returns output and pullback by `jax.vjp`."""
    if isinstance(prepared.function, Jitted):
        return prepared.function.pullback(prepared, wrt)
    out, pull = _output_and_vjp(prepared, wrt)
    return out, lambda cotangent: dict(zip(wrt, pull(cotangent), strict=True))


def jvp(prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
    """Returns the JVP of the output for `tangents`, by `jax.jvp`."""
    import jax

    if isinstance(prepared.function, Jitted):
        return prepared.function.jvp(prepared, tangents)
    output, operands = prepared.output_function([*tangents])
    return jax.jvp(output, tuple(operands), tuple(tangents.values()))[1]


def step(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """Returns `Engine.timed_step`. If the call is one program, forward and backward pass are one program,
    too."""
    import jax

    if direction == "forward":
        return _forward(prepared)
    jitted = isinstance(prepared.function, Jitted)
    wrap: Callable[..., Any] = jax.jit if jitted else _unchanged
    unjitted = by_operation(prepared)
    apply = wrap(lambda pull, cotangent: pull(cotangent))
    # One trace for all calls: another trace would be compiled again.
    programs: dict[str, Callable[..., Any]] = {}

    def ready(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        """Returns a function without arguments that runs the step; only its calls are timed."""
        arrays, static = split_arguments(arguments)

        def output_and_pullback(arrays: Mapping[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
            return _output_and_vjp(replace(unjitted, arguments=static.arguments(arrays)), wrt)

        def output_and_gradients(arrays: Mapping[str, Any], cotangent: Any) -> Gradients:
            out, pull = output_and_pullback(arrays)
            return out, dict(zip(wrt, pull(cotangent), strict=True))

        if direction == "forward+backward":
            program = programs.setdefault(direction, wrap(output_and_gradients))
            return prepared.inside(lambda: program(arrays, cotangent))
        _, pull = prepared.inside(programs.setdefault(direction, wrap(output_and_pullback)))(arrays)
        return prepared.inside(lambda: (None, dict(zip(wrt, apply(pull, cotangent), strict=True))))

    return ready


def _forward(prepared: PreparedCall) -> Step:
    """Returns the step of a forward pass, which ignores the cotangent."""
    function = prepared.function
    if isinstance(function, Jitted):
        return lambda arguments, cotangent: prepared.inside(function.ready(arguments))
    return lambda arguments, cotangent: lambda: prepared.call(arguments)


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _output_and_vjp(prepared: PreparedCall, wrt: Sequence[str]) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the output of a call, and the function of its VJP with respect to `wrt`."""
    import jax

    output, operands = prepared.output_function(wrt)
    return jax.vjp(output, *operands)
