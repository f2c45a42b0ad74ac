"""Attention whose ALiBi is that of `keras_hub.layers.AlibiBias`.

The layer adds slope (k - Lk + 1) to the scores, for key k of Lk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backends._tensorflow.attention import Eager
from backends.alibi import REFUSED, refusal
from backends.prepared import PreparedCall
from suite.spec.catalogue import AnyCase
from suite.spec.inputs import Inputs


class AlibiAttention(Eager):
    """Textbook attention, to whose scores the layer adds its bias."""

    name = "alibi-bias"
    declared = Eager.declared.refusing(REFUSED)

    def unsupported(self, case: AnyCase) -> str | None:
        return refusal(case) or super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import keras_hub

        tf, s = self.backend.tf, inputs.sizes
        prepared = super().prepare(inputs)
        attention = prepared.function
        layer = keras_hub.layers.AlibiBias(dtype=inputs.dtype.long_name)
        dtype = getattr(tf, inputs.dtype.long_name)

        def call(**arguments: Any) -> Any:
            bias = layer(tf.zeros((1, s.H, s.Lq, s.Lk), dtype))
            return attention(**arguments, bias=bias)

        arguments = {n: a for n, a in prepared.arguments.items() if n != "bias"}
        return replace(prepared, function=call, arguments=arguments, source="", constants=None)
