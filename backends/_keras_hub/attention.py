"""Attention with ALiBi from `keras_hub.layers.AlibiBias`.

The layer adds slope (k - Lk + 1) to the scores, for key k of Lk.
"""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._tensorflow.attention import Eager
from attention_conformance.backends.alibi import NO_OPERAND, refusal, with_own_bias
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs


class AlibiAttention(Eager):
    """Textbook attention with the bias of the layer."""

    name = "alibi-bias"
    textbook = False
    declared = Eager.declared.refusing(NO_OPERAND)

    def unsupported(self, case: AnyCase) -> str | None:
        return refusal(case) or super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        # Probes of undeclared elections have no bias.
        return None if inputs.bias is None else super().refuses(inputs)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import keras_hub

        tf, s = self.backend.tf, inputs.sizes
        layer = keras_hub.layers.AlibiBias(dtype=inputs.dtype.long_name)
        dtype = getattr(tf, inputs.dtype.long_name)

        def bias() -> Any:
            return layer(tf.zeros((1, s.H, s.Lq, s.Lk), dtype))

        return with_own_bias(super().prepare(inputs), inputs, bias)
