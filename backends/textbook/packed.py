"""Textbook packed attention: all pairs with a mask, and segment by segment."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.operator import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import (
    FEATURES,
    PACKED,
    allowed_pairs,
    hidden_pairs,
    segments,
)


class TextbookPacked(TextbookOperator):
    """Packed attention in operations that all frameworks have."""

    operator = PACKED
    declared = Declared(features=FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.made(inputs, sequences(self.backend, inputs) | self.masks(inputs))

    def made(self, inputs: Inputs, arguments: dict[str, Any], *more: Any) -> PreparedCall:
        """The call of these arguments; `more` is what else its program depends on."""

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            return self.compute(query, key, value, rest, inputs)

        constants = (inputs.sizes, inputs.dtype.name, inputs.case.options, *more)
        return self.ops.called(self, PreparedCall(call, arguments, constants=constants))

    @abstractmethod
    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """Arguments of the call besides the operands."""

    @abstractmethod
    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        """The output (Lq, H, Dv)."""

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        hidden: Any,
        inputs: Inputs,
    ) -> Any:
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

    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        return self.attend(query, key, value, rest["hidden"], inputs)


class Segments(TextbookPacked):
    """Plain attention over one segment after the other."""

    name = "textbook-packed-segments"
    declared = TextbookPacked.declared.electing(
        {"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"}
    )

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        if inputs.case.option("alignment") == "all":
            return {}
        return {
            f"hidden_{n}": self.backend.array(~self.allowed(rows, keys, inputs)[None], None)
            for n, (rows, keys) in enumerate(segments(inputs.case))
        }

    def allowed(self, rows: slice, keys: slice, inputs: Inputs) -> np.ndarray:
        count, of = rows.stop - rows.start, keys.stop - keys.start
        return allowed_pairs(count, of, inputs.case.option("alignment"))

    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        answers = [
            self.attend(query[rows], key[keys], value[keys], rest.get(f"hidden_{n}"), inputs)
            for n, (rows, keys) in enumerate(segments(inputs.case))
            if rows.stop > rows.start
        ]
        return self.ops.concat(answers, 0)
