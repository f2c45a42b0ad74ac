"""Textbook packed attention: all pairs with a mask, and segment by segment."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import (
    FEATURES,
    PACKED,
    hidden_pairs,
    parts,
    segments,
)
from attention_conformance.suite.spec.vocabulary import OPERANDS


class TextbookPacked(TextbookOperator):
    """Packed attention in operations that all frameworks have."""

    operator = PACKED
    declared = Declared(features=FEATURES)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return sequences(self.backend, inputs) | self.masks(inputs)

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """Arguments of the call besides the operands."""
        raise NotImplementedError

    def attend(self, query: Any, key: Any, value: Any, hidden: Any, inputs: Inputs) -> Any:
        """Plain attention of (L, H, D) operands; `hidden` pairs (Lq, Lk) have no weight."""
        ops, group = self.ops, query.shape[1] // key.shape[1]
        q, k, v = (ops.transpose(x, (1, 0, 2)) for x in (query, key, value))
        if group > 1:
            k, v = (ops.repeat(x, group, 0) for x in (k, v))
        return ops.transpose(self.weighted(q, k, v, hidden, inputs), (1, 0, 2))


class AllPairs(TextbookPacked):
    """Scores of all pairs; pairs of different segments are set to -inf before the softmax."""

    name = "textbook-packed"
    declared = TextbookPacked.declared.electing(
        {"nan-in-other-segment": "others", "segment-without-keys": "nan"}
    )

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        return {"hidden": self.backend.array(hidden_pairs(inputs.case)[None], None)}

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        return self.attend(x["query"], x["key"], x["value"], x["hidden"], inputs)


class Segments(TextbookPacked):
    """Plain attention over one segment after the other."""

    name = "textbook-packed-segments"
    second_way = True
    declared = TextbookPacked.declared.electing(
        {"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"}
    )

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        if inputs.case.option("alignment") == "all":
            return {}
        return {
            f"hidden_{n}": self.backend.array(~shown[None], None)
            for n, (_, _, shown) in enumerate(parts(inputs.case))
        }

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        query, key, value = (x[name] for name in OPERANDS)
        answers = [
            self.attend(query[rows], key[keys], value[keys], x.get(f"hidden_{n}"), inputs)
            for n, (rows, keys) in enumerate(segments(inputs.case))
            if rows.stop > rows.start
        ]
        return self.ops.concat(answers, 0)
