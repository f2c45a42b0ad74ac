"""Forms of a call in JAX besides `jax.jit`, which is how it is called anyway: operation by operation,
mapped over the batch, and compiled ahead of the first call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backends._jax.programs import Jitted, by_operation
from backends.compilation import over_batch, with_constants
from backends.prepared import PreparedCall
from backends.protocol import Backend

AHEAD = {
    "gradient": "a program compiled ahead has no derivative",
    "other-shapes": "a program compiled ahead takes the shapes it was compiled for",
}
"""What programs that are compiled ahead of their first call lack."""


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
    """The call through a `jax.jit` of its own."""
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
