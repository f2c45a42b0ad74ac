"""Attention in TensorFlow and Keras, (B, L, H, D), with the signature of
`keras.ops.dot_product_attention`, and wrong, but for one that is right."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops


def repeated(query, key, value):
    """Keys and values with one head for each query head."""
    group = query.shape[2] // key.shape[2]
    return tf.repeat(key, group, axis=2), tf.repeat(value, group, axis=2)


def masked(scores, bias, mask, is_causal):
    """Scores (B, H, L, S) with their bias, -inf where hidden."""
    hidden = tf.constant(-float("inf"), scores.dtype)
    if bias is not None:
        scores = scores + tf.cast(bias, scores.dtype)
    if mask is not None:
        scores = tf.where(mask, scores, hidden)
    if is_causal:
        past = tf.range(scores.shape[-1])[None, :] <= tf.range(scores.shape[-2])[:, None]
        scores = tf.where(past, scores, hidden)
    return scores


def default_scale(query, scale):
    """1 / sqrt(D) in the query's dtype."""
    return tf.cast(query.shape[-1] ** -0.5 if scale is None else scale, query.dtype)


def right(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """Right: scores, softmax, product."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    weights = tf.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def multiplies_mask(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """The mask is a factor of the scores: openxla/xla#11717."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    if mask is not None:
        scores = scores * tf.cast(mask, scores.dtype)
    weights = tf.nn.softmax(masked(scores, bias, None, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def flag_lost_beside_mask(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """With an explicit mask the causal flag is dropped: keras-team/keras#23038."""
    key, value = repeated(query, key, value)
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    if mask is not None:
        scores = masked(scores, bias, mask, False)
    else:
        scores = masked(scores, bias, None, is_causal)
    return ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores, axis=-1), value)


def infinity_times_zero(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """(1 - mask) * -1e9 is 0 * inf = NaN in float16: tensorflow/tensorflow#59657."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    if mask is not None:
        scores += (1.0 - tf.cast(mask, scores.dtype)) * tf.cast(-1e9, scores.dtype)
    weights = tf.nn.softmax(masked(scores, bias, None, is_causal))
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def softmax_over_heads(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """`axis=1` was the axis of keys before heads were added."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    weights = tf.nn.softmax(masked(scores, bias, mask, is_causal), axis=1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def scaled_by_number_of_keys(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """The depth is read from the axis of lengths: `tf.shape(k)[1]`."""
    key, value = repeated(query, key, value)
    logits = tf.einsum("bqhd,bkhd->bhqk", query, key)
    if scale is None:
        dk = tf.cast(tf.shape(key)[1], logits.dtype)
        logits = logits / tf.math.sqrt(dk)
    else:
        logits = logits * tf.cast(scale, logits.dtype)
    weights = tf.nn.softmax(masked(logits, bias, mask, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def tiled_groups(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """`tf.tile` in the place of `tf.repeat`: microsoft/onnxscript#2408."""
    group = query.shape[2] // key.shape[2]
    key, value = (tf.tile(x, [1, 1, group, 1]) for x in (key, value))
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    weights = tf.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def bias_is_lost(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """The bias is taken and never added: microsoft/onnxruntime#26766 had it wrong on one device."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    weights = tf.nn.softmax(masked(scores, None, mask, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", weights, value)


def dropout_stays_on(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """`tf.nn.dropout` has no word for inference."""
    key, value = repeated(query, key, value)
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * default_scale(query, scale)
    weights = keras.ops.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.dropout(weights, rate=0.1), value)
