"""Multi-head self-attention as a Keras layer."""

import keras
from keras import ops


class SelfAttention(keras.layers.Layer):
    """Attention of a sequence to itself; `hides` says whether a mask of valid keys is kept to."""

    def __init__(self, query_width, heads, hides=True, dtype=None):
        super().__init__(dtype=dtype)
        self.heads, self.size, self.hides = heads, query_width // heads, hides
        self.width = query_width

    def build(self, shape):
        for name in ("query", "key", "value"):
            kernel = self.add_weight(name=f"{name}_kernel", shape=(self.width, self.width))
            bias = self.add_weight(name=f"{name}_bias", shape=(self.width,))
            setattr(self, name, (kernel, bias))
        self.output_kernel = self.add_weight(name="output_kernel", shape=(self.width, self.width))
        self.output_bias = self.add_weight(name="output_bias", shape=(self.width,))

    def call(self, x, valid=None, causal=False):
        def heads(name):
            kernel, bias = getattr(self, name)
            split = (*ops.shape(x)[:2], self.heads, self.size)
            return ops.transpose(ops.reshape(x @ kernel + bias, split), (0, 2, 1, 3))

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ ops.transpose(key, (0, 1, 3, 2)) * self.size**-0.5
        if valid is not None and self.hides:
            scores = ops.where(valid[:, None, None, :], scores, -float("inf"))
        if causal:
            length = ops.shape(x)[1]
            seen = ops.arange(length)[:, None] >= ops.arange(length)
            scores = ops.where(seen, scores, -float("inf"))
        out = ops.transpose(ops.softmax(scores) @ value, (0, 2, 1, 3))
        return ops.reshape(out, ops.shape(x)) @ self.output_kernel + self.output_bias

    def load_attention(self, parameters):
        self.build(None)
        for name in ("query", "key", "value"):
            kernel, bias = getattr(self, name)
            kernel.assign(ops.reshape(parameters[f"{name}_kernel"], kernel.shape))
            bias.assign(ops.reshape(parameters[f"{name}_bias"], bias.shape))
        self.output_kernel.assign(ops.reshape(parameters["output_kernel"], (self.width,) * 2))
        self.output_bias.assign(parameters["output_bias"])
