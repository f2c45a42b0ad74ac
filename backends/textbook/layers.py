"""Textbook layers: multi-head attention, norms, and attention of one head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.declared import (
    LAYER_FEATURES,
    Declared,
    DeclaredRounding,
    Numerics,
)
from attention_conformance.backends.masks import full, split_native
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.operations import TextbookOperator
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM
from attention_conformance.suite.spec.operators.one_head import ADDITIVE, DOT
from attention_conformance.suite.spec.vocabulary import OPERANDS


class Textbook(TextbookOperator):
    """A textbook layer. Masked scores are set to -inf before the softmax."""

    declared = Declared(
        features=LAYER_FEATURES,
        refusals={
            "native-causal": "textbook code has no causal flag",
            "splits-width": "textbook code takes parameters, not a width to split",
        },
        elections={
            "fully-masked-row": "nan",
            "padded-sample": "nan",
            "minus-inf-row": "nan",
            "fully-masked-row-gradient": "nan",
            "padded-sample-gradient": "nan",
            "mask-polarity": "attends",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        },
    )
    heads_apart = False
    """True if scores have an axis of heads."""

    def declaration(self, numerics: Numerics) -> Declared:
        return self.declared.but(numerics=numerics)

    def arguments(self, inputs: Inputs) -> Arrays:
        """Returns the framework's arrays by argument name: query, key and value, the parameters, and
        where the case has them `hidden` (True is masked) and `bias` (B, H, Lq, Lk)."""
        backend, arguments = self.backend, operand_arrays(self.backend, inputs)
        parameters = self.reshaped_parameters(inputs)
        arguments |= {n: backend.array(a, inputs.dtype) for n, a in parameters.items()}
        hidden = self.hidden(inputs)
        if hidden is not None:
            arguments["hidden"] = backend.array(hidden, None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(full(inputs.bias, inputs), inputs.dtype)
        return arguments

    def made(self, inputs: Inputs, arguments: Arrays, *more: Any) -> PreparedCall:
        # The function depends only on sizes and options, so calls with equal sizes and options share it.
        return super().made(replace(inputs, arrays={}, mask_array=None), arguments, *more)

    def compute(self, x: Arrays, inputs: Inputs) -> tuple[Any, Any]:
        arrays = dict(x)
        query, key, value = (arrays.pop(name) for name in OPERANDS)
        output, weights = self.layer(query, key, value, arrays, inputs)
        return output, weights if inputs.returned != "none" else None

    def reshaped_parameters(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Returns the canonical parameters, in the shapes that this layer uses."""
        return inputs.parameters

    def hidden(self, inputs: Inputs) -> np.ndarray | None:
        """Returns a boolean array, True for masked pairs: (B, H, Lq, Lk) with `heads_apart`, else (B, Lq,
        Lk). A mask in the form "raw" is not reshaped. None without a mask."""
        mask = split_native(inputs).dense(inputs)
        if mask is None:
            return None
        if inputs.form != "raw":
            mask = full(mask, inputs) if self.heads_apart else full(mask, inputs)[:, 0]
        return ~mask

    @abstractmethod
    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        """Returns (output, weights). `arrays`: the parameters by name, and where the case has them
        `hidden` and `bias`."""

    def softmax(self, scores: Any, hidden: Any) -> Any:
        """Returns the softmax of the scores. Scores are -inf where `hidden` is True."""
        if hidden is not None:
            scores = self.ops.fill(scores, hidden, -np.inf)
        return self.ops.softmax(scores)

    def number(self, value: float, inputs: Inputs) -> Any:
        """Returns a number as an array in the layer's dtype: a Python float might be converted through
        float32."""
        return self.backend.array(np.asarray(value), inputs.dtype)


