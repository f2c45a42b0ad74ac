"""The standard's norms: LayerNormalization of opset 17, BatchNormalization of opset 15."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM


class OnnxNorm(Implementation):
    """A norm of the standard. Gain and offset are inputs, 1 and 0 if a case has none."""

    backend: OnnxEngine

    declared = Declared(features=LAYER_FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, width = self.backend, inputs.widths.query
        neutral = {"gain": np.ones(width), "offset": np.zeros(width)}
        arguments = {"query": sequences(backend, inputs)["query"]}
        for name, values in (neutral | inputs.parameters).items():
            arguments[name] = backend.array(values, inputs.dtype)

        def call(query: Symbol, **parameters: Symbol) -> tuple[Any, None]:
            return self.node(query, parameters, inputs), None

        return backend.recorded(PreparedCall(call, arguments, LAYER_OUTPUTS))

    @abstractmethod
    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        """The norm of (B, L, E)."""


class OnnxLayerNorm(OnnxNorm):
    """LayerNormalization over the last axis, with float32 statistics as in the standard."""

    name = "layer-normalization"
    operator = LAYER_NORM

    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        p = parameters
        return query.same(
            "LayerNormalization", p["gain"], p["offset"], axis=-1, epsilon=inputs.epsilon
        )


class OnnxBatchNorm(OnnxNorm):
    """BatchNormalization, with features in the second axis."""

    name = "batch-normalization"
    operator = BATCH_NORM

    def node(self, query: Symbol, parameters: Mapping[str, Symbol], inputs: Inputs) -> Symbol:
        x = query.transpose((0, 2, 1))
        operands = [parameters[name] for name in ("gain", "offset", "mean", "variance")]
        normed = query.graph.add(
            "BatchNormalization", x, *operands, outputs=3 if inputs.training else 1,
            shape=lambda: x.shape, epsilon=inputs.epsilon, training_mode=int(inputs.training),
        )  # fmt: skip
        return (normed[0] if inputs.training else normed).transpose((0, 2, 1))
