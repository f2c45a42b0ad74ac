"""Honest backward passes of layers: sums and statistics in 16 bits, as they declare, and other orders."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    Arrays,
    LayerDifferentiable,
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs


class LayerNarrowBias(LayerDifferentiable):
    """The gradient of the output bias is a sum in bfloat16, as it declares."""

    rounding = DeclaredRounding(narrow_biases={"bf16": ("output_bias",)})

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "output_bias" in gradients and inputs.dtype.name == "bf16":
            gradients["output_bias"] = summed_by_rows(cotangent, inputs)
        return gradients


class LayerNormNarrowStatistics(LayerNormDifferentiable):
    """Mean and root reach the backward pass in 16 bits, as it declares."""

    rounding = DeclaredRounding(narrow_statistics=("bf16", "f16"))

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        standard = super().standard(arrays, inputs)
        return rounded(standard, inputs) if inputs.dtype.is_half else standard


class LayerNormNarrowSums(LayerNormDifferentiable):
    """The gradients of gain and offset are sums in 16 bits, as it declares."""

    rounding = DeclaredRounding(narrow_biases=dict.fromkeys(("bf16", "f16"), ("gain", "offset")))

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().gain_gradient(dy, standard, inputs)
        return summed_by_rows(round_to(dy * standard.normal, inputs.dtype), inputs)

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().offset_gradient(dy, inputs)
        return summed_by_rows(dy, inputs)
