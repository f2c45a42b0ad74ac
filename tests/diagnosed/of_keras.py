"""The kernels of rows in Keras on TensorFlow, (B, L, H, D), with the signature of
`keras.ops.dot_product_attention`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tests.diagnosed.kernels import kernels_of


def wide(x: Any) -> Any:
    """An array in float32 at least."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, keras.backend.result_type(dtype, "float32"))


KERAS = SimpleNamespace(
    parameters=("bias", "mask", "scale", "is_causal"),
    has_flag=False,
    read=lambda given: given,
    heads_first=lambda x: ops.swapaxes(x, 1, 2),
    heads_back=lambda x: ops.swapaxes(x, 1, 2),
    wide=wide,
    repeat=lambda x, times: ops.repeat(x, times, 1),
    tile=lambda x, times: ops.tile(x, (1, times, 1, 1)),
    drop=tf.nn.dropout,
    inf=float("inf"),
    **{n: getattr(ops, n) for n in ("arange", "cast", "clip", "einsum", "softmax", "swapaxes", "where")},
)  # fmt: skip

globals().update(kernels_of(KERAS, "tf"))
