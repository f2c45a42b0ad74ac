"""Multi-head self-attention as Keras layers: right ones, which name what they take, and one that hides
padding by -1e9."""

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

    def hidden(self, scores, valid):
        return ops.where(valid[:, None, None, :], scores, -float("inf"))

    def call(self, x, valid=None, **keywords):
        p = self.kernels
        query, key, value = (
            ops.einsum("bqx,xhd->bhqd", x, p[f"{name}_kernel"]) + p[f"{name}_bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = query @ ops.swapaxes(key, 2, 3) * self.size**-0.5
        if valid is not None:
            scores = self.hidden(scores, valid)
        out = ops.einsum("bhqd,hdo->bqo", ops.softmax(scores) @ value, p["output_kernel"])
        return out + p["output_bias"]


class Penalised(Named):
    """As many published layers have it: in float16 -1e9 is -inf, and 0 times -inf is NaN."""

    def hidden(self, scores, valid):
        mask = ops.cast(valid, scores.dtype)[:, None, None, :]
        return scores + (1.0 - mask) * -1e9
