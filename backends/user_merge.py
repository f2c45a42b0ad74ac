"""A person's own merging of partial answers as an implementation; see docs/merge.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backends.claims import Claims
from backends.declared import MERGE_FEATURES
from backends.prepared import WITH_LSE, PreparedCall
from backends.protocol import Backend, Implementation
from backends.user import Keywords, check_unused, named_once
from suite.spec.inputs import Inputs
from suite.spec.operators.merge import MERGE

ARRAYS = ("partial_output", "partial_lse")
"""What a function is handed by place."""


class UserMerge(Implementation):
    """A person's `function(partial_output, partial_lse)`: (P, B, H, Lq, Dv) in the case's dtype and
    (P, B, H, Lq), float32 beside 16-bit outputs; it returns (B, H, Lq, Dv) and (B, H, Lq), in these
    dtypes.

    Raises TypeError where the signature does not fit, and UsageError for parameters that nobody passes,
    unless the claims allow them.
    """

    operator = MERGE

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        self.judged = function
        keywords = Keywords.of(function, name, ARRAYS, ())
        if not claims.allow_unused:
            check_unused(f"function {name}", keywords.unused, (), keywords.taken)
        self.argument_names = named_once(ARRAYS, keywords.names)
        super().__init__(backend, name, claims.declared(MERGE_FEATURES))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend = self.backend
        arguments = {
            "partial_output": backend.array(inputs.arrays["partial_output"], inputs.dtype),
            "partial_lse": backend.array(inputs.arrays["partial_lse"], inputs.dtype.widened),
        }

        def call(partial_output: Any, partial_lse: Any) -> Any:
            return self.judged(partial_output, partial_lse)

        return PreparedCall(call, arguments, WITH_LSE, constants=())
