"""Faults of latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.latent import AbsorbedKernel, Arrays, LatentKernel
from attention_conformance.suite.faults.quantized import FirstTileScales, TilesOf64, WholeTilesAlone
from attention_conformance.suite.faults.split import NarrowLse
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "latent"


@fault(
    "values",
    "`softmax_scale = head_dim ** -0.5` of the absorbed query; it is (d + t) ** -0.5",
    family="scale",
)
class LatentScaleOfTheLatent(AbsorbedKernel):
    """The scale is that of the size of latent and rotary key."""

    def scale(self, x: Arrays, given: float | None) -> float:
        width = x["latent"].shape[-1] + x["key_rope"].shape[-1]
        return float(width**-0.5) if given is None else given


@fault("values", "`qk_nope_head_dim ** -0.5`; the rotary part counts, too", family="scale")
class LatentScaleWithoutRotary(LatentKernel):
    """The scale is that of the part of a query without a position."""

    def scale(self, x: Arrays, given: float | None) -> float:
        return float(x["query"].shape[-1] ** -0.5) if given is None else given


@fault("values", "a kernel for decoding without `softmax_scale`", family="scale")
class LatentScaleOfDecoding(AbsorbedKernel):
    """With one query the scale that is given is ignored."""

    def scale(self, x: Arrays, given: float | None) -> float:
        return super().scale(x, None if x["query"].shape[2] == 1 else given)


@fault("values", "a constant with two digits; compute the scale from the sizes", family="scale")
class LatentScaleRoughly(AbsorbedKernel):
    """The scale is 1 % too large."""

    def scale(self, x: Arrays, given: float | None) -> float:
        return 1.01 * super().scale(x, given)


@fault("values", "`q_nope @ k_nope` alone; add `q_pe @ k_pe`")
class LatentRotaryDropped(AbsorbedKernel):
    """The rotary part of the scores is left out."""

    def queries(self, x: Arrays, fmt: DType) -> np.ndarray:
        return super().queries({**x, "query_rope": 0 * x["query_rope"]}, fmt)


@fault("values", "`k_pe[j - 1]` beside `c[j]`; both are of token j")
class LatentRotaryKeyOfTheTokenBefore(LatentKernel):
    """A latent has the rotary key of the token before."""

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        return super().keys({**x, "key_rope": np.roll(x["key_rope"], 1, 1)}, fmt)


@fault("values", "`w_uk[:, h - 1]` for head h", family="heads")
class LatentQueriesByAnotherHead(AbsorbedKernel):
    """Queries are projected by the matrix of the head before."""

    def absorbed(self, x: Arrays, fmt: DType) -> np.ndarray:
        return super().absorbed({**x, "w_uk": np.roll(x["w_uk"], 1, 1)}, fmt)


@fault("values", "`w_uv[:, h - 1]` for head h", family="heads")
class LatentValuesByAnotherHead(AbsorbedKernel):
    """Averages are projected by the matrix of the head before."""

    def output(self, average: np.ndarray, x: Arrays, fmt: DType) -> np.ndarray:
        return super().output(average, {**x, "w_uv": np.roll(x["w_uv"], 1, 1)}, fmt)


@fault("values", "`w_kv[..., :d]` for the values; theirs are the columns from d on")
class LatentValuesAreKeys(LatentKernel):
    """Values are projected by the matrix of the keys."""

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        size = x["w_uv"].shape[-1]
        return super().values(
            {**x, "w_uv": np.resize(x["w_uk"].T, (size, *x["w_uk"].T.shape[1:])).T}, fmt
        )


@fault("values", "`w_kv.view(r, h, d + v)` of a matrix that lies as (r, d + v, h)", family="layout")
class LatentProjectionTurned(LatentKernel):
    """Heads and components of the keys' projection are read in the other order."""

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        R, H, D = x["w_uk"].shape
        return super().keys({**x, "w_uk": x["w_uk"].reshape(R, D, H).swapaxes(1, 2)}, fmt)


@fault(
    "values",
    "`w_uk[h].T` for square blocks; the absorbed query is `q @ w_uk[h].T`, its key `c @ w_uk[h]`",
)
class LatentComponentsReversed(AbsorbedKernel):
    """Latents are read from their last component on in the queries."""

    def absorbed(self, x: Arrays, fmt: DType) -> np.ndarray:
        return super().absorbed({**x, "w_uk": x["w_uk"][::-1]}, fmt)


@fault("values", "`cache[:, : length - 1]`; the newest token is attended", family="mask")
class LatentLastKeyDropped(AbsorbedKernel):
    """The last key is attended by no row, unless it is alone."""

    def allowed(self, call: Call) -> np.ndarray | None:
        shown = super().allowed(call)
        kept = np.arange(call.sizes.Lk) < max(call.sizes.Lk - 1, 1)
        return kept[None, None, None] & (True if shown is None else shown)


@fault("values", "`tril()` of (Lq, Lk); shift it by Lk - Lq", family="mask")
class LatentCausalAtTheFirstKey(LatentKernel):
    """The causal mask is aligned at the first key."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row


@fault("values", "`if q_len > 1` around the mask; decoding has padding, too", family="mask")
class LatentPaddingForgottenInDecoding(AbsorbedKernel):
    """A single query attends hidden keys."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return np.ones_like(mask) if call.sizes.Lq == 1 else mask


