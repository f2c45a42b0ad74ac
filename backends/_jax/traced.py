"""Programs of users' functions, as far as JAX can trace these.

A function that is called as a program runs no Python. So checks of calls themselves call it operation by
operation (`suite.spec.levels.AS_CALLED`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from attention_conformance.backends._jax import transforms
from attention_conformance.backends._jax.programs import Gradients, Jitted, Static, by_operation
from attention_conformance.backends.prepared import PreparedCall

AS_ROUNDED = {"xla_allow_excess_precision": False}
"""The option by which a program rounds where its operations round one by one. Without it XLA leaves out
conversions to 16 bits and back, and infinities with them."""


class Traced(Jitted):
    """A user's function through `jax.jit`.

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
