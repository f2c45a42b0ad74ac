"""Faults of the formulas of the backward pass."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, rank4
from attention_conformance.suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableLowest,
    DifferentiableRecomputed,
)

FAMILY = "gradient"


@fault("gradients", "`dk = ds.mT @ q`; the scale is missing: `dk = scale * ds.mT @ q`")
class KeyGradientUnscaled(Differentiable):
    """The scale is missing in the gradient of the keys."""

    def key_gradient(self, dt, query, factor):
        return dt.swapaxes(-1, -2) @ query


@fault("gradients", "`dq = ds @ k`; the scale is missing: `dq = scale * ds @ k`")
class QueryGradientUnscaled(Differentiable):
    """The scale is missing in the gradient of the queries."""

    def query_gradient(self, dt, key, factor):
        return dt @ key


@fault("gradients", "`ds = ds * scale`, then `dq = scale * ds @ k`; the scale stands once")
class QueryGradientScaledTwice(Differentiable):
    """The scale stands twice in the gradient of the queries."""

    def query_gradient(self, dt, key, factor):
        return factor * factor * (dt @ key)


@fault("gradients", "`dk[:, ::group]`; sum over the group: `dk.view(B, Hkv, group, Lk, D).sum(2)`")
class GroupNotSummed(Differentiable):
    """The gradients of keys and values are those of the first query head of a group."""

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        return self.by_group(x, call)[:, :, 0]


@fault("gradients", "`.mean(2)` over a group; sum: `dk.view(B, Hkv, group, Lk, D).sum(2)`")
class GroupAveraged(Differentiable):
    """The gradients of keys and values are averaged over the query heads of a group."""

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        return self.by_group(x, call).mean(2)


@fault(
    "gradients",
    "`dk.view(B, group, Hkv, Lk, D).sum(1)`; it is `.view(B, Hkv, group, Lk, D).sum(2)`",
)
class GroupTiledBackward(Differentiable):
    """The gradients of keys and values sum heads h, h + Hkv ... and not the heads of a group."""

    def by_group(self, x: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return x.reshape(s.B, s.group, s.Hkv, *x.shape[2:]).swapaxes(1, 2)


@fault(
    "gradient_of_bias",
    "`zeros_like(bias)` in backward; use `dbias = p * (dp - (p * dp).sum(-1, keepdim=True))`",
)
class BiasGradientZero(Differentiable):
    """The gradient of the bias is zero."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)


@fault(
    "gradients",
    "a backward pass that skips tiles above the diagonal; without the flag it needs them all",
)
class BiasGradientBelowTheDiagonal(Differentiable):
    """For more than 16 queries and as many keys the gradient of the bias is 0 above the diagonal."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        gradient = super().bias_gradient(ds, shape)
        square = 16 < ds.shape[-2] == ds.shape[-1] and shape[-2:] == ds.shape[-2:]
        return np.tril(gradient) if square else gradient


@fault("gradient_of_bias", "`ds[:1]` for a bias that samples share; use `ds.sum(0, keepdim=True)`")
class BiasGradientOfFirstSample(Differentiable):
    """The gradient of a bias shared by all samples is that of the first one."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return super().bias_gradient(ds[:1], shape) if len(shape) < 4 or shape[0] == 1 else ds


@fault(
    "gradient_of_bias",
    "`ds.mean(dims)` over broadcast axes; the gradient of a broadcast is a sum, `ds.sum(dims)`",
)
class BiasGradientAveraged(Differentiable):
    """The gradient of a bias is averaged, not summed, over the axes on which the bias is broadcast."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return super().bias_gradient(ds, shape) * (np.prod(shape) / ds.size)


@fault(
    "gradient_of_bias",
    "`ds.mean(-2)` for a bias (H, 1, Lk); the gradient of a broadcast is a sum, `ds.sum(-2)`",
)
class BiasGradientAveragedOverQueries(Differentiable):
    """The gradient of a bias that all queries share is averaged over the queries, not summed."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        gradient = super().bias_gradient(ds, shape)
        return gradient / ds.shape[-2] if shape[-2:-1] == (1,) else gradient


@fault(
    "gradient_of_bias",
    "backward runs `if ctx.needs_input_grad[0]` alone; ask for the bias's flag, too",
)
class BiasAloneForgotten(Differentiable):
    """If only the bias asks for a gradient, it gets none."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        return gradients | {"bias": None} if wrt == ("bias",) else gradients


@fault(
    "gradient_of_bias",
    "`dbias = ds * (1 - tanh(s / softcap) ** 2)`; the bias comes after the cap: `dbias = ds`",
)
class BiasGradientAfterCap(Differentiable):
    """The gradient of the bias has the softcap's slope, as if the bias were added before the cap."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if call.bias is not None and call.softcap is not None:
            query = self.load(call.query, call)
            key = self.expand(self.load(call.key, call), call)
            bend = np.tanh(self.scores(query, key, call) / call.softcap)
            slope = self.slope(bend).mean()
            gradients["bias"] = gradients["bias"] * slope
        return gradients


@fault("gradients", "`ds = p * dp`; use `ds = p * (dp - (p * dp).sum(-1, keepdim=True))`")
class MeanForgotten(Differentiable):
    """The gradient of the softmax is p dp: the row's sum of p dp is not subtracted."""

    def mean(self, weights, dp, cotangent, value):
        return np.zeros_like(dp[..., :1])


