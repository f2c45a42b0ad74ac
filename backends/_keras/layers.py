"""Keras' attention layers and norms, for every engine."""

from __future__ import annotations

from attention_conformance.backends._keras.layer import Called
from attention_conformance.backends._keras.multi_head import (
    GroupQuery,
    GroupQueryScores,
    MultiHead,
    MultiHeadScores,
)
from attention_conformance.backends._keras.norms import KerasBatchNorm, KerasLayerNorm
from attention_conformance.backends._keras.single_head import Additive, Concat, Dot
from attention_conformance.backends.protocol import Backend, Implementation


def keras_layers(
    backend: Backend, engine: str, called: Called | None = None
) -> list[Implementation]:
    """All layers of Keras on the engine of `backend`.

    With `called`, values of a layer's variables are arguments of a call, and `called`
    transforms the call.
    """
    kinds = (
        MultiHead, MultiHeadScores, GroupQuery, GroupQueryScores, Additive, Dot, Concat,
        KerasLayerNorm, KerasBatchNorm,
    )  # fmt: skip
    return [kind(backend, engine, called) for kind in kinds]
