"""Textbook attention of one head: additive, dot-product, and with separate masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.masks import LayerMasks, full
from attention_conformance.backends.textbook.layer import Numerics, Operations, Textbook
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.additive import ADDITIVE
from attention_conformance.suite.spec.operators.dot import DOT
from attention_conformance.suite.spec.operators.masked import MASKED

ONE_HEAD = Textbook.declared.refusing(
    dict.fromkeys(("bias", "bias-with-mask"), "textbook code of one head adds no bias to scores")
)

MANY_QUERIES = ONE_HEAD.refusing({"squeezed": "the layer needs the query axis, for one query, too"})


class Additive(Textbook):
    """Additive (Bahdanau) attention for many queries (B, Lq, q), or one query of a decoder (B, q)."""

    name = "bahdanau"
    operator = ADDITIVE
    declared = ONE_HEAD

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, s = self.ops, inputs.sizes
        if inputs.squeezed:
            query = ops.reshape(query, (s.B, 1, query.shape[-1]))
        if "query_kernel" in rest:
            query, key = query @ rest["query_kernel"], key @ rest["key_kernel"]
        units = query.shape[-1]
        pairs = ops.reshape(query, (s.B, s.Lq, 1, units)) + ops.reshape(key, (s.B, 1, s.Lk, units))
        active = ops.tanh(pairs)  # (B, Lq, Lk, U)
        if "score_vector" in rest:
            # As matrices: TensorFlow's bfloat16 product of ranks 4 and 2 corrupts memory on CPU.
            flat = ops.reshape(active, (s.B * s.Lq * s.Lk, units))
            scores = flat @ ops.reshape(rest["score_vector"], (units, 1))
            scores = ops.reshape(scores, (s.B, s.Lq, s.Lk))
        else:
            scores = ops.total(active, -1)
        weights = self.softmax(scores, rest.get("hidden"))
        output = weights @ value
        if inputs.squeezed:
            return ops.reshape(output, (s.B, output.shape[-1])), ops.reshape(weights, (s.B, s.Lk))
        return output, weights


class Luong(Textbook):
    """Dot-product attention with a learned scale, or without."""

    name = "luong"
    operator = DOT
    declared = MANY_QUERIES

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        plain = super().declaration(ops, numerics)
        wide = plain.numerics_for(DTYPES["f16"]) in ("exact", "fused")
        # Overflowing stored scores give inf - inf in the softmax.
        return plain.electing({"large-scores": "largest" if wide else "nan"})

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        scores = query @ self.ops.transpose(key, (0, 2, 1))
        if "scale" in rest:
            scores = scores * rest["scale"]
        weights = self.softmax(scores, rest.get("hidden"))
        return weights @ value, weights


class MaskedInfinity(Textbook):
    """softmax(q k^T / sqrt(D)) v with separate causal and padding masks. Hidden scores are set to -inf.

    Masks are 0 for hidden pairs: (B, Lq, Lk) and (B, 1, Lk).
    """

    name = "masked-inf"
    operator = MASKED
    declared = MANY_QUERIES

    def masks(self, inputs: Inputs) -> dict[str, np.ndarray]:
        s, split = inputs.sizes, LayerMasks.of(inputs)
        arrays = {}
        if split.causal:
            causal = np.tril(np.ones((s.Lq, s.Lk), np.int32))
            arrays["causal_mask"] = np.broadcast_to(causal, (s.B, s.Lq, s.Lk))
        if split.valid is not None:
            arrays["padding_mask"] = split.valid[:, None].astype(np.int32)
        if split.rest is not None:
            name = "padding_mask" if split.valid is None else "causal_mask"
            rest = full(split.rest, inputs, heads=False).astype(np.int32)
            arrays[name] = rest * arrays.get(name, 1)
        return arrays

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        factor = self.number(inputs.sizes.D**-0.5, inputs)
        scores = query @ self.ops.transpose(key, (0, 2, 1)) * factor
        for name in ("causal_mask", "padding_mask"):
            if name in rest:
                scores = self.ops.fill(scores, rest[name] == 0, self.fill)
        weights = self.ops.softmax(scores)
        return weights @ value, weights


class MaskedLarge(MaskedInfinity):
    """Like `MaskedInfinity`, with hidden scores set to -1e9, which overflows float16."""

    name = "masked-1e9"
    fill = -1e9

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        empty = dict.fromkeys(self.declared.dtypes, "uniform") | {"f16": ops.overflowing_fill}
        elections = {
            "fully-masked-row": empty,
            "padded-sample": empty,
            "padded-sample-gradient": "values",
        }
        return self.declared.but(numerics=numerics, elections=elections)
