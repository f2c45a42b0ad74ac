"""Attention layers in Keras as people write them: right ones, and twins with one thing wrong."""

from __future__ import annotations

import tensorflow as tf


class SelfAttention(tf.keras.layers.Layer):
    """One head; its layers are built in the first call."""

    def __init__(self, d_k, d_v):
        super().__init__()
        self.d_k = d_k
        self.query_dense = tf.keras.layers.Dense(d_k)
        self.key_dense = tf.keras.layers.Dense(d_k)
        self.value_dense = tf.keras.layers.Dense(d_v)

    def scaled(self, scores):
        return scores / tf.math.sqrt(tf.cast(self.d_k, tf.float32))

    def call(self, inputs):
        query, key = self.query_dense(inputs), self.key_dense(inputs)
        scores = self.scaled(tf.matmul(query, key, transpose_b=True))
        weights = tf.nn.softmax(scores, axis=-1)
        return tf.matmul(weights, self.value_dense(inputs)), weights


class Unscaled(SelfAttention):
    def scaled(self, scores):
        return scores


class MultiHeadAttention(tf.keras.layers.Layer):
    """Makes its heads anew in every call, and does not use what its own layers return."""

    def __init__(self, num_heads, d_model):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads, self.depth = num_heads, d_model // num_heads
        self.queries = [tf.keras.layers.Dense(self.depth) for _ in range(num_heads)]
        self.keys = [tf.keras.layers.Dense(self.depth) for _ in range(num_heads)]
        self.values = [tf.keras.layers.Dense(self.depth) for _ in range(num_heads)]
        self.dense = tf.keras.layers.Dense(d_model)

    def call(self, inputs):
        outputs = []
        for i in range(self.num_heads):
            self.queries[i](inputs), self.keys[i](inputs), self.values[i](inputs)
            output, _ = SelfAttention(self.depth, self.depth)(inputs)
            outputs.append(output)
        return self.dense(tf.concat(outputs, axis=-1))
