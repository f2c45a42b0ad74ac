"""Mutants of the backward pass at fault in its formulas."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, rank4
from suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableLowest,
    DifferentiableRecomputed,
)


@fault("gradients")
class KeyGradientUnscaled(Differentiable):
    """The scale is missing in the gradient of the keys."""

    def key_gradient(self, dt, query, factor):
        return dt.swapaxes(-1, -2) @ query


@fault("gradients")
class QueryGradientUnscaled(Differentiable):
    """The scale is missing in the gradient of the queries."""

    def query_gradient(self, dt, key, factor):
        return dt @ key


@fault("gradients")
class QueryGradientScaledTwice(Differentiable):
    """The scale stands twice in the gradient of the queries."""

    def query_gradient(self, dt, key, factor):
        return factor * factor * (dt @ key)


@fault("gradients", like="I10")
class GroupNotSummed(Differentiable):
    """The gradients of keys and values are those of the first query head of a group."""

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        return self.by_group(x, call)[:, :, 0]


@fault("gradients", like="I10")
class GroupAveraged(Differentiable):
    """The gradients of keys and values are averaged over the query heads of a group."""

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        return self.by_group(x, call).mean(2)


@fault("gradients", like="E1")
class GroupTiledBackward(Differentiable):
    """The backward pass sums heads 0, 2 and 1, 3 where the forward pass repeated 0, 0, 1, 1."""

    def by_group(self, x: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return x.reshape(s.B, s.group, s.Hkv, *x.shape[2:]).swapaxes(1, 2)


@fault("gradient_of_bias", like="I8")
class BiasGradientZero(Differentiable):
    """The gradient of the bias is zero."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)


@fault("gradient_of_bias")
class BiasGradientOfFirstSample(Differentiable):
    """The gradient of a bias shared by all samples is that of the first one."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return super().bias_gradient(ds[:1], shape) if len(shape) < 4 or shape[0] == 1 else ds


@fault("gradient_of_bias")
class BiasGradientAveraged(Differentiable):
    """The gradient of a bias is averaged over the axes it lacks."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return super().bias_gradient(ds, shape) * (np.prod(shape) / ds.size)


@fault("gradient_of_bias", like="I1")
class BiasAloneForgotten(Differentiable):
    """Where the bias alone asks for a gradient, it gets none."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        return gradients | {"bias": None} if wrt == ("bias",) else gradients


@fault("gradient_of_bias")
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


@fault("gradients", like="I11")
class MeanForgotten(Differentiable):
    """D is left out: the gradient of the softmax is p dp."""

    def mean(self, weights, dp, cotangent, value):
        return np.zeros_like(dp[..., :1])


@fault("gradients")
class MeanOfWeightGradients(Differentiable):
    """D is the plain mean of dp, not the mean under the weights."""

    def mean(self, weights, dp, cotangent, value):
        return dp.mean(-1, keepdims=True)


@fault("gradients")
class MeanOverAllRows(Differentiable):
    """D is that of the head, not of the row."""

    def mean(self, weights, dp, cotangent, value):
        means = super().mean(weights, dp, cotangent, value)
        return np.broadcast_to(means.mean(-2, keepdims=True), means.shape)


@fault("gradients")
class CapSlopeForgotten(Differentiable):
    """The slope of the softcap is missing."""

    def uncapped(self, ds, query, key, call):
        return ds


@fault("gradients")
class CapSlopeNotSquared(Differentiable):
    """The slope of the softcap is 1 - |tanh|."""

    def slope(self, bend: np.ndarray) -> np.ndarray:
        return 1 - np.abs(bend)


@fault("gradients", like="I7")
class KeyTransposedTwice(Differentiable):
    """Where keys are as long as they are wide, the backward pass takes them transposed."""

    def query_gradient(self, dt, key, factor):
        if key.shape[-1] == key.shape[-2]:
            key = key.swapaxes(-1, -2)
        return factor * (dt @ key)


@fault("gradients", like="I13")
class MaskForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the boolean mask."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "mask": None}))


@fault("gradients")
class CausalForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the causal flag."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "causal": False}))


@fault("gradients", like="I14")
class PaddingForgottenBackward(Differentiable):
    """The backward pass recomputes the weights as if no key were padding."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "lengths": None}))


@fault("gradients")
class CausalOffByOneBackward(Differentiable):
    """The backward pass lets every row see one key more."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        if not call.causal:
            return self.allowed(call)
        row, key = call.rows_and_keys
        others = self.allowed(Call(**{**vars(call), "causal": False}))
        wider = rank4(key <= row + 1)
        return wider if others is None else others & wider


@fault("gradients")
class BiasForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the bias."""

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("gradients", like="I15")
class EmptyRowNanBackward(Differentiable):
    """The gradient of a row without keys is NaN, though its answer is zero."""

    def query_gradient(self, dt, key, factor):
        gradient = super().query_gradient(dt, key, factor)
        return np.where((dt == 0).all(-1, keepdims=True), np.nan, gradient) if dt.size else gradient


@fault("gradients", like="I15")
class EmptyRowPoisonsValues(Differentiable):
    """A row without keys shares its cotangent out among the values."""

    def value_gradient(self, weights, cotangent, call):
        empty = ~weights.any(-1, keepdims=True)
        shared = np.where(empty, 1 / max(weights.shape[-1], 1), weights)
        return shared.swapaxes(-1, -2) @ cotangent


@fault("gradients")
class EmptyRowUnnormalised(DifferentiableLowest, DifferentiableRecomputed):
    """A row that averages the values has weights of 1 in the backward pass: lse lost log Lk."""


@fault("election")
class EmptyRowElectsOtherwise(EmptyRowPoisonsValues):
    """A row without keys shares its cotangent out, though it is declared to keep it."""


@fault("gradients")
class InfBiasNan(Differentiable):
    """Where the bias is -inf its gradient, and all that hangs on it, is NaN."""

    def score_gradient(self, weights, dp, mean):
        gradient = super().score_gradient(weights, dp, mean)
        return np.where(weights == 0, 0 * np.log(weights), gradient) if self.infinite else gradient

    infinite = False

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.infinite = call.bias is not None and bool(np.isneginf(call.bias.values).any())
        return super().backward_biased(scores, call)
