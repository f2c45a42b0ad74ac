"""Compiled modes in JAX: operation by operation, mapped over the batch, and compiled ahead of the first
call.

Eager mode already calls `jax.jit`, except for user code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from attention_conformance.backends._jax import transforms
from attention_conformance.backends._jax.programs import (
    Jitted,
    Static,
    by_operation,
    known_options,
)
from attention_conformance.backends.compilers import over_batch, with_constants
from attention_conformance.backends.prepared import Gradients, PreparedCall, Pullback
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.sources import DIALECTS
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.spec.dtypes import DType

AHEAD = {
    "gradient": "a program that is compiled ahead has no derivative",
    "other-shapes": "a program that is compiled ahead has fixed shapes",
}
"""Features that programs compiled ahead lack, with reasons."""


class Ahead:
    """A function that is compiled ahead of its first call, for the shapes of that call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.program: Any = None

    def __call__(self, arrays: Any) -> Any:
        import jax

        if self.program is None:
            self.program = jax.jit(self.function).lower(arrays).compile()
        return self.program(arrays)


AS_ROUNDED = {"xla_allow_excess_precision": False}
"""XLA's option by which a program rounds after every operation, as single operations do. Without the
option XLA leaves out conversions to 16 bits and back, and so their overflow to infinity."""


class Traced(Jitted):
    """A user's function through `jax.jit`, if JAX can trace it.

    A program runs no Python. So checks of calls themselves call the function operation by operation
    (`suite.spec.levels.AS_CALLED`).

    If a program cannot be made, or raises, the function is called operation by operation. If this call
    returns, `tries_programs` becomes False: no further program is tried.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(function, {**options, **AS_ROUNDED})
        self.tries_programs = True

    def __call__(self, **arguments: Any) -> Any:
        return self._program_or_operations(
            partial(super().__call__, **arguments), partial(self.function, **arguments)
        )

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        unjitted = by_operation(prepared)
        return self._program_or_operations(
            partial(super().vjp, prepared, wrt, cotangent),
            partial(transforms.vjp, unjitted, wrt, cotangent),
        )

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        unjitted = by_operation(prepared)
        return self._program_or_operations(
            partial(super().pullback, prepared, wrt), partial(transforms.pullback, unjitted, wrt)
        )

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        unjitted = by_operation(prepared)
        return self._program_or_operations(
            partial(super().jvp, prepared, tangents), partial(transforms.jvp, unjitted, tangents)
        )

    def _program_or_operations(
        self, program: Callable[[], Any], by_operations: Callable[[], Any]
    ) -> Any:
        if self.tries_programs:
            with suppress(Exception):
                return program()
        answer = by_operations()
        self.tries_programs = False
        return answer

    def _answer(self, arrays: Mapping[str, Any], *, static: Static) -> Any:
        import jax

        answer = super()._answer(arrays, static=static)
        if not all(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(answer) or [None]):
            raise TypeError("a program would return arrays of JAX where the function does not")
        return answer


USER_CODE = (UserLayer, UserFunction)
"""Implementations that eager mode calls operation by operation. All others are called through
`jax.jit`."""


class JaxCompilers(Backend):
    """Compiled forms of a call: "jit" only for `USER_CODE`, "ops" only for other implementations.

    - `options`: compiler options of XLA for all jitted functions of the backend
    - `functions`: the jitted functions, by implementation and static configuration
    """

    jax: Any

    ambient = {"jit": "traced", "vmap": "mapped"}
    compiles_shapes = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.options: Mapping[str, Any] = {}
        self.functions: dict[tuple[str, str], Jitted] = {}

    def jitted(
        self, owner: Implementation, prepared: PreparedCall, kind: type[Jitted] = Jitted
    ) -> PreparedCall:
        """Returns the call through `jax.jit`. Calls of the implementation `owner` with equal constants
        share a function.

        Raises ValueError if the call has no constants: it would be compiled each time.
        """
        if prepared.constants is None:
            raise ValueError(
                f"a call of {owner.name} names no constants, so it cannot share a program"
            )
        key = (owner.name, repr(prepared.constants))
        function = self.functions.setdefault(key, kind(prepared.function, self.options))
        text = DIALECTS["jax"].compiled["jit"]
        return replace(prepared, function=function, compiled=function, through=text)

    def surroundings(self, dtype: DType) -> Callable[[], AbstractContextManager[Any]]:
        """Returns the context of a call. 64-bit numbers are on only in float64 calls; by default JAX has
        none."""
        wide = dtype.name == "f64"
        return nullcontext if wide else partial(self.jax.enable_x64, False)

    def compilers_of(self, implementation: Implementation) -> tuple[str, ...]:
        default_form = "ops" if isinstance(implementation, USER_CODE) else "jit"
        return tuple(name for name in super().compilers_of(implementation) if name != default_form)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """Returns the call in a form: "ops" (operation by operation), "jit", "vmap", or "aot"
        (`Ahead`)."""
        import jax

        call, is_array = by_operation(prepared), self.is_array
        if compiler == "ops":
            return call
        if compiler == "aot":
            return with_constants(Ahead, is_array, call)
        if compiler == "vmap":
            call = over_batch(jax.vmap, jax.numpy.moveaxis, is_array, call, batch)
        function = Jitted(call.function, self.options)
        return replace(call, function=function, compiled=function)

    def lacking_through(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        if compiler == "vmap":
            return {"empty-batch": "vmap cannot map over an empty batch"}
        return AHEAD if compiler == "aot" else {}

    def as_program(self, function: Implementation, prepared: PreparedCall) -> PreparedCall:
        if not self.options or prepared.constants is None:
            return prepared
        program = self.jitted(function, prepared, Traced)
        return replace(program, compiled=None, through="")

    def quick(self) -> Self | None:
        """Returns a new backend that compiles with the known `OPTIONS`; None on a GPU, or if XLA knows
        none."""
        options = known_options() if self.device == "cpu" else {}
        if not options:
            return None
        backend = type(self)(self.device)
        backend.options = options
        return backend
