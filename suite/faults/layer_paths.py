"""Faults of layers where masks meet options, or on one path alone."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import AdditiveKernel
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "layer"


@fault("values", "`mask if mask is not None else valid`; both apply: `mask & valid`", family="mask")
class PaddingLostWithMask(MultiHeadKernel):
    """Beside a boolean mask padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.mask is not None), call)


@fault("values", "a path for float masks that leaves out the padding", family="mask")
class PaddingLostWithBias(MultiHeadKernel):
    """Beside a float mask padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.bias is not None), call)


@fault("values", "a path for grouped heads that leaves out the padding", family="mask")
class PaddingLostWithGroups(MultiHeadKernel):
    """With grouped heads padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.sizes.H != call.sizes.Hkv), call)


@fault("values", "a path for float masks that leaves out the causal mask", family="mask")
class CausalLostWithBias(MultiHeadKernel):
    """Beside a float mask the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.bias is not None)


@fault("values", "`is_causal and Lq > 1`; top-left, one query sees key 0 alone", family="mask")
class CausalLostForOneQuery(MultiHeadKernel):
    """With one query the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.sizes.Lq == 1)


@fault("values", "a path for a query (B, E) that leaves out the padding", family="mask")
class PaddingIgnoredForOneQuery(AdditiveKernel):
    """For a query without a length axis padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | call.single, call)


@fault("paths", "a path for `training=True` that leaves out the causal mask", family="mask")
class CausalLostInTraining(MultiHeadKernel):
    """In training the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.training


@fault("paths", "the fast path of `torch.no_grad()` leaves out the padding", family="mask")
class PaddingLostWithoutGradients(MultiHeadKernel):
    """If no gradients are asked for, padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (not call.gradients), call)


@fault("paths", "the fast path of `torch.no_grad()` leaves out the mask", family="mask")
class MaskLostWithoutGradients(MultiHeadKernel):
    """If no gradients are asked for, a boolean mask has no effect."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | (not call.gradients)


@fault("paths", "a path for `need_weights=True` without `/ sqrt(D)`", family="scale")
class ScaleMissingWithWeights(MultiHeadKernel):
    """Scores are not scaled if the weights of every head are returned."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 if call.returned == "head" else super().factor(call)


@fault("paths", "`mask[..., j - 1]`; key j has `mask[..., j]`", family="mask")
class DenseMaskShifted(MultiHeadKernel):
    """A boolean mask is read one key off."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.roll(mask, 1, -1)


@fault("paths", "the fast path of `torch.no_grad()` leaves out the float mask", family="scores")
class BiasLostWithoutGradients(MultiHeadKernel):
    """If no gradients are asked for, a float mask has no effect."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().biased(scores, call) if call.gradients else scores


@fault(
    "paths",
    '`autocast("cpu", torch.bfloat16)` around training; keep the dtype of the input',
    family="numerics",
)
class HalfSumsInTraining(MultiHeadKernel):
    """In training features are rounded to bfloat16, whatever the dtype."""

    def keep(self, x: np.ndarray, what: str, call: LayerCall) -> np.ndarray:
        coarse = call.training and what == "features"
        return round_to(x, DTYPES["bf16"]).astype(call.work) if coarse else x


@fault(
    "election", "`is_causal` read as a hint about `attn_mask`; alone, too, it hides", family="mask"
)
class CausalAloneIgnored(MultiHeadKernel):
    """The causal flag is taken for a hint about the mask: without a mask it has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is None)


@fault(
    "one_memory", "`if key is value: v = w_k(key)`; values have `w_v`, also if both are one array"
)
class OneMemoryOneKernel(MultiHeadKernel):
    """Keys and values that are one array are both projected by the kernel of keys."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        shared = name == "value" and call.key is call.value and not call.own
        return super().kernel("key" if shared else name, call)
