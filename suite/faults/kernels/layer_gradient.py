"""Honest layers with a backward pass in NumPy, in float64, rounded once.

Multi-head attention takes the reference's; that of the others is written out, a method a step, and
faults are subclasses that change one. Norms are in `norm_gradient`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.multi_head import reference
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.faults.kernels.layer import LayerKernel, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    ConcatKernel,
    DotKernel,
)
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs

Arrays = dict[str, np.ndarray]


class Differentiated(LayerKernel):
    """A layer whose call has a derivative of its own."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)

        def vjp(cotangent: Rounded, wrt: list[str], **arguments: Any) -> dict[str, Any]:
            arrays = {n: a.values for n, a in arguments.items() if isinstance(a, Rounded)}
            gradients = self.gradients(arrays, cotangent.values, inputs)
            return {
                n: Rounded(round_to(x, inputs.dtype), inputs.dtype) for n, x in gradients.items()
            }

        return replace(plain, vjp=vjp)

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        """Gradients by argument, float64."""
        raise NotImplementedError

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        """A step of the backward pass as it is stored."""
        return x


class LayerDifferentiable(Differentiated, MultiHeadKernel):
    """Multi-head attention whose gradients are computed in float64 and rounded once."""

    empty_rows = "zeros"

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        values = inputs.replace(**{name: arrays[name] for name in inputs.arrays if name in arrays})
        outputs = reference.vjp(values, cotangent, NO_ROUNDING, self.empty_rows)
        return {name: gradient.value for name, gradient in outputs.arrays.items()}


class SingleDifferentiable(Differentiated):
    """One head without a projection of values: ds and dv from scores that a subclass makes."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        scores = np.where(inputs.attends[:, 0], self.forward(arrays), -np.inf)
        top = scores.max(-1, keepdims=True)
        raised = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = raised.sum(-1, keepdims=True)
        weights = raised / np.where(total == 0, 1, total)  # (B, Lq, Lk)
        dp = cotangent @ arrays["value"].swapaxes(-1, -2)
        ds = weights * (dp - (weights * dp).sum(-1, keepdims=True))
        return {"value": weights.swapaxes(-1, -2) @ cotangent, **self.backward(arrays, ds)}

    def forward(self, arrays: Arrays) -> np.ndarray:
        """The scores (B, Lq, Lk)."""
        raise NotImplementedError

    def backward(self, arrays: Arrays, ds: np.ndarray) -> Arrays:
        """Gradients by everything but the values."""
        raise NotImplementedError


class TanhDifferentiable(SingleDifferentiable):
    """Scores c sum_u w_u tanh(a (Q_i + K_j))_u."""

    def steps(self, arrays: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
        """x (B, Lq, Lk, U), tanh a x, w, a and c."""
        q, k = arrays["query"], arrays["key"]
        if "query_kernel" in arrays:
            q, k = q @ arrays["query_kernel"], k @ arrays["key_kernel"]
        x = q[:, :, None] + k[:, None]
        scale = float(arrays.get("scale", np.ones(())))
        vector = arrays.get("score_vector", np.ones(x.shape[-1]))
        return x, np.tanh(scale * x), vector, scale, float(arrays.get("concat_weight", np.ones(())))

    def forward(self, arrays: Arrays) -> np.ndarray:
        _, h, vector, _, weight = self.steps(arrays)
        return weight * (h @ vector)

    def backward(self, arrays: Arrays, ds: np.ndarray) -> Arrays:
        x, h, vector, scale, weight = self.steps(arrays)
        dr = self.weighted(ds, weight)
        dy = dr[..., None] * vector * self.slope(h)
        dx = scale * dy
        gradients = {"query": dx.sum(2), "key": dx.sum(1)}
        gradients["score_vector"] = self.vector_gradient(dr, h)
        gradients["concat_weight"] = (ds * (h @ vector)).sum()
        gradients["scale"] = (dy * x).sum()
        for name in ("query", "key") if "query_kernel" in arrays else ():
            moved, kernel = gradients[name], arrays[f"{name}_kernel"]
            gradients[f"{name}_kernel"] = np.einsum("bln,blu->nu", arrays[name], moved)
            gradients[name] = moved @ kernel.T
        return {name: np.asarray(gradients[name]) for name in gradients if name in arrays}

    def weighted(self, ds: np.ndarray, weight: float) -> np.ndarray:
        return weight * ds

    def slope(self, h: np.ndarray) -> np.ndarray:
        return 1 - h * h

    def vector_gradient(self, dr: np.ndarray, h: np.ndarray) -> np.ndarray:
        return np.einsum("bij,biju->u", dr, h)


class AdditiveDifferentiable(TanhDifferentiable, AdditiveKernel):
    """Additive attention with a backward pass."""


class ConcatDifferentiable(TanhDifferentiable, ConcatKernel):
    """Concat attention with a backward pass."""


class DotDifferentiable(SingleDifferentiable, DotKernel):
    """Dot-product attention with a backward pass."""

    def number(self, arrays: Arrays) -> float:
        return float(arrays.get("scale", np.ones(())))

    def forward(self, arrays: Arrays) -> np.ndarray:
        return self.number(arrays) * (arrays["query"] @ arrays["key"].swapaxes(-1, -2))

    def backward(self, arrays: Arrays, ds: np.ndarray) -> Arrays:
        dt = self.number(arrays) * ds
        gradients = {"query": dt @ arrays["key"], "key": dt.swapaxes(-1, -2) @ arrays["query"]}
        product = arrays["query"] @ arrays["key"].swapaxes(-1, -2)
        gradients["scale"] = np.asarray(self.scale_gradient(ds, product, arrays))
        return {name: gradients[name] for name in gradients if name in arrays}

    def scale_gradient(self, ds: np.ndarray, product: np.ndarray, arrays: Arrays) -> np.ndarray:
        return (ds * product).sum()
