"""Textbook gated self-attention: packed heads times a sigmoid of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends.textbook.multi_head import PackedHeads
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.gated import GATED


class GatedHeads(PackedHeads):
    """One projection for all gates, beside those of queries, keys and values."""

    name = "gated-heads"
    operator = GATED
    declared = PackedHeads.declared.refusing(
        {"squeezed": "the layer needs a batch axis", "weights": "returns no weights"}
    )

    def merged(self, heads: Any, query: Any, rest: Mapping[str, Any], inputs: Inputs) -> Any:
        gate = query @ rest["gate_kernel"]
        if "gate_bias" in rest:
            gate = gate + rest["gate_bias"]
        one = self.number(1.0, inputs)
        return super().merged(heads, query, rest, inputs) * (
            one / (self.ops.exp(gate * self.number(-1.0, inputs)) + one)
        )
