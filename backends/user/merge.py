"""A person's own merging of partial answers as an implementation; see docs/merge.md."""

from __future__ import annotations

from typing import Any

from backends.declared import MERGE_FEATURES
from backends.prepared import WITH_LSE, PreparedCall
from backends.user.function import UserCallable
from suite.spec.inputs import Inputs
from suite.spec.operators.merge import MERGE


class UserMerge(UserCallable):
    """A person's `function(partial_output, partial_lse)`: (P, B, H, Lq, Dv) in the case's dtype and
    (P, B, H, Lq), float32 beside 16-bit outputs; it returns (B, H, Lq, Dv) and (B, H, Lq), in these
    dtypes.
    """

    operator = MERGE
    arrays = ("partial_output", "partial_lse")
    features = MERGE_FEATURES

    def prepare(self, inputs: Inputs) -> PreparedCall:
        arrays, dtype = inputs.arrays, inputs.dtype
        arguments = {
            "partial_output": self.backend.array(arrays["partial_output"], dtype),
            "partial_lse": self.backend.array(arrays["partial_lse"], dtype.widened),
        }

        def call(partial_output: Any, partial_lse: Any) -> Any:
            return self.judged(partial_output, partial_lse)

        return PreparedCall(call, arguments, WITH_LSE, constants=())
