"""Compiled modes in JAX: operation by operation, mapped over the batch, compiled ahead of the first call.

`jax.jit` is the form of eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backends._jax.programs import Jitted, by_operation
from backends.compilation import over_batch, with_constants
from backends.prepared import PreparedCall
from backends.protocol import Backend

AHEAD = {
    "gradient": "a program that is compiled ahead has no derivative",
    "other-shapes": "a program that is compiled ahead has fixed shapes",
}
"""Features that programs lack if they are compiled ahead, with reasons."""


class Ahead:
    """A function lowered and compiled ahead of its first call, for the shapes of that call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.program: Any = None

    def __call__(self, arrays: Any) -> Any:
        import jax

        if self.program is None:
            self.program = jax.jit(self.function).lower(arrays).compile()
        return self.program(arrays)


def jitted(prepared: PreparedCall) -> PreparedCall:
    """The call through its own `jax.jit`."""
    function = Jitted(prepared.function)
    return replace(prepared, function=function, compiled=function)


def compiled(backend: Backend, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
    """The call through "ops", operation by operation, "jit", "vmap" or "aot" (see `Backend.compiled`)."""
    import jax

    plain = by_operation(prepared)
    if compiler == "ops":
        return plain
    if compiler == "aot":
        return with_constants(Ahead, backend.is_array, plain)
    if compiler == "vmap":
        plain = over_batch(jax.vmap, jax.numpy.moveaxis, backend.is_array, plain, batch)
    return jitted(plain)
