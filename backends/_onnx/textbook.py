"""Textbook code in ONNX operators: attention, and the layers of `backends.textbook`."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import concatenated
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    FILLED,
    NANS,
    Declared,
    Numerics,
)
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations


class Eager(TextbookAttention):
    """Textbook attention: MatMul, Softmax, MatMul; masked scores are -inf."""

    textbook = False
    declared = TextbookAttention.declared.but(
        features=ATTENTION_FEATURES | {"sinks", "lse"},
        elections=FILLED | NANS | {"no-keys": "zeros", "subnormal-output": "kept"},
    )

    def __init__(self, backend: OnnxEngine, declared: Declared | None = None) -> None:
        super().__init__(backend, operations(backend), declared)


def layers(backend: OnnxEngine, numerics: Numerics) -> list[Implementation]:
    """Returns all textbook layers as graphs, in the numerics class of the operators."""
    return textbooks(backend, operations(backend), numerics)


def operations(backend: OnnxEngine) -> Operations:
    """Returns the operations of textbook code as ONNX operators."""

    def called(layer: Implementation, call: PreparedCall) -> PreparedCall:
        return backend.recorded(call)

    return Operations(
        softmax=lambda x: x.node_of_same_shape("Softmax", axis=-1),
        fill=lambda x, hidden, number: x.where(hidden.node_of_same_shape("Not"), number),
        tanh=lambda x: x.node_of_same_shape("Tanh"),
        sum=lambda x, axis: x.reduced("ReduceSum", axis),
        mean=lambda x, axis: x.reduced("ReduceMean", axis),
        sqrt=lambda x: x.node_of_same_shape("Sqrt"),
        concat=concatenated,
        permute_dims=lambda x, axes: x.transpose(axes),
        reshape=lambda x, shape: x.reshape(shape),
        put=lambda x, indices, values: x.node_of_same_shape(
            "ScatterND", indices.reshape((*indices.shape, 1)), values
        ),
        take=lambda x, indices: x.graph.add(
            "Gather", x, indices, shape=lambda: (*indices.shape, *x.shape[1:]), axis=0
        ),
        repeat=lambda x, times, axis: x.repeated(times, axis),
        cos=lambda x: x.node_of_same_shape("Cos"),
        sin=lambda x: x.node_of_same_shape("Sin"),
        # Frequencies depend on no input: they are computed when the graph is recorded.
        pow=np.power,
        clip=lambda x, low, high: (
            np.clip(x, low, high)
            if isinstance(x, np.ndarray)
            else x.node_of_same_shape("Clip", low, high)
        ),
        round=lambda x: x.node_of_same_shape("Round"),
        exp=lambda x: x.node_of_same_shape("Exp"),
        log=lambda x: x.node_of_same_shape("Log"),
        max=lambda x, axis: x.reduced("ReduceMax", axis),
        astype=lambda x, dtype: x.cast(backend.kind(dtype)),
        mask_scores=lambda scores, mask: scores.where(mask, -np.inf),
        broadcast_to=lambda x, shape: x.expanded(shape),
        logsumexp=lambda x: x.cast(np.promote_types(x.dtype, np.float32)).reduced(
            "ReduceLogSumExp", -1
        ),
        cast_like=lambda x, other: x.cast(other.dtype),
        arange_like=lambda n, x: np.arange(n),
        called=called,
    )
