"""Textbook packed attention: all pairs with a mask."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED, hidden_pairs


class TextbookPacked(TextbookOperator):
    """Scores of all pairs; pairs of different segments are set to -inf before the softmax."""

    name = "textbook-packed"
    operator = PACKED
    declared = Declared(
        features=FEATURES,
        elections={"nan-in-other-segment": "others", "segment-without-keys": "nan"},
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        hidden = self.backend.array(hidden_pairs(inputs.case)[None], None)
        return sequences(self.backend, inputs) | {"hidden": hidden}

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        """Plain attention of (L, H, D) operands; `hidden` pairs have no weight."""
        ops, query, key, value = self.ops, x["query"], x["key"], x["value"]
        group = query.shape[1] // key.shape[1]
        q, k, v = (ops.transpose(of, (1, 0, 2)) for of in (query, key, value))
        if group > 1:
            k, v = (ops.repeat(of, group, 0) for of in (k, v))
        return ops.transpose(self.weighted(q, k, v, x["hidden"], inputs), (1, 0, 2))
