"""TensorFlow's layers: textbook code. (Keras' layers are those of `backends._keras`.)"""

from __future__ import annotations

from backends._tensorflow.engine import NUMERICS, TensorflowEngine
from backends.protocol import Implementation
from backends.textbook import Operations, textbooks


def layers(backend: TensorflowEngine) -> list[Implementation]:
    """Every textbook layer in TensorFlow."""
    tf = backend.tf
    operations = Operations(
        softmax=lambda x: tf.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: tf.where(hidden, tf.constant(number, x.dtype), x),
        tanh=tf.tanh,
        total=lambda x, axis: tf.reduce_sum(x, axis),
        mean=lambda x, axis: tf.reduce_mean(x, axis),
        root=tf.sqrt,
        concat=lambda arrays, axis: tf.concat(list(arrays), axis),
        transpose=lambda x, axes: tf.transpose(x, axes),
        reshape=lambda x, shape: tf.reshape(x, shape),
        repeat=lambda x, times, axis: tf.repeat(x, times, axis),
        cos=tf.cos,
        sin=tf.sin,
        power=tf.pow,
        clip=tf.clip_by_value,
        exp=tf.exp,
        log=tf.math.log,
        largest=lambda x, axis: tf.reduce_max(x, axis),
        cast=lambda x, dtype: tf.cast(x, dtype),
        overflowing_fill="nan",
    )
    return textbooks(backend, operations, NUMERICS)
