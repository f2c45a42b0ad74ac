"""The operations of textbook code in TensorFlow."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._tensorflow.engine import FLUSHED, NUMERICS
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.layer import Operations

EAGER = TextbookAttention.declared.but(numerics=NUMERICS).electing({"subnormal-output": FLUSHED})
"""The declaration of textbook attention; masked scores are the dtype's lowest number."""


def operations(np: Any, tf: Any) -> Operations:
    """TensorFlow's names for the operations of textbook code."""
    return Operations(
        softmax=lambda x: tf.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: tf.where(hidden, tf.constant(number, x.dtype), x),
        tanh=tf.tanh,
        total=lambda x, axis: tf.reduce_sum(x, axis),
        mean=lambda x, axis: tf.reduce_mean(x, axis),
        root=tf.sqrt,
        concat=lambda arrays, axis: tf.concat(list(arrays), axis),
        transpose=lambda x, axes: tf.transpose(x, axes),
        reshape=lambda x, shape: tf.reshape(x, shape),
        put=lambda x, indices, values: tf.tensor_scatter_nd_update(x, indices[:, None], values),
        take=tf.gather,
        repeat=lambda x, times, axis: tf.repeat(x, times, axis),
        cos=tf.cos,
        sin=tf.sin,
        power=tf.pow,
        clip=tf.clip_by_value,
        rint=tf.round,
        exp=tf.exp,
        log=tf.math.log,
        largest=lambda x, axis: tf.reduce_max(x, axis),
        cast=lambda x, dtype: tf.cast(x, dtype),
        # TensorFlow converts a Python float to float32 first; NumPy rounds it once, to the tensor's
        # dtype.
        number=lambda value, x: tf.constant(np.asarray(value, x.dtype.as_numpy_dtype)),
        hide=lambda scores, mask: tf.where(mask, scores, scores.dtype.min),
        broadcast=tf.broadcast_to,
        logsumexp=lambda x: tf.reduce_logsumexp(
            tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32), axis=-1
        ),
        like=lambda x, other: tf.cast(x, other.dtype),
        counted=lambda n, x: tf.cast(tf.range(n), x.dtype),
    )
