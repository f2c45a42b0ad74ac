"""A person's own functions in TensorFlow, (B, L, H, D): a right one, and one that is slightly off."""

from __future__ import annotations

import tensorflow as tf


def by_softmax(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """Product, `tf.nn.softmax`, product. The scale is a Python number, which `tf.cast` rounds to float32
    on its way to float64."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value = (tf.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    group = query.shape[1] // key.shape[1]
    key, value = (tf.repeat(x, group, axis=1) for x in (key, value))
    scores = tf.matmul(query, key, transpose_b=True) * tf.cast(scale, query.dtype)
    if bias is not None:
        scores += bias
    hidden = tf.constant(-float("inf"), scores.dtype)
    if mask is not None:
        scores = tf.where(mask, scores, hidden)
    if is_causal:
        rows, keys = tf.range(scores.shape[-2])[:, None], tf.range(scores.shape[-1])
        scores = tf.where(keys <= rows, scores, hidden)
    return tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3))


def in_float32(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """Right to seven digits in float64, as Keras' own attention is, but further off."""
    narrow = [tf.cast(x, tf.float32) for x in (query, key, value)]
    bias = None if bias is None else tf.cast(bias, tf.float32)
    return tf.cast(by_softmax(*narrow, bias, mask, scale, is_causal), query.dtype)
