"""The TensorFlow backend: textbook code, and Keras' attention and layers on the TensorFlow engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.ops import KERAS_OPS
from attention_conformance.backends._tensorflow.engine import FLUSHED, NUMERICS, TensorflowEngine
from attention_conformance.backends.declared import INTERSECTED, LOWEST_FILL, LOWEST_IN_FLOAT32
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.vocabulary import DEVICES

EAGER = TextbookAttention.declared.but(numerics=NUMERICS).electing({"subnormal-output": FLUSHED})
"""The declaration of textbook attention; masked scores are the dtype's lowest number."""


def operations(tf: Any) -> Operations:
    """The operations of textbook code in TensorFlow."""
    return operations_of(
        tf,
        softmax=lambda x: tf.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: tf.where(hidden, tf.constant(number, x.dtype), x),
        hide=lambda scores, mask: tf.where(mask, scores, scores.dtype.min),
        logsumexp=lambda x: tf.reduce_logsumexp(
            tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32), axis=-1
        ),
        take=tf.gather,
        put=lambda x, indices, values: tf.tensor_scatter_nd_update(x, indices[:, None], values),
        astype=tf.cast,
        like=lambda x, other: tf.cast(x, other.dtype),
        counted=lambda n, x: tf.cast(tf.range(n), x.dtype),
        sum=tf.reduce_sum,
        mean=tf.reduce_mean,
        max=tf.reduce_max,
        permute_dims=tf.transpose,
        log=tf.math.log,
        clip=tf.clip_by_value,
        # TensorFlow converts a Python float to float32 first; NumPy rounds it once, to the tensor's
        # dtype.
        number=lambda value, x: tf.constant(np.asarray(value, x.dtype.as_numpy_dtype)),
    )


ON_TENSORFLOW = KERAS_OPS.but(
    declared=KERAS_OPS.declared.but(
        # The scale, given or default, passes through float32.
        numerics=NUMERICS | {"f64": "single"},
        elections=LOWEST_FILL
        | INTERSECTED
        | {"lowest-row": LOWEST_IN_FLOAT32, "subnormal-output": FLUSHED},
    )
)
"""`keras.ops.dot_product_attention` on TensorFlow."""


class TensorflowBackend(KerasBackend, TensorflowEngine):
    """TensorFlow on "cpu" or "cuda"."""

    name = "tf"
    modules = ("tensorflow",)
    engine_of_keras = "tensorflow"
    devices = DEVICES

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"keras": self.keras.__version__}

    def implementations(self) -> list[Implementation]:
        ops = operations(self.tf)
        return [
            TextbookAttention(self, ops, EAGER),
            FrameworkFunction(self, ON_TENSORFLOW),
            *textbooks(self, ops, NUMERICS),
            *self.layers(),
        ]
