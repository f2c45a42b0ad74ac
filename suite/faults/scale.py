"""Faults of the scale of the scores."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "scale"


@fault("values", "`scale = 1 / sqrt(D)` always; use `scale if scale is not None else 1 / sqrt(D)`")
class ScaleIgnored(Kernel):
    """An explicit scale has no effect."""

    def factor(self, call: Call) -> float:
        return 1.0 / math.sqrt(call.sizes.D)


@fault(
    "default_scale",
    "`q @ k.mT` without `/ sqrt(D)`; the default of `scale` is `1 / sqrt(D)`, not 1",
)
class DefaultScaleIsOne(Kernel):
    """Without an explicit scale nothing is scaled."""

    def factor(self, call: Call) -> float:
        return 1.0 if call.scale is None else call.scale


@fault("values", "`scale or 1 / sqrt(D)`; 0 is false in Python, so ask `scale is None`")
class ScaleZeroIsDefault(Kernel):
    """A scale of 0 is replaced by the default one."""

    def factor(self, call: Call) -> float:
        return call.scale or 1.0 / math.sqrt(call.sizes.D)


@fault("score_variance", '`if scale == 1.0` for "not given"; use `scale=None` as the default')
class ScaleOneIsDefault(Kernel):
    """A scale of 1 is replaced by the default one."""

    def factor(self, call: Call) -> float:
        return 1.0 / math.sqrt(call.sizes.D) if call.scale in (None, 1.0) else call.scale


@fault("values", "`s = sqrt(abs(scale))` and `(q * s) @ (k * s).mT`; the sign of `scale` is lost")
class ScaleSignLost(Kernel):
    """A negative scale becomes positive."""

    def factor(self, call: Call) -> float:
        return abs(super().factor(call))


@fault("default_scale", "`1 / sqrt(q.shape[-1])` after q was padded; take D before padding")
class ScaleOfPaddedSize(Kernel):
    """The default scale is that of D rounded up to a multiple of 8."""

    def factor(self, call: Call) -> float:
        padded = -(-call.sizes.D // 8) * 8
        return 1.0 / math.sqrt(padded) if call.scale is None else call.scale


@fault(
    "default_scale",
    "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
)
class ScaleOfAllHeads(Kernel):
    """The default scale is that of all heads together, 1 / sqrt(H D)."""

    def factor(self, call: Call) -> float:
        s = call.sizes
        return 1.0 / math.sqrt(max(s.H, 1) * s.D) if call.scale is None else call.scale


@fault("values", "`q @ k.mT * scale / sqrt(D)`; a given scale replaces `1 / sqrt(D)`")
class ScaleTwice(Kernel):
    """An explicit scale is multiplied onto the default one."""

    def factor(self, call: Call) -> float:
        return (1.0 if call.scale is None else call.scale) / math.sqrt(call.sizes.D)


@fault(
    "values",
    "`torch.tensor(scale, dtype=q.dtype)`; multiply by a Python float or in float32",
    family="numerics",
)
class ScaleRounded(Fused):
    """The scale is rounded to the 16-bit dtype of the operands."""

    def factor(self, call: Call) -> float:
        return float(round_to(super().factor(call), call.fmt))


@fault(
    "precision",
    "`np.float32(scale)`, or a kernel argument `float scale`; float64 needs `double`",
    family="numerics",
)
class ScaleThroughFloat32(Kernel):
    """The scale of a float64 call passes through float32."""

    def factor(self, call: Call) -> float:
        return float(np.float32(super().factor(call)))


@fault(
    "election",
    "`(q @ k.mT) * scale` in float16; scale q first, or keep the product in float32",
    family="numerics",
)
class UnscaledScoresOverflow(Kernel):
    """The product of queries and keys overflows in float16 before it is scaled."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = query @ key.swapaxes(-1, -2)
        if call.fmt.name == "f16":
            product = np.where(
                np.abs(product) > call.fmt.max, np.copysign(np.inf, product), product
            )
        return product * call.work(self.factor(call))


@fault(
    "values",
    "`(q * scale) @ k.mT` with `q * scale` in 16 bits; scale the product in float32",
    family="numerics",
)
class QueryScaledInDtype(Eager):
    """The query is scaled and rounded to its 16-bit dtype before the product."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        factor = call.work(self.factor(call))
        scaled: np.ndarray = round_to(query * factor, call.fmt).astype(call.work)
        return self.keep(scaled @ key.swapaxes(-1, -2), "scores", call)


@fault(
    "values",
    "a scale typed in with two digits, on the bfloat16 path alone; compute `1 / sqrt(D)`",
)
class ScaleOnePercentOff(Eager):
    """In bfloat16 the scale is one percent too large."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.01 if call.fmt.name == "bf16" else 1.0)
