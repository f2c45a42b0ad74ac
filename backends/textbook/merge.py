"""Textbook merge of partial outputs: all parts at once, and one after the other. float32, or float64
for float64."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.operator import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


class TextbookMerge(TextbookOperator):
    """Merge in operations that all frameworks have."""

    operator = MERGE
    declared = Declared(numerics="exact", features=FEATURES)
    own_class = True

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, ops, wide = self.backend, self.ops, inputs.dtype.widened
        output, lse = inputs.arrays["partial_output"], inputs.arrays["partial_lse"]
        arguments = {
            "partial_output": backend.array(output, inputs.dtype),
            "partial_lse": backend.array(lse, wide),
        }
        nothing = backend.array(np.zeros(lse.shape[1:]), wide)

        def call(partial_output: Any, partial_lse: Any) -> Any:
            wider = ops.cast(partial_output, wide.long_name)
            merged, total = self.merged(wider, partial_lse, nothing)
            return ops.cast(merged, inputs.dtype.long_name), total

        constants = (inputs.sizes, inputs.dtype.name)
        return ops.called(self, PreparedCall(call, arguments, inputs.outputs, constants=constants))

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
