"""Faults of attention over codes, and of writing codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.quantized import Coded, QuantizedKernel, Scales
from attention_conformance.suite.faults.layouts import has_gaps, in_order
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.tiles import TILE, untiled

FAMILY = "quantized"


def rolled(scale: np.ndarray, axis: int) -> np.ndarray:
    """The scales of the next index of an axis."""
    return np.roll(scale, -1, axis)


class KeyScales(Scales):
    """The scales of keys and values are those of the keys."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        own = super().scale_of(name, call)
        return super().scale_of("key", call)[..., : own.shape[-1]]


class FirstHeadScales(Scales):
    """The scales of all heads are those of the first head."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return super().scale_of(name, call)[:, :1]


class FirstTileScales:
    """All tiles of codes have the scale of the first tile."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return untiled(array[..., :1] + 0 * array, size)


class TilesOf64:
    """A tile of codes has 64 components."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return array[..., np.minimum(np.arange(size) // 64, array.shape[-1] - 1)]


class WholeTilesAlone:
    """Components behind the last whole tile of codes have the scale 1."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return np.where(np.arange(size) < size - size % TILE, untiled(array, size), 1)


@fault("values", "`k_scale` for both, a line copied and half changed")
class QuantizedKeyScaleForValues(KeyScales, QuantizedKernel):
    """Values are multiplied by the scales of the keys."""


@fault("values", "`attend(q, k, v, v_scale, k_scale)`; pass scales by name")
class QuantizedScalesExchanged(QuantizedKernel):
    """The scales of keys and values are exchanged."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        other = "value" if name == "key" else "key"
        scale, own = super().scale_of(other, call), super().scale_of(name, call)
        return scale if scale.shape == own.shape else own


@fault("values", "`k_scale` is read, `v_scale` is not; multiply the output by it")
class QuantizedValueScaleForgotten(QuantizedKernel):
    """Values are not multiplied by their scales."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        scale = super().scale_of(name, call)
        return np.ones_like(scale) if name == "value" else scale


@fault("values", "`scale_inv` of another library; codes times `scale`, not divided by it")
class QuantizedScaleInverted(QuantizedKernel):
    """Codes are divided by their scales."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return 1 / super().scale_of(name, call)


@fault("values", "`scale.item()` or `scale[0]`; every head has a scale", family="heads")
class QuantizedScaleOfTheFirstHead(FirstHeadScales, QuantizedKernel):
    """All heads have the scales of the first head."""


@fault("values", "`scale[head + 1]`, an offset counted in other units", family="heads")
class QuantizedScaleOfTheNextHead(QuantizedKernel):
    """Every head has the scales of the next head."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return rolled(super().scale_of(name, call), 1)


@fault(
    "values", "`scale[h % kv_heads]`; query head h has the scale of head h // group", family="heads"
)
class QuantizedScaleTiled(QuantizedKernel):
    """The scales of query heads are tiled, their keys are not."""

    def by_head(self, x: np.ndarray, call: Coded) -> np.ndarray:
        return x

    def scaled(self, name: str, call: Coded) -> np.ndarray:
        scale, zero = self.scale_of(name, call), self.zero_of(name, call)
        codes = self.codes_of(name, call)
        if zero is not None:
            codes = self.centred(codes, zero)
        if scale.shape[1] > 1:
            scale = np.tile(scale, (1, call.group, 1, 1))
        return np.repeat(codes, call.group, 1) * scale


@fault("values", "`scale[slot + 1]`, lengths that already count the new token")
class QuantizedScaleOfTheNextToken(QuantizedKernel):
    """Every token has the scale of the next token."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return rolled(super().scale_of(name, call), 2)


@fault("values", "`scale[0]` of (batch, heads, tokens); index the sample, too", family="heads")
class QuantizedScaleOfTheFirstSample(QuantizedKernel):
    """All samples have the scales of the first sample."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return super().scale_of(name, call)[:1]


@fault(
    "values", "`scale.view(heads, dim)` of (dim, heads), or an interleaved order of packed weights"
)
class QuantizedScaleOfTheNextChannel(QuantizedKernel):
    """Every component has the scale of the next component."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return rolled(super().scale_of(name, call), 3)


@fault("values", "`scale[0]`; every tile of 128 components has a scale")
class QuantizedScaleOfTheFirstTile(FirstTileScales, QuantizedKernel):
    """All tiles of a token have the scale of the first tile."""


@fault(
    "values", "`component * tiles // width`; a tile has 128 components, and the last one the rest"
)
class QuantizedTilesOfOneWidth(QuantizedKernel):
    """The width is divided into tiles of one width."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return np.asarray(array[..., np.arange(size) * array.shape[-1] // size])


@fault("values", "`component // 64`; a tile has 128 components")
class QuantizedTilesOf64(TilesOf64, QuantizedKernel):
    """A tile has 64 components."""


@fault("values", "`width // 128` tiles; round up")
class QuantizedLastTileForgotten(WholeTilesAlone, QuantizedKernel):
    """The components behind the last whole tile are not multiplied by a scale."""


@fault("values", "codes of asymmetric quantisation read as symmetric ones; `scale * (code - zero)`")
class QuantizedZeroForgotten(QuantizedKernel):
    """Zero points are ignored."""

    def zero_of(self, name: str, call: Coded) -> np.ndarray | None:
        return None


@fault("values", "`scale * (code + zero)`; the zero point is subtracted when codes are read")
class QuantizedZeroAdded(QuantizedKernel):
    """Zero points are added to codes."""

    def centred(self, codes: np.ndarray, zero: np.ndarray) -> np.ndarray:
        return codes + zero


