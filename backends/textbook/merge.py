"""Textbook merge of partial outputs: all parts at once, and one after the other. float32, or float64
for float64."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE

MOST = 32
"""Greatest number of parts of `MergeInTurn`. Its loop is unrolled: XLA compiles gradients of 33 parts for
ten seconds, and those of a thousand for hours."""


class TextbookMerge(TextbookOperator):
    """Merge in operations that all frameworks have."""

    operator = MERGE
    declared = Declared(numerics="exact", features=FEATURES)
    own_class = True

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        wide, shape = inputs.dtype.widened, inputs.full_shape("lse")
        wider = self.ops.cast(x["partial_output"], wide.long_name)
        nothing = self.backend.array(np.zeros(shape), wide)
        merged, total = self.merged(wider, x["partial_lse"], nothing)
        return self.ops.cast(merged, inputs.dtype.long_name), total

    @abstractmethod
    def merged(self, output: Any, lse: Any, nothing: Any) -> tuple[Any, Any]:
        """The merged output and log-sum-exp; `nothing` are zeros (B, H, Lq)."""

    def of(self, output: Any, lse: Any, nothing: Any) -> tuple[Any, Any]:
        """The merge of some parts at once. In rows without keys the largest log-sum-exp is -inf, and
        -inf - (-inf) must be avoided."""
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


class MergeAtOnce(TextbookMerge):
    """A softmax over all parts."""

    name = "textbook-merge"

    def merged(self, output: Any, lse: Any, nothing: Any) -> tuple[Any, Any]:
        return self.of(output, lse, nothing)


class MergeInTurn(TextbookMerge):
    """Merges one part after the other, as in ring attention."""

    name = "textbook-merge-in-turn"
    second_way = True

    def beyond_limits(self, case: Case) -> str | None:
        if case.sizes.Lk > MOST:
            return f"{case.sizes.Lk} parts are beyond the {MOST} that are merged in turn"
        return super().beyond_limits(case)

    def merged(self, output: Any, lse: Any, nothing: Any) -> tuple[Any, Any]:
        ops, state = self.ops, None
        for n in range(lse.shape[0]):
            part = output[n : n + 1], lse[n : n + 1]
            if state is not None:
                part = tuple(
                    ops.concat([ops.reshape(old, (1, *old.shape)), new], 0)
                    for old, new in zip(state, part, strict=True)
                )
            state = self.of(*part, nothing)
        assert state is not None, "expected at least one part"
        return state
