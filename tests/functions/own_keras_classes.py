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
