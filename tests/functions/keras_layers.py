"""Multi-head self-attention as a Keras layer that names what it takes."""

from __future__ import annotations

import keras
from keras import ops


class Named(keras.layers.Layer):
    """Takes any keyword that a Keras layer takes, and hands it on."""

    def __init__(self, query_width, heads, dtype=None, **keywords):
        super().__init__(dtype=dtype, **keywords)
        self.heads, self.size = heads, query_width // heads
        self.kernels = {}

    def load_attention(self, parameters):
        names = ("query", "key", "value", "output")
        self.kernels = {
            f"{n}_{of}": parameters[f"{n}_{of}"] for n in names for of in ("kernel", "bias")
        }

    def call(self, x, valid=None, **keywords):
        p = self.kernels
        query, key, value = (
            ops.einsum("bqx,xhd->bhqd", x, p[f"{name}_kernel"]) + p[f"{name}_bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = query @ ops.swapaxes(key, 2, 3) * self.size**-0.5
        if valid is not None:
            scores = ops.where(valid[:, None, None, :], scores, -float("inf"))
        out = ops.einsum("bhqd,hdo->bqo", ops.softmax(scores) @ value, p["output_kernel"])
        return out + p["output_bias"]
