"""Scaled dot-product attention in TensorFlow, as textbooks write it."""

from __future__ import annotations

import numpy as np

from backends._tensorflow.engine import FLUSHED, NUMERICS, TensorflowEngine
from backends.declared import TEXTBOOK_FEATURES, Declared
from backends.masks import dense_arguments
from backends.prepared import PreparedCall, attention_call
from backends.protocol import Implementation
from backends.sources import textbook_source
from suite.spec.inputs import Inputs


class Eager(Implementation):
    """matmul, softmax, matmul; hidden scores are the dtype's lowest number."""

    backend: TensorflowEngine

    name = "eager"
    textbook = True
    declared = Declared(
        numerics=NUMERICS,
        features=TEXTBOOK_FEATURES | {"no-heads"},
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
        },
        elections={
            "fully-masked-row": "uniform",
            "fully-masked-row-gradient": "values",
            "minus-inf-row": "nan",
            "lowest-row": "uniform",
            "no-keys": "zeros",
            "lse-of-empty-row": "lowest",
            "lse-gradient": "flows",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "raises",
            "subnormal-output": FLUSHED,
            "score-overflow": "nan",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        tf, backend = self.backend.tf, self.backend
        softcap, lse = inputs.feature("softcap"), inputs.feature("lse")
        # A Python float that meets a tensor goes through float32 in TensorFlow; made in NumPy it
        # is rounded to the tensor's dtype once.
        scale = backend.array(np.asarray(inputs.effective_scale), inputs.dtype)

        def attention(query, key, value, mask, bias, sinks=None, alibi_slopes=None):
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key = tf.repeat(key, groups, axis=1)  # (B, H, Lk, D)
                value = tf.repeat(value, groups, axis=1)
            scores = tf.matmul(query, key, transpose_b=True) * scale
            if softcap is not None:
                cap = tf.constant(softcap, scores.dtype)
                scores = cap * tf.tanh(scores / cap)
            if bias is not None:
                scores = scores + bias
            if alibi_slopes is not None:  # -slope times the distance, counted from the last key
                rows, keys = scores.shape[-2], scores.shape[-1]
                row = tf.range(rows)[:, None] + (keys - rows)
                distance = tf.cast(tf.abs(row - tf.range(keys)), alibi_slopes.dtype)
                scores = scores + tf.cast(-alibi_slopes[:, None, None] * distance, scores.dtype)
            if mask is not None:
                scores = tf.where(mask, scores, scores.dtype.min)
            if sinks is not None:  # one more logit a head, whose value is 0
                sinks = tf.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
                scores = tf.concat([scores, sinks], axis=-1)  # (B, H, Lq, Lk + 1)
            weights = tf.nn.softmax(scores, axis=-1)
            if sinks is not None:
                weights = weights[..., :-1]
            output = tf.matmul(weights, value)  # (B, H, Lq, Dv)
            if not lse:
                return output
            wide = tf.float64 if scores.dtype == tf.float64 else tf.float32
            return output, tf.reduce_logsumexp(tf.cast(scores, wide), axis=-1)  # (B, H, Lq)

        number = (
            f"np.asarray({inputs.effective_scale!r}, tf.{inputs.dtype.long_name}.as_numpy_dtype)"
        )
        arguments = dense_arguments(backend, inputs)
        source = textbook_source(
            attention,
            "import numpy as np\nimport tensorflow as tf",
            arguments,
            scale=f"tf.constant({number})",
            softcap=repr(softcap),
            lse=repr(lse),
        )
        constants = (inputs.effective_scale, softcap)
        return attention_call(attention, arguments, lse, source=source, constants=constants)