@fault("values", "`.half()` before the product with `w_uk`", family="numerics")
class LatentAbsorbedInFloat16(AbsorbedKernel):
    """Projected queries are rounded to float16, whatever the dtype."""

    def absorbed(self, x: Arrays, fmt: DType) -> np.ndarray:
        queries = super().absorbed(x, fmt)
        return round_to(queries, DTYPES["f16"]).astype(queries.dtype)


@fault("values", "`latent[0]` for all samples", family="heads")
class LatentOfTheFirstSample(AbsorbedKernel):
    """All samples have the values of the first sample."""

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        latents = super().values(x, fmt)
        return np.broadcast_to(latents[:1], latents.shape)


@fault("values", "`(a + b) / 2`; weight parts by `exp(lse - total)`", family="merge")
class LatentHalvesAveraged(AbsorbedKernel):
    """The answers of both halves of the keys are averaged."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        middle = scores.shape[-1] // 2
        if not middle:
            return super().attend(scores, value, call)
        parts = (slice(None, middle), slice(middle, None))
        one, two = (
            super(LatentHalvesAveraged, self).attend(scores[..., p], value[..., p, :], call)
            for p in parts
        )
        return (one + two) / 2


@fault(
    "values",
    "`torch.empty_like(lse, dtype=query.dtype)`; keep log-sum-exps in float32",
    family="merge",
)
class LatentLseInTheDtype(NarrowLse, AbsorbedKernel):
    """Log-sum-exps of parts are stored in bfloat16, the dtype of the query."""

    dtypes, lse_dtype = ("bf16",), "bf16"
    numerics = "stepwise"


@fault("values", "`logsumexp(q_nope @ k_nope)`; the whole scores count", family="lse")
class LatentLseWithoutRotary(LatentKernel):
    """The log-sum-exp leaves the rotary part of the scores out."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        D = call.sizes.D // 2
        short = replace(call, query=call.query[..., :D], key=call.key[..., :D])
        return super().log_sum_exp(self.final(short), short)


@fault(
    "stateless", "weights absorbed once; absorb them anew when a parameter changes", family="state"
)
class LatentAbsorbedWeightsKept(AbsorbedKernel):
    """Projections are kept by the array that holds them, whatever values it has later."""

    def read(self, arrays: Any) -> Arrays:
        kept = self.__dict__.setdefault("kept", {})
        x = dict(super().read(arrays))
        for name in ("w_uk", "w_uv"):
            array = arrays[name]
            if kept.get(name, (None,))[0] is not array:
                kept[name] = array, x[name].copy()
            x[name] = kept[name][1]
        return x


@fault(
    "gradients",
    "`k_pe.expand(...)` whose gradient is read for one head; sum over the heads",
    family="gradient",
)
class LatentRotaryGradientOfOneHead(LatentKernel):
    """The gradient of rotary keys is that of the first head."""

    def over_heads(self, key: np.ndarray) -> np.ndarray:
        return key[:, 0]


@fault("gradients", "`latent.detach()` in one of the two products", family="gradient")
class LatentGradientOfKeysAlone(LatentKernel):
    """Latents get the gradient of the keys, and not that of the values."""

    def latent_gradient(self, x: Arrays, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        return super().latent_gradient(x, key, 0 * value)


@fault("gradients", "`w_uv` frozen in the absorbed form; it is a parameter", family="gradient")
class LatentProjectionWithoutGradient(AbsorbedKernel):
    """The projection of values gets no gradient."""

    def gradients(self, x: Arrays, call: Call, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        return {**super().gradients(x, call, cotangent), "w_uv": np.zeros_like(x["w_uv"])}


@fault("values", "`scale[0]` of a token; every 128 components have a scale", family="quantized")
class LatentScaleOfTheFirstTile(FirstTileScales, AbsorbedKernel):
    """All tiles of a latent have the scale of the first tile."""


@fault("values", "`component // 64`; a tile has 128 components", family="quantized")
class LatentTilesOf64(TilesOf64, LatentKernel):
    """A tile of a latent has 64 components."""


@fault("values", "`width // 128` tiles; round up", family="quantized")
class LatentLastTileForgotten(WholeTilesAlone, AbsorbedKernel):
    """The components of a latent behind the last whole tile are not multiplied by a scale."""


@fault("values", "`scale[slot - 1]`, written after the codes", family="quantized")
class LatentScaleOfTheTokenBefore(LatentKernel):
    """A latent has the scales of the token before."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return super().of_tiles(np.roll(array, 1, 1), size)


@fault(
    "values",
    "the whole row of the cache times `scale`; rotary keys are no codes",
    family="quantized",
)
class LatentRotaryKeyScaled(AbsorbedKernel):
    """Rotary keys are multiplied by the scale of the last tile, too."""

    def read(self, arrays: Mapping[str, Rounded]) -> Arrays:
        x = super().read(arrays)
        if "latent_scale" not in x:
            return x
        return {**x, "key_rope": x["key_rope"] * x["latent_scale"][..., -1:]}
