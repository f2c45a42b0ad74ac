"""Norms and rotation: LayerNormalization of opset 17, BatchNormalization of opset 15, and RotaryEmbedding
of opset 23, with sine and cosine as inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import packed
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends._onnx.textbook import operations
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook.rotary import TextbookRotary
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    table_length,
)


class OnnxNorm(Implementation):
    """A norm of the standard. Gain and offset are inputs; they are 1 and 0 if a case has none."""

    backend: OnnxEngine

    declared = Declared(features=LAYER_FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, width = self.backend, inputs.widths.query
        defaults = {"gain": np.ones(width), "offset": np.zeros(width)}
        arguments = {"query": operand_arrays(backend, inputs)["query"]}
        for name, values in (defaults | inputs.parameters).items():
            arguments[name] = backend.array(values, inputs.dtype)

        def call(query: Symbol, **parameters: Symbol) -> tuple[Any, None]:
            return self.node(query, parameters, inputs), None

        return backend.recorded(PreparedCall(call, arguments, LAYER_OUTPUTS))

    @abstractmethod
    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        """Returns the norm of (B, L, E)."""


class OnnxLayerNorm(OnnxNorm):
    """LayerNormalization over the last axis, with float32 statistics as in the standard."""

    name = "layer-normalization"
    operator = LAYER_NORM

    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        p = parameters
        return query.node_of_same_shape(
            "LayerNormalization", p["gain"], p["offset"], axis=-1, epsilon=inputs.epsilon
        )


class OnnxBatchNorm(OnnxNorm):
    """BatchNormalization, with features in the second axis."""

    name = "batch-normalization"
    operator = BATCH_NORM

    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        x = query.transpose((0, 2, 1))
        operands = [parameters[name] for name in ("gain", "offset", "mean", "variance")]
        outputs = query.graph.add(
            "BatchNormalization", x, *operands, outputs=3 if inputs.training else 1,
            shape=lambda: x.shape, epsilon=inputs.epsilon, training_mode=int(inputs.training),
        )  # fmt: skip
        return (outputs[0] if inputs.training else outputs).transpose((0, 2, 1))


class OnnxRotary(Implementation):
    """Rotation of operands of rank 4. Sine and cosine of every token are computed in float64 and rounded
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

        def call(query: Symbol, **arrays: Symbol) -> Symbol:
            return self.node(query, arrays, attributes)

        arguments = {"query": backend.operand(inputs.query, inputs, "bhld")}
        for name, values in self.rotary_arrays(inputs, rotation).items():
            is_integer = values.dtype.kind == "i"
            arguments[name] = backend.array(values, None if is_integer else inputs.dtype)
        return backend.recorded(PreparedCall(call, arguments))

    def rotary_arrays(self, inputs: Inputs, rotation: Rotation) -> dict[str, np.ndarray]:
        """Returns cosine and sine (B, L, r / 2) of every token; r components rotate."""
        position = np.broadcast_to(inputs.arrays["position"], (inputs.sizes.B, inputs.sizes.Lq))
        return self.tables(position, rotation, int(position.max(initial=0)) + 1)

    def tables(
        self, position: np.ndarray, rotation: Rotation, length: int
    ) -> dict[str, np.ndarray]:
        """Returns cosine and sine (..., r / 2) of positions. Frequencies may depend on `length`, that of
        the sequence."""
        frequencies_of = TextbookRotary(self.backend, operations(self.backend)).frequencies
        frequencies, factor = frequencies_of(rotation, length, lambda n: np.asarray(n, np.float64))
        angle = position[..., None] * frequencies
        return {"cosine": factor * np.cos(angle), "sine": factor * np.sin(angle)}

    def node(
        self, query: Symbol, arrays: Mapping[str, Symbol], attributes: Mapping[str, Any]
    ) -> Symbol:
        """Returns the rotated query (B, H, L, D)."""
        return query.node_of_same_shape(
            "RotaryEmbedding", arrays["cosine"], arrays["sine"], **attributes
        )


class OnnxRotaryByIds(OnnxRotary):
    """Rotation of packed operands (B, L, H D), with a table of sine and cosine and the index of each
    token."""

    name = "rotary-embedding-ids"
    declared = OnnxRotary.declared.taking("position-table")

    def rotary_arrays(self, inputs: Inputs, rotation: Rotation) -> dict[str, np.ndarray]:
        """Returns cosine and sine (rows, r / 2) of a table of positions, and `ids` (B, L), the tokens'
        rows."""
        s, position = inputs.sizes, inputs.arrays["position"]
        # The table begins at the case's first position, so that large positions need no larger table.
        first = inputs.case.option("offset")
        positions = np.arange(first, table_length(inputs.case), dtype=np.float64)
        rows = np.broadcast_to(position - first, (s.B, s.Lq))
        ids = rows if (rows % 1).any() else rows.astype(np.int64)
        length = int(position.max(initial=0)) + 1
        return self.tables(positions, rotation, length) | {"ids": ids}

    def node(
        self, query: Symbol, arrays: Mapping[str, Symbol], attributes: Mapping[str, Any]
    ) -> Symbol:
        B, H, L, D = query.shape
        x = packed(query.transpose((0, 2, 1, 3)))
        rotary_inputs = (arrays["cosine"], arrays["sine"], arrays["ids"])
        rotated = x.node_of_same_shape("RotaryEmbedding", *rotary_inputs, num_heads=H, **attributes)
        return rotated.reshape((B, L, H, D)).transpose((0, 2, 1, 3))