def layer_norm(layer: Textbook, x: Any, arrays: Mapping[str, Any], inputs: Inputs) -> Any:
    """Returns the layer norm of x (..., L, E), with `gain` and `offset` if `arrays` has them."""
    ops, axis, shape = layer.ops, len(x.shape) - 1, (*x.shape[:-1], 1)
    mean = ops.reshape(ops.mean(x, axis), shape)
    variance = ops.reshape(ops.mean((x - mean) * (x - mean), axis), shape)
    return normalised(layer, x, mean, variance, arrays, inputs)


def normalised(
    layer: Textbook, x: Any, mean: Any, variance: Any, arrays: Mapping[str, Any], inputs: Inputs
) -> Any:
    """Returns (x - mean) / sqrt(variance + epsilon), with `gain` and `offset` if `arrays` has them."""
    y = (x - mean) / layer.ops.sqrt(variance + layer.number(inputs.epsilon, inputs))
    y = y * arrays["gain"] if "gain" in arrays else y
    return y + arrays["offset"] if "offset" in arrays else y


class PackedHeads(Textbook):
    """Multi-head attention with one projection for all heads, which a reshape and a transpose split."""

    name = "packed-heads"
    operator = MULTI_HEAD
    declared = Textbook.declared.taking("qk-norm", "one-head", "gate")
    heads_apart = True

    def reshaped_parameters(self, inputs: Inputs) -> dict[str, np.ndarray]:
        packed = {}
        for name, array in inputs.parameters.items():
            if name == "output_kernel":
                array = array.reshape(-1, array.shape[-1])  # (H Dv, Eo)
            elif name.endswith("kernel"):
                array = array.reshape(array.shape[0], -1)  # (E, H D)
            elif name.endswith("bias"):
                array = array.reshape(-1)
            packed[name] = array
        return packed

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, s = self.ops, inputs.sizes
        squeezed = inputs.squeezed

        def split_heads(x: Any, name: str, count: int) -> Any:
            """The projection of a sequence, (B, count, L, features)."""
            y = x @ arrays[f"{name}_kernel"]
            if f"{name}_bias" in arrays:
                y = y + arrays[f"{name}_bias"]
            y = ops.reshape(y, (s.B, -1, count, y.shape[-1] // count))
            if f"{name}_gain" in arrays:
                y = layer_norm(self, y, {"gain": arrays[f"{name}_gain"]}, inputs)
            return ops.permute_dims(y, (0, 2, 1, 3))  # (B, H, L, D)

        q = split_heads(query, "query", s.H)
        k, v = split_heads(key, "key", s.Hkv), split_heads(value, "value", s.Hkv)
        if s.H != s.Hkv:
            k, v = ops.repeat(k, s.group, 1), ops.repeat(v, s.group, 1)
        scores = q @ ops.permute_dims(k, (0, 1, 3, 2)) * self.number(s.D**-0.5, inputs)
        if "bias" in arrays:
            scores = scores + arrays["bias"]
        weights = self.softmax(scores, arrays.get("hidden"))  # (B, H, Lq, Lk)
        # -1, because one program may serve calls of several lengths.
        shape = (-1, s.H * s.Dv) if squeezed else (s.B, -1, s.H * s.Dv)
        output = ops.reshape(ops.permute_dims(weights @ v, (0, 2, 1, 3)), shape)
        if "gate_kernel" in arrays:
            output = output * self.gate(query, arrays, inputs)
        if "output_kernel" in arrays:
            output = output @ arrays["output_kernel"]
        if "output_bias" in arrays:
            output = output + arrays["output_bias"]
        if inputs.returned == "average" or "output_kernel" not in arrays:
            weights = ops.mean(weights, 1)
        return output, weights[0] if squeezed else weights

    def gate(self, query: Any, arrays: Mapping[str, Any], inputs: Inputs) -> Any:
        """Returns the gates (B, Lq, H Dv) of concatenated heads."""
        gate = query @ arrays["gate_kernel"]
        if "gate_bias" in arrays:
            gate = gate + arrays["gate_bias"]
        unit = self.number(1.0, inputs)
        return unit / (self.ops.exp(gate * self.number(-1.0, inputs)) + unit)


class TextbookLayerNorm(Textbook):
    """Layer norm step by step: mean and variance of each token over its features."""

    name = "textbook-layer-norm"
    operator = LAYER_NORM
    declared = Textbook.declared.but(elections={})

    def declaration(self, numerics: Numerics) -> Declared:
        """Returns the declaration on a framework whose operations have the class `numerics`. The norm is
        "stepwise" in any class: mean, variance, root and quotient are separate operations, each stored.
        In the dtypes of class "working", where operations sum products in the case's dtype, gradients are
        summed in it, too; one class for all dtypes names no such dtype."""
        by_dtype = numerics if isinstance(numerics, Mapping) else {}
        narrow = tuple(name for name, kind in by_dtype.items() if kind == "working")
        return self.declared.but(
            numerics="stepwise", rounding=DeclaredRounding(narrow_reductions=narrow)
        )

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        return layer_norm(self, query, arrays, inputs), None


class TextbookBatchNorm(TextbookLayerNorm):
    """Batch norm step by step: mean and variance of each feature over samples and positions."""

    name = "textbook-batch-norm"
    operator = BATCH_NORM

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        if not inputs.training:
            return normalised(self, query, arrays["mean"], arrays["variance"], arrays, inputs), None
        tokens = self.ops.reshape(query, (-1, query.shape[-1]))  # (B L, E)
        mean = self.ops.mean(tokens, 0)
        variance = self.ops.mean((tokens - mean) * (tokens - mean), 0)
        return normalised(self, query, mean, variance, arrays, inputs), None


ONE_HEAD = Textbook.declared.refusing(
    dict.fromkeys(("bias", "bias-with-mask"), "textbook code of one head adds no bias to scores")
)


class Additive(Textbook):
    """Additive (Bahdanau) attention for many queries (B, Lq, q), or one query of a decoder (B, q)."""

    name = "bahdanau"
    operator = ADDITIVE
    declared = ONE_HEAD

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, s = self.ops, inputs.sizes
        if inputs.squeezed:
            query = ops.reshape(query, (s.B, 1, query.shape[-1]))
        if "query_kernel" in arrays:
            query, key = query @ arrays["query_kernel"], key @ arrays["key_kernel"]
        units = query.shape[-1]
        pairs = ops.reshape(query, (s.B, s.Lq, 1, units)) + ops.reshape(key, (s.B, 1, s.Lk, units))
        active = ops.tanh(pairs)  # (B, Lq, Lk, U)
        if "score_vector" in arrays:
            # As matrices: TensorFlow's bfloat16 product of ranks 4 and 2 corrupts memory on CPU.
            flat = ops.reshape(active, (s.B * s.Lq * s.Lk, units))
            scores = flat @ ops.reshape(arrays["score_vector"], (units, 1))
            scores = ops.reshape(scores, (s.B, s.Lq, s.Lk))
        else:
            scores = ops.sum(active, -1)
        weights = self.softmax(scores, arrays.get("hidden"))
        output = weights @ value
        if inputs.squeezed:
            return ops.reshape(output, (s.B, output.shape[-1])), ops.reshape(weights, (s.B, s.Lk))
        return output, weights


class Luong(Textbook):
    """Dot-product attention, with or without a learned scale."""

    name = "luong"
    operator = DOT
    declared = ONE_HEAD.refusing({"squeezed": "the layer needs the query axis, for one query, too"})

    def declaration(self, numerics: Numerics) -> Declared:
        declared = super().declaration(numerics)
        sums_in_float32 = declared.numerics_for(DTYPES["f16"]) in ("exact", "fused")
        # Overflowing stored scores give inf - inf in the softmax.
        return declared.electing({"large-scores": "largest" if sums_in_float32 else "nan"})

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        scores = query @ self.ops.permute_dims(key, (0, 2, 1))
        if "scale" in arrays:
            scores = scores * arrays["scale"]
        weights = self.softmax(scores, arrays.get("hidden"))
        return weights @ value, weights
