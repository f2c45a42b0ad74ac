"""Textbook merge of partial outputs: a softmax over all parts. float32, or float64 for float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


class TextbookMerge(TextbookOperator):
    """A softmax over all parts."""

    name = "textbook-merge"
    operator = MERGE
    declared = Declared(numerics="exact", features=FEATURES)
    own_class = True

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        wide, shape = inputs.dtype.widened, inputs.full_shape("lse")
        wider = self.ops.cast(x["partial_output"], wide.long_name)
        nothing = self.backend.array(np.zeros(shape), wide)
        merged, total = self.merged(wider, x["partial_lse"], nothing)
        return self.ops.cast(merged, inputs.dtype.long_name), total

    def merged(self, output: Any, lse: Any, nothing: Any) -> tuple[Any, Any]:
        """The merged output and log-sum-exp; `nothing` are zeros (B, H, Lq). In rows without keys the
        largest log-sum-exp is -inf, and -inf - (-inf) must be avoided."""
        ops = self.ops
        largest = ops.largest(lse, 0)
        empty = largest == -np.inf
        offset = ops.fill(largest, empty, 0.0)
        sizes = ops.exp(lse - ops.reshape(offset, (1, *offset.shape)))
        total = ops.total(sizes, 0)
        divisor = ops.fill(total, empty, 1.0)
        weights = sizes / ops.reshape(divisor, (1, *divisor.shape))
        merged = ops.total(ops.reshape(weights, (*weights.shape, 1)) * output, 0)
        logarithm = ops.fill(offset + ops.log(divisor), empty, -np.inf)
        return merged, logarithm + nothing
