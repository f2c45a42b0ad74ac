"""Attention with ALiBi from `keras_hub.layers.AlibiBias`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attention_conformance.backends._tensorflow.operations import EAGER, operations

from attention_conformance.backends._tensorflow.engine import TensorflowEngine
from attention_conformance.backends.textbook.attention import OwnAlibi
from attention_conformance.suite.spec.inputs import Inputs


def alibi_attention(backend: TensorflowEngine) -> OwnAlibi:
    """Textbook attention with the bias of the layer."""
    tf = backend.tf

    def make(inputs: Inputs) -> Callable[[], Any]:
        import keras_hub

        s, layer = inputs.sizes, keras_hub.layers.AlibiBias(dtype=inputs.dtype.long_name)
        dtype = getattr(tf, inputs.dtype.long_name)
        return lambda: layer(tf.zeros((1, s.H, s.Lq, s.Lk), dtype))

    return OwnAlibi(backend, "alibi-bias", operations(np, tf), EAGER, make)
