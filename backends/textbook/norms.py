"""Textbook norms, in single steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.declared import Declared
from backends.textbook.layer import Numerics, Operations, Textbook
from suite.spec.inputs import Inputs
from suite.spec.operators.batch_norm import BATCH_NORM
from suite.spec.operators.layer_norm import EPSILON, LAYER_NORM


class TextbookLayerNorm(Textbook):
    """Layer norm in single steps: mean and variance of each token over its features."""

    name = "textbook-layer-norm"
    operator = LAYER_NORM
    declared = Textbook.declared.but(elections={})

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        # Where products are summed in the case's dtype, so is what a gradient sums.
        by_dtype = numerics if isinstance(numerics, Mapping) else {}
        narrow = tuple(name for name, kind in by_dtype.items() if kind == "working")
        # Mean, variance, root and quotient are operations of their own, each stored.
        return self.declared.but(numerics="stepwise", narrow_reductions=narrow)

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, (B, L, _) = self.ops, query.shape
        mean = ops.reshape(ops.mean(query, 2), (B, L, 1))
        variance = ops.reshape(ops.mean((query - mean) * (query - mean), 2), (B, L, 1))
        return self.normalised(query, mean, variance, rest, inputs), None

    def normalised(
        self, x: Any, mean: Any, variance: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> Any:
        y = (x - mean) / self.ops.root(variance + self.number(EPSILON, inputs))
        return y * rest["gain"] + rest["offset"] if "gain" in rest else y


class TextbookBatchNorm(TextbookLayerNorm):
    """Batch norm in single steps: mean and variance of each feature over samples and positions."""

    name = "textbook-batch-norm"
    operator = BATCH_NORM

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        if not inputs.training:
            return self.normalised(query, rest["mean"], rest["variance"], rest, inputs), None
        tokens = self.ops.reshape(query, (-1, query.shape[-1]))  # (B L, E)
        mean = self.ops.mean(tokens, 0)
        variance = self.ops.mean((tokens - mean) * (tokens - mean), 0)
        return self.normalised(query, mean, variance, rest, inputs), None
