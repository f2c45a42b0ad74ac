"""Textbook norms, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.textbook.layer import Numerics, Operations, Textbook
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM


def layer_norm(layer: Textbook, x: Any, rest: Mapping[str, Any], inputs: Inputs) -> Any:
    """Layer norm of x (..., L, E) in the operations of a layer, with gain and offset from `rest`."""
    ops, axis, shape = layer.ops, len(x.shape) - 1, (*x.shape[:-1], 1)
    mean = ops.reshape(ops.mean(x, axis), shape)
    variance = ops.reshape(ops.mean((x - mean) * (x - mean), axis), shape)
    return normalised(layer, x, mean, variance, rest, inputs)


def normalised(
    layer: Textbook, x: Any, mean: Any, variance: Any, rest: Mapping[str, Any], inputs: Inputs
) -> Any:
    """(x - mean) / sqrt(variance + epsilon), with gain and offset if there are any."""
    y = (x - mean) / layer.ops.root(variance + layer.number(inputs.epsilon, inputs))
    y = y * rest["gain"] if "gain" in rest else y
    return y + rest["offset"] if "offset" in rest else y


class TextbookLayerNorm(Textbook):
    """Layer norm step by step: mean and variance of each token over its features."""

    name = "textbook-layer-norm"
    operator = LAYER_NORM
    declared = Textbook.declared.but(elections={})

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        # If products are summed in the case's dtype, so are sums in gradients.
        by_dtype = numerics if isinstance(numerics, Mapping) else {}
        narrow = tuple(name for name, kind in by_dtype.items() if kind == "working")
        # Mean, variance, root and quotient are separate operations, each stored.
        return self.declared.but(
            numerics="stepwise", rounding=DeclaredRounding(narrow_reductions=narrow)
        )

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        return layer_norm(self, query, rest, inputs), None


class TextbookBatchNorm(TextbookLayerNorm):
    """Batch norm step by step: mean and variance of each feature over samples and positions."""

    name = "textbook-batch-norm"
    operator = BATCH_NORM

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        if not inputs.training:
            return normalised(self, query, rest["mean"], rest["variance"], rest, inputs), None
        tokens = self.ops.reshape(query, (-1, query.shape[-1]))  # (B L, E)
        mean = self.ops.mean(tokens, 0)
        variance = self.ops.mean((tokens - mean) * (tokens - mean), 0)
        return normalised(self, query, mean, variance, rest, inputs), None
