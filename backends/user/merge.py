"""A person's own merging of partial answers as an implementation; see docs/merge.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backends.binder import Binder
from backends.claims import Claims
from backends.declared import MERGE_FEATURES
from backends.prepared import WITH_LSE, PreparedCall
from backends.protocol import Backend
from backends.user.function import UserCallable
from suite.spec.inputs import Inputs
from suite.spec.operators.merge import MERGE

ARRAYS = ("partial_output", "partial_lse")
"""What a function is handed by place."""


class UserMerge(UserCallable):
    """A person's `function(partial_output, partial_lse)`: (P, B, H, Lq, Dv) in the case's dtype and
    (P, B, H, Lq), float32 beside 16-bit outputs; it returns (B, H, Lq, Dv) and (B, H, Lq), in these
    dtypes. Raises TypeError if the function does not fit.
    """

    operator = MERGE

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        binder: Binder[Inputs] = Binder.of(function, name, (), ARRAYS)
        declared = claims.declared(MERGE_FEATURES)
        super().__init__(backend, function, name, claims, binder, declared)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        arrays, dtype = inputs.arrays, inputs.dtype
        arguments = {
            "partial_output": self.backend.array(arrays["partial_output"], dtype),
            "partial_lse": self.backend.array(arrays["partial_lse"], dtype.widened),
        }

        def call(partial_output: Any, partial_lse: Any) -> Any:
            return self.judged(partial_output, partial_lse)

        return PreparedCall(call, arguments, WITH_LSE, constants=())
