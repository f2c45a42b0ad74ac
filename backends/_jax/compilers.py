"""Compiled modes in JAX: operation by operation, mapped over the batch, compiled ahead of the first call.

`jax.jit` is the form of eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from attention_conformance.backends._jax import transforms
from attention_conformance.backends._jax.programs import (
    Jitted,
    Static,
    by_operation,
    known_options,
)
from attention_conformance.backends.compilers import over_batch, with_constants
from attention_conformance.backends.prepared import Gradients, PreparedCall
from attention_conformance.backends.protocol import Backend, Compilers, Implementation
from attention_conformance.backends.sources import DIALECTS
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.spec.dtypes import DType

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


AS_ROUNDED = {"xla_allow_excess_precision": False}
"""The option by which a program rounds where its operations round one by one. Without it XLA leaves out
conversions to 16 bits and back, and infinities with them."""


class Traced(Jitted):
    """A user's function through `jax.jit`, as far as JAX can trace it.

    A function that is called as a program runs no Python. So checks of calls themselves call it operation
    by operation (`suite.spec.levels.AS_CALLED`).

    If a program cannot be made, or raises, the function is called operation by operation. If it answers
    then, no further program is tried.
    """

    def __init__(self, plain: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(plain, {**options, **AS_ROUNDED})
        self.traces = True

    def __call__(self, **arguments: Any) -> Any:
        return self._first(partial(super().__call__, **arguments), partial(self.plain, **arguments))

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        plain = by_operation(prepared)
        return self._first(
            partial(super().vjp, prepared, wrt, cotangent),
            partial(transforms.vjp, plain, wrt, cotangent),
        )

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        plain = by_operation(prepared)
        return self._first(
            partial(super().jvp, prepared, tangents), partial(transforms.jvp, plain, tangents)
        )

    def _first(self, program: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        if self.traces:
            with suppress(Exception):
                return program()
        answer = plain()
        self.traces = False
        return answer

    def _answer(self, arrays: Mapping[str, Any], *, static: Static) -> Any:
        import jax

        answer = super()._answer(arrays, static=static)
        if not all(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(answer) or [None]):
            raise TypeError("a program would return arrays of JAX where the function does not")
        return answer


HANDED_OVER = (UserLayer, UserFunction)
"""What people hand over, and is called as it is: all else goes through `jax.jit` anyway."""


class JaxCompilers(Compilers):
    """Forms of a call. What people hand over is asked through "jit", and all else without it.

    - `options`: compiler options of XLA for all jitted functions of the backend
    - `functions`: these functions, one for each implementation and static configuration
    """

    backend: Any
    ambient = {"jit": "traced", "vmap": "mapped"}
    compiles_shapes = True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.options: Mapping[str, Any] = {}
        self.functions: dict[tuple[str, str], Jitted] = {}

    def jitted(
        self, owner: str, prepared: PreparedCall, kind: type[Jitted] = Jitted
    ) -> PreparedCall:
        """The call through `jax.jit`; calls of the implementation `owner` with equal constants share a
        function.

        Raises ValueError if the call has no constants, since it would be compiled each time.
        """
        if prepared.constants is None:
            raise ValueError(f"a call of {owner} names no constants, so it cannot share a program")
        key = (owner, repr(prepared.constants))
        function = self.functions.setdefault(key, kind(prepared.function, self.options))
        text = DIALECTS["jax"].compiled["jit"]
        return replace(prepared, function=function, compiled=function, through=text)

    def surroundings(self, dtype: DType) -> Callable[[], AbstractContextManager[Any]]:
        """Numbers of 64 bits only in float64: people's own programs have none."""
        wide = dtype.name == "f64"
        return nullcontext if wide else partial(self.backend.jax.enable_x64, False)

    def of(self, implementation: Implementation) -> tuple[str, ...]:
        own = "ops" if isinstance(implementation, HANDED_OVER) else "jit"
        return tuple(name for name in super().of(implementation) if name != own)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """The call through "ops", operation by operation, "jit", "vmap" or "aot"."""
        import jax

        plain, is_array = by_operation(prepared), self.backend.is_array
        if compiler == "ops":
            return plain
        if compiler == "aot":
            return with_constants(Ahead, is_array, plain)
        if compiler == "vmap":
            plain = over_batch(jax.vmap, jax.numpy.moveaxis, is_array, plain, batch)
        function = Jitted(plain.function)
        return replace(plain, function=function, compiled=function)

    def lacking(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        if compiler == "vmap":
            return {"empty-batch": "vmap cannot map over an empty batch"}
        return AHEAD if compiler == "aot" else {}

    def as_program(self, function: Implementation, prepared: PreparedCall) -> PreparedCall:
        if not self.options or prepared.constants is None:
            return prepared
        program = self.jitted(function.name, prepared, Traced)
        return replace(program, compiled=None, through="")

    def quick(self) -> Backend | None:
        options = known_options() if self.backend.device == "cpu" else {}
        if not options:
            return None
        backend: Any = type(self.backend)(self.backend.device)
        backend.compilers.options = options
        return backend