@fault(
    "gradients", "`dp - dp.mean(-1)`; subtract `(p * dp).sum(-1)`, which is `(dout * out).sum(-1)`"
)
class MeanOfWeightGradients(Differentiable):
    """The gradient of the softmax subtracts the plain mean of dp, not the mean weighted by p."""

    def mean(self, weights, dp, cotangent, value):
        return dp.mean(-1, keepdims=True)


@fault(
    "gradients", "`(dout * out).sum(-1).mean(-1)`; every row has its own, `(dout * out).sum(-1)`"
)
class MeanOverAllRows(Differentiable):
    """The sum of p dp that the softmax's gradient subtracts is averaged over all rows of a head."""

    def mean(self, weights, dp, cotangent, value):
        means = super().mean(weights, dp, cotangent, value)
        return np.broadcast_to(means.mean(-2, keepdims=True), means.shape)


@fault(
    "gradients", "`ds` goes on unchanged behind a softcap; use `ds * (1 - tanh(s / softcap) ** 2)`"
)
class CapSlopeForgotten(Differentiable):
    """The derivative of the softcap is missing in the backward pass."""

    def uncapped(self, ds, query, key, call):
        return ds


@fault("gradients", "`1 - t.abs()` for `t = tanh(s / softcap)`; the derivative is `1 - t * t`")
class CapSlopeNotSquared(Differentiable):
    """The derivative of the softcap is 1 - |tanh|, not 1 - tanh²."""

    def slope(self, bend: np.ndarray) -> np.ndarray:
        return 1 - np.abs(bend)


@fault("gradients", "`ds @ k.mT`, which has a fitting shape if Lk == D; use `dq = scale * ds @ k`")
class KeyTransposedTwice(Differentiable):
    """With Lk == D the gradient of the queries takes the keys transposed."""

    def query_gradient(self, dt, key, factor):
        if key.shape[-1] == key.shape[-2]:
            key = key.swapaxes(-1, -2)
        return factor * (dt @ key)


@fault(
    "gradients",
    "backward recomputes `p` without the mask; save it (`ctx.save_for_backward`) and apply it",
)
class MaskForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the boolean mask."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "mask": None}))


@fault(
    "gradients",
    "backward recomputes `p` without `is_causal`; keep it (`ctx.is_causal`) and apply it",
)
class CausalForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the causal flag."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "causal": False}))


@fault("gradients", "backward recomputes `p` without the key lengths; save them and apply them")
class PaddingForgottenBackward(Differentiable):
    """The backward pass recomputes the weights as if no key were padding."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "lengths": None}))


@fault("gradients", "`j <= i + 1` in the backward pass; a causal mask is `j <= i` in both passes")
class CausalOffByOneBackward(Differentiable):
    """In the backward pass a causal query sees the next key."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        if not call.causal:
            return self.allowed(call)
        row, key = call.rows_and_keys
        others = self.allowed(Call(**{**vars(call), "causal": False}))
        wider = rank4(key <= row + 1)
        return wider if others is None else others & wider


@fault(
    "gradients",
    "backward recomputes `p` without the bias; save it (`ctx.save_for_backward`) and add it",
)
class BiasForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the bias."""

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("gradients", "`exp(s - lse)` where lse is -inf gives NaN; set p to 0 in fully masked rows")
class EmptyRowNanBackward(Differentiable):
    """The gradient of a fully masked query is NaN, though its answer is zero."""

    def query_gradient(self, dt, key, factor):
        gradient = super().query_gradient(dt, key, factor)
        return np.where((dt == 0).all(-1, keepdims=True), np.nan, gradient) if dt.size else gradient


@fault(
    "gradients",
    "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
)
class EmptyRowPoisonsValues(Differentiable):
    """A fully masked row hands its gradient to all values, though its answer is zero."""

    def value_gradient(self, weights, cotangent, call):
        empty = ~weights.any(-1, keepdims=True)
        shared = np.where(empty, 1 / max(weights.shape[-1], 1), weights)
        return shared.swapaxes(-1, -2) @ cotangent


@fault(
    "gradients",
    "`exp(s - lse)` with s near -1e38: `lse = m + log(l)` rounds to m; keep m and l apart",
)
class EmptyRowUnnormalised(DifferentiableLowest, DifferentiableRecomputed):
    """In the backward pass a row that averages the values has weights of 1, not 1 / Lk."""


@fault(
    "election",
    "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
)
class EmptyRowElectsOtherwise(EmptyRowPoisonsValues):
    """A fully masked row hands its gradient to all values, though it is declared to hand on none."""


@fault(
    "gradients", "`0 * log(0)` or `-inf - -inf` in the backward pass; use `where(p == 0, 0, ds)`"
)
class InfBiasNan(Differentiable):
    """A bias of -inf makes the gradients of the bias, the queries and the keys NaN."""

    def score_gradient(self, weights, dp, mean):
        gradient = super().score_gradient(weights, dp, mean)
        return np.where(weights == 0, 0 * np.log(weights), gradient) if self.infinite else gradient

    infinite = False

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.infinite = call.bias is not None and bool(np.isneginf(call.bias.values).any())
        return super().backward_biased(scores, call)
