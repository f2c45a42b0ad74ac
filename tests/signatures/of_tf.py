"""Functions for TensorFlow as people write them; `tests.signatures.rows` judges them."""

import tensorflow as tf


def scaled_dot_product_attention(q, k, v, mask):
    """Textbook code, heads before lengths; the ones of a required mask hide."""
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], matmul_qk.dtype)
    logits = matmul_qk / tf.math.sqrt(dk)
    if mask is not None:
        logits += mask * -1e9
    attention_weights = tf.nn.softmax(logits, axis=-1)
    return tf.matmul(attention_weights, v), attention_weights


def lengths_first(query, key, value, attention_mask=None, use_causal_mask=False):
    """Textbook code with lengths before heads, and the words of Keras' layers."""
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key)
    scores *= tf.cast(tf.shape(query)[-1], scores.dtype) ** -0.5
    if use_causal_mask:
        rows, keys = tf.shape(scores)[2], tf.shape(scores)[3]
        past = tf.range(rows)[:, None] >= tf.range(keys)
        scores = tf.where(past, scores, scores.dtype.min)
    if attention_mask is not None:
        scores = tf.where(attention_mask, scores, scores.dtype.min)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), value)
