"""A user's merge of partial attention outputs as an implementation; see docs/operators.md."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


class UserMerge(UserCallable):
    """A user's `function(partial_output, partial_lse)`, which returns output and log-sum-exp.

    Outputs have the case's dtype, log-sum-exps too, but float32 for 16 bits. Shapes: partial
    (P, B, H, Lq, Dv) and (P, B, H, Lq); returned (B, H, Lq, Dv) and (B, H, Lq).
    """

    operator = MERGE
    arrays = ("partial_output", "partial_lse")
    features = FEATURES

    def call_of(self, inputs: Inputs) -> PreparedCall:
        arrays, dtype = inputs.arrays, inputs.dtype
        arguments = {
            "partial_output": self.backend.array(arrays["partial_output"], dtype),
            "partial_lse": self.backend.array(arrays["partial_lse"], dtype.widened),
        }

        def call(partial_output: Any, partial_lse: Any) -> Any:
            return self.called(partial_output, partial_lse)

        return PreparedCall(call, arguments, inputs.outputs, constants=())
