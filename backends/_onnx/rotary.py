"""The standard's operator RotaryEmbedding of opset 23, with sine and cosine as inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import packed
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends._onnx.textbook import operations
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook.rotary import TextbookRotary
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    table_length,
)


class OnnxRotary(Implementation):
    """Operands of rank 4; sine and cosine of every token, computed in float64 and rounded
    to the dtype."""

    backend: OnnxEngine

    name = "rotary-embedding"
    operator = ROTARY
    declared = Declared(numerics="fused", features=FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, s = self.backend, inputs.sizes
        rotation = Rotation.of(inputs.case, s.D)
        attributes: dict[str, Any] = {"interleaved": int(rotation.interleaved)}
        if rotation.size != s.D:
            attributes["rotary_embedding_dim"] = rotation.size

        def call(query: Symbol, **rest: Symbol) -> Symbol:
            return self.node(query, rest, attributes)

        arguments = {"query": backend.memory.operand(inputs.query, inputs, "bhld")}
        for name, values in self.tables(inputs, rotation).items():
            integers = values.dtype.kind == "i"
            arguments[name] = backend.array(values, None if integers else inputs.dtype)
        return backend.recorded(PreparedCall(call, arguments))

    def tables(self, inputs: Inputs, rotation: Rotation) -> dict[str, np.ndarray]:
        """Cosine and sine (B, L, r / 2) of every token."""
        position = np.broadcast_to(inputs.arrays["position"], (inputs.sizes.B, inputs.sizes.Lq))
        return self.pair(position, rotation, int(position.max(initial=0)) + 1)

    def pair(self, position: np.ndarray, rotation: Rotation, length: int) -> dict[str, np.ndarray]:
        """Cosine and sine (..., r / 2) of positions, for sequences of length `length`."""
        frequencies = TextbookRotary(self.backend, operations(self.backend)).frequencies
        theta, factor = frequencies(rotation, length, lambda n: np.asarray(n, np.float64))
        angle = position[..., None] * theta
        return {"cosine": factor * np.cos(angle), "sine": factor * np.sin(angle)}

    def node(
        self, query: Symbol, rest: Mapping[str, Symbol], attributes: Mapping[str, Any]
    ) -> Symbol:
        """The rotated query (B, H, L, D)."""
        return query.same("RotaryEmbedding", rest["cosine"], rest["sine"], **attributes)


class OnnxRotaryByIds(OnnxRotary):
    """Packed operands (B, L, H D), with a table of sine and cosine and the index of each token."""

    name = "rotary-embedding-ids"
    declared = OnnxRotary.declared.taking("position-table")

    def tables(self, inputs: Inputs, rotation: Rotation) -> dict[str, np.ndarray]:
        s, position = inputs.sizes, inputs.arrays["position"]
        # The table begins at the case's first position, so that large positions need no larger table.
        first = inputs.case.option("offset")
        rows = np.arange(first, table_length(inputs.case), dtype=np.float64)
        ids = np.broadcast_to(position - first, (s.B, s.Lq))
        whole = ids if (ids % 1).any() else ids.astype(np.int64)
        return self.pair(rows, rotation, int(position.max(initial=0)) + 1) | {"ids": whole}

    def node(
        self, query: Symbol, rest: Mapping[str, Symbol], attributes: Mapping[str, Any]
    ) -> Symbol:
        B, H, L, D = query.shape
        x = packed(query.transpose((0, 2, 1, 3)))
        tables = (rest["cosine"], rest["sine"], rest["ids"])
        turned = x.same("RotaryEmbedding", *tables, num_heads=H, **attributes)
        return turned.reshape((B, L, H, D)).transpose((0, 2, 1, 3))
