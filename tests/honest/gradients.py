"""Honest backward passes of layers: sums and statistics in 16 bits, as they declare, and other orders."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    Arrays,
    Differentiated,
    LayerDifferentiable,
)
from attention_conformance.suite.deviations.kernels.norm_gradient import (
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


class LayerNarrowBias(LayerDifferentiable):
    """The gradient of the output bias is a sum in bfloat16, as it declares."""

    rounding = DeclaredRounding(narrow_biases={"bf16": ("output_bias",)})

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "output_bias" in gradients and inputs.dtype.name == "bf16":
            gradients["output_bias"] = summed_by_rows(cotangent, inputs)
        return gradients


class SelfAttentionDifferentiable(Differentiated, MultiHeadKernel):
    """One head with projections of one tensor, with a backward pass of its own."""

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("kind") != "self-attention":
            return "differentiates one head alone"
        return super().unsupported(case)

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        x, kernels = arrays["query"], {n: arrays[f"{n}_kernel"][:, 0] for n in OPERANDS}
        q, k, v = (
            self.step(x @ kernels[n] + arrays.get(f"{n}_bias", np.zeros(1)), inputs)
            for n in OPERANDS
        )
        factor = 1 / np.sqrt(inputs.sizes.D)
        scores = self.step(factor * q @ k.swapaxes(-1, -2), inputs)
        scores = np.where(inputs.attends[:, 0], scores, -np.inf)
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        weights = self.step(raised / raised.sum(-1, keepdims=True), inputs)
        dp = self.step(cotangent @ v.swapaxes(-1, -2), inputs)
        ds = self.step(weights * (dp - (weights * dp).sum(-1, keepdims=True)), inputs)
        moved = {
            "query": factor * ds @ k,
            "key": factor * ds.swapaxes(-1, -2) @ q,
            "value": weights.swapaxes(-1, -2) @ cotangent,
        }
        moved = {name: self.step(y, inputs) for name, y in moved.items()}
        gradients = {
            f"{n}_kernel": np.einsum("bln,bld->nd", x, y)[:, None] for n, y in moved.items()
        }
        for name, y in moved.items() if "query_bias" in arrays else ():
            gradients[f"{name}_bias"] = y.sum((0, 1))[None]
        parts = {n: self.step(y @ kernels[n].T, inputs) for n, y in moved.items()}
        return gradients | {"query": self.together(parts, inputs)}

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        """What the tensor receives as query, key and value."""
        return self.step(parts["query"] + parts["key"], inputs) + parts["value"]


class SelfAttentionDifferentiatedInSteps(SelfAttentionDifferentiable):
    """Self-attention whose backward pass stores every step."""

    numerics = "eager"

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        return round_to(x, inputs.dtype)


class SelfAttentionOneProduct(SelfAttentionDifferentiable):
    """Self-attention whose input takes its gradient from one product, in working precision."""

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        work = np.float64 if inputs.dtype.name == "f64" else np.float32
        total: np.ndarray = np.sum([x.astype(work) for x in parts.values()], 0)
        return total.astype(np.float64)


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
