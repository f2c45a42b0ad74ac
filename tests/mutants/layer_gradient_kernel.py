"""Honest layers with a backward pass in NumPy, in float64, rounded once.

Multi-head attention takes the reference's; that of the others is written out, a method a step, and
mutants are subclasses that change one. Norms are in `tests.mutants.norm_gradient_kernel`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backends._numpy import Rounded
from backends.prepared import PreparedCall
from references.multi_head import vjp
from references.rounding import NO_ROUNDING
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from tests.mutants.layer_kernel import LayerKernel, MultiHeadKernel, SelfAttentionKernel
from tests.mutants.single_kernel import AdditiveKernel, ConcatKernel, DotKernel, MaskedKernel

Arrays = dict[str, np.ndarray]


class Differentiated(LayerKernel):
    """A layer whose call has a derivative of its own."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)

        def vjp(cotangent: Rounded, wrt: list[str], **arguments: Any) -> dict[str, Any]:
            given = {n: a.values for n, a in arguments.items() if isinstance(a, Rounded)}
            found = self.gradients(given, cotangent.values, inputs)
            return {n: Rounded(round_to(x, inputs.dtype), inputs.dtype) for n, x in found.items()}

        return replace(plain, vjp=vjp)

    def gradients(self, given: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        """Gradients by argument, float64."""
        raise NotImplementedError

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        """A step of the backward pass as it is stored."""
        return x


class LayerDifferentiable(Differentiated, MultiHeadKernel):
    """Multi-head attention whose gradients are computed in float64 and rounded once."""

    empty_rows = "zeros"

    def gradients(self, given: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        values = inputs.replace(**{name: given[name] for name in inputs.arrays if name in given})
        found = vjp(values, cotangent, NO_ROUNDING, self.empty_rows)
        return {name: made.value for name, made in found.arrays.items()}


class SelfAttentionDifferentiable(Differentiated, SelfAttentionKernel):
    """One head with projections of one tensor, with a backward pass."""

    def gradients(self, given: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        x, kernels = given["query"], {n: given[f"{n}_kernel"][:, 0] for n in ROLES}
        q, k, v = (
            self.step(x @ kernels[n] + given.get(f"{n}_bias", np.zeros(1)), inputs) for n in ROLES
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
            "key": self.key_gradient(ds, q, factor),
            "value": weights.swapaxes(-1, -2) @ cotangent,
        }
        moved = {name: self.step(y, inputs) for name, y in moved.items()}
        found = {f"{n}_kernel": np.einsum("bln,bld->nd", x, y)[:, None] for n, y in moved.items()}
        for name, y in moved.items() if "query_bias" in given else ():
            found[f"{name}_bias"] = y.sum((0, 1))[None]
        parts = {n: self.step(y @ kernels[n].T, inputs) for n, y in moved.items()}
        return found | {"query": self.together(parts, inputs)}

    def key_gradient(self, ds: np.ndarray, query: np.ndarray, factor: float) -> np.ndarray:
        return factor * ds.swapaxes(-1, -2) @ query

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        """What the tensor receives as query, key and value."""
        return self.step(parts["query"] + parts["key"], inputs) + parts["value"]


ROLES = ("query", "key", "value")


class SingleDifferentiable(Differentiated):
    """One head without a projection of values: ds and dv from scores that a subclass makes."""

    def gradients(self, given: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        scores, mask = self.forward(given), inputs.dense_mask
        if mask is not None:
            scores = np.where(np.broadcast_to(mask[:, 0], scores.shape), scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        raised = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = raised.sum(-1, keepdims=True)
        weights = raised / np.where(total == 0, 1, total)  # (B, Lq, Lk)
        dp = cotangent @ given["value"].swapaxes(-1, -2)
        ds = weights * (dp - (weights * dp).sum(-1, keepdims=True))
        return {"value": weights.swapaxes(-1, -2) @ cotangent, **self.backward(given, ds)}

    def forward(self, given: Arrays) -> np.ndarray:
        """The scores (B, Lq, Lk)."""
        raise NotImplementedError

    def backward(self, given: Arrays, ds: np.ndarray) -> Arrays:
        """Gradients by everything but the values."""
        raise NotImplementedError


class TanhDifferentiable(SingleDifferentiable):
    """Scores c sum_u w_u tanh(a (Q_i + K_j))_u."""

    def steps(self, given: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
        """x (B, Lq, Lk, U), tanh a x, w, a and c."""
        q, k = given["query"], given["key"]
        if "query_kernel" in given:
            q, k = q @ given["query_kernel"], k @ given["key_kernel"]
        x = q[:, :, None] + k[:, None]
        scale = float(given.get("scale", np.ones(())))
        vector = given.get("score_vector", np.ones(x.shape[-1]))
        return x, np.tanh(scale * x), vector, scale, float(given.get("concat_weight", np.ones(())))

    def forward(self, given: Arrays) -> np.ndarray:
        _, h, vector, _, weight = self.steps(given)
        return weight * (h @ vector)

    def backward(self, given: Arrays, ds: np.ndarray) -> Arrays:
        x, h, vector, scale, weight = self.steps(given)
        dr = self.weighted(ds, weight)
        dy = dr[..., None] * vector * self.slope(h)
        dx = scale * dy
        found = {"query": dx.sum(2), "key": dx.sum(1)}
        found["score_vector"] = self.vector_gradient(dr, h)
        found["concat_weight"] = (ds * (h @ vector)).sum()
        found["scale"] = (dy * x).sum()
        for name in ("query", "key") if "query_kernel" in given else ():
            moved, kernel = found[name], given[f"{name}_kernel"]
            found[f"{name}_kernel"] = np.einsum("bln,blu->nu", given[name], moved)
            found[name] = moved @ kernel.T
        return {name: np.asarray(found[name]) for name in found if name in given}

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

    def number(self, given: Arrays) -> float:
        return float(given.get("scale", np.ones(())))

    def forward(self, given: Arrays) -> np.ndarray:
        return self.number(given) * (given["query"] @ given["key"].swapaxes(-1, -2))

    def backward(self, given: Arrays, ds: np.ndarray) -> Arrays:
        dt = self.number(given) * ds
        found = {"query": dt @ given["key"], "key": dt.swapaxes(-1, -2) @ given["query"]}
        product = given["query"] @ given["key"].swapaxes(-1, -2)
        found["scale"] = np.asarray(self.scale_gradient(ds, product, given))
        return {name: found[name] for name in found if name in given}

    def scale_gradient(self, ds: np.ndarray, product: np.ndarray, given: Arrays) -> np.ndarray:
        return (ds * product).sum()


class MaskedDifferentiable(DotDifferentiable, MaskedKernel):
    """Scaled dot-product attention with two masks, with a backward pass."""

    def number(self, given: Arrays) -> float:
        return float(1 / np.sqrt(given["query"].shape[-1]))