@fault("values", "`code * scale - zero`; subtract before the product")
class QuantizedZeroAfterTheScale(QuantizedKernel):
    """Zero points are subtracted behind the scale."""

    def scaled(self, name: str, call: Coded) -> np.ndarray:
        zero = self.zero_of(name, call)
        plain = self.codes_of(name, call) * self.scale_of(name, call)
        return plain if zero is None else plain - zero


@fault("values", "`(code - zero)` in int8; widen codes first", family="numerics")
class QuantizedDifferenceWraps(QuantizedKernel):
    """Codes minus zero points are computed in 8 bits, and wrap around."""

    def centred(self, codes: np.ndarray, zero: np.ndarray) -> np.ndarray:
        return (codes - zero + 128) % 256 - 128


@fault(
    "layouts",
    "`codes.data_ptr()` with strides from the shape; take `codes.stride()`",
    family="layout",
)
class QuantizedCodesInOrder(QuantizedKernel):
    """Codes are read as if nothing lay between their rows."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        made = super().prepare(inputs)

        def call(**arrays: Rounded) -> Any:
            windows = {n: x for n, x in arrays.items() if "_codes" in n and has_gaps(x.values)}
            codes = {n: Rounded(in_order(x.values), x.fmt) for n, x in windows.items()}
            return made.function(**arrays | codes)

        return replace(made, function=call)


@fault("values", "`uint8_t` for `int8_t` in the loader", family="numerics")
class QuantizedUnsigned(QuantizedKernel):
    """Codes of whole numbers are read as unsigned ones."""

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        codes = super().codes_of(name, call)
        return np.where(codes < 0, codes + 256, codes) if call.code.is_whole else codes


@fault("values", "`clamp(-127, 127)` of codes that are read; -128 is a code", family="numerics")
class QuantizedLowestCodeClipped(QuantizedKernel):
    """The lowest code of whole numbers is read as the one above."""

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        codes = super().codes_of(name, call)
        return np.maximum(codes, -call.code.max) if call.code.is_whole else codes


@fault(
    "values", "`float8_e4m3fnuz` for `float8_e4m3fn`: its exponents mean half", family="numerics"
)
class QuantizedBiasOfAnotherFormat(QuantizedKernel):
    """Codes e4m3 are read with the exponent bias 8, and are halved."""

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        codes = super().codes_of(name, call)
        return codes / 2 if call.code.name == "e4m3" else codes


@fault("values", "bits shifted into float16 without its subnormals", family="numerics")
class QuantizedSubnormalsFlushed(QuantizedKernel):
    """Subnormal floating-point codes are read as 0."""

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        codes = super().codes_of(name, call)
        small = np.abs(codes) < call.code.smallest_normal
        return codes if call.code.is_whole else np.where(small, codes.dtype.type(0), codes)


@fault("values", "`scale.to(torch.bfloat16)`; keep scales in float32", family="numerics")
class QuantizedScaleInBfloat16(QuantizedKernel):
    """Scales are rounded to bfloat16."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        scale = super().scale_of(name, call)
        return round_to(scale, DTYPES["bf16"]).astype(scale.dtype)


@fault("values", "`scores * k_scale` beside a query that is scaled already")
class QuantizedScaledTwice(QuantizedKernel):
    """Keys are multiplied by their scales twice."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        scale = super().scale_of(name, call)
        return scale * scale if name == "key" else scale


@fault(
    "values",
    "`torch.empty_like(lse, dtype=query.dtype)`; keep log-sum-exps in float32",
    family="merge",
)
class QuantizedLseInTheDtype(QuantizedKernel):
    """Log-sum-exps of both halves of the keys are stored in 16 bits, the dtype of the query."""

    dtypes = ("f16", "bf16")
    numerics = "stepwise"

    def weights(self, scores: np.ndarray, call: Coded) -> np.ndarray:
        mask, halves = call.shown, []
        shown = scores if mask is None else np.where(mask, scores, -np.inf)
        for half in np.array_split(shown, 2, axis=-1):
            lse = np.logaddexp.reduce(half, axis=-1, keepdims=True, initial=-1e4)
            # A half whose log-sum-exp is off weighs as if all its scores were off as far.
            halves.append(half + (round_to(lse, call.fmt).astype(lse.dtype) - lse))
        return super().weights(np.concatenate(halves, -1), call)


@fault(
    "values", "`scores.max()` of a head; subtract the largest score of the row", family="numerics"
)
class QuantizedMaximumOfTheHead(QuantizedKernel):
    """The softmax of a row subtracts the largest score of its head."""

    def raised(self, scores: np.ndarray) -> np.ndarray:
        return np.exp(scores - scores.max((-2, -1), keepdims=True))


@fault("gradients", "the backward pass reads codes as keys; multiply them by their scale")
class QuantizedGradientOfCodes(QuantizedKernel):
    """The gradient of the query is made with codes in place of keys."""

    def gradient(self, call: Coded, cotangent: np.ndarray) -> np.ndarray:
        return super().gradient(call, cotangent) / call.arrays["key_scale"].mean()


class FrozenScales(Scales):
    """Scales are those of the first call of a case."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        kept: dict[str, np.ndarray] = self.__dict__.setdefault("kept", {})
        return kept.setdefault(f"{call.case.id} {name}", super().scale_of(name, call))


@fault(
    "stateless", "scales made at the first call and kept; take those of the call", family="state"
)
class QuantizedScalesFrozen(FrozenScales, QuantizedKernel):
    """Scales of the first call are used ever after."""
