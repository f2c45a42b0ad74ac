"""Textbook attention of one head: additive and dot-product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.textbook.layer import Numerics, Operations, Textbook
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.additive import ADDITIVE
from attention_conformance.suite.spec.operators.dot import DOT

ONE_HEAD = Textbook.declared.refusing(
    dict.fromkeys(("bias", "bias-with-mask"), "textbook code of one head adds no bias to scores")
)


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
    declared = ONE_HEAD.refusing({"squeezed": "the layer needs the query axis, for one query, too"})

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
