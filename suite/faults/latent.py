"""Faults of latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.latent import AbsorbedKernel, Arrays, LatentKernel
from attention_conformance.suite.faults.quantized import FirstTileScales, TilesOf64, WholeTilesAlone
from attention_conformance.suite.faults.split import NarrowLse
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "latent"


def latent_scale_of_the_latent(right: AbsorbedKernel, x: Arrays, given: float | None) -> float:
    width = x["latent"].shape[-1] + x["key_rope"].shape[-1]
    return float(width**-0.5) if given is None else given


def latent_scale_without_rotary(right: LatentKernel, x: Arrays, given: float | None) -> float:
    return float(x["query"].shape[-1] ** -0.5) if given is None else given


def latent_scale_of_decoding(right: AbsorbedKernel, x: Arrays, given: float | None) -> float:
    return right.scale(x, None if x["query"].shape[2] == 1 else given)


def latent_rotary_dropped(right: AbsorbedKernel, x: Arrays, fmt: DType) -> np.ndarray:
    return right.queries({**x, "query_rope": 0 * x["query_rope"]}, fmt)


def latent_rotary_key_of_the_token_before(right: LatentKernel, x: Arrays, fmt: DType) -> np.ndarray:
    return right.keys({**x, "key_rope": np.roll(x["key_rope"], 1, 1)}, fmt)


def latent_queries_by_another_head(right: AbsorbedKernel, x: Arrays, fmt: DType) -> np.ndarray:
    return right.absorbed({**x, "w_uk": np.roll(x["w_uk"], 1, 1)}, fmt)


def latent_values_by_another_head(
    right: AbsorbedKernel, average: np.ndarray, x: Arrays, fmt: DType
) -> np.ndarray:
    return right.output(average, {**x, "w_uv": np.roll(x["w_uv"], 1, 1)}, fmt)


def latent_values_are_keys(right: LatentKernel, x: Arrays, fmt: DType) -> np.ndarray:
    size = x["w_uv"].shape[-1]
    return right.values(
        {**x, "w_uv": np.resize(x["w_uk"].T, (size, *x["w_uk"].T.shape[1:])).T}, fmt
    )


def latent_projection_turned(right: LatentKernel, x: Arrays, fmt: DType) -> np.ndarray:
    R, H, D = x["w_uk"].shape
    return right.keys({**x, "w_uk": x["w_uk"].reshape(R, D, H).swapaxes(1, 2)}, fmt)


def latent_last_key_dropped(right: AbsorbedKernel, call: Call) -> np.ndarray | None:
    shown = right.allowed(call)
    kept = np.arange(call.sizes.Lk) < max(call.sizes.Lk - 1, 1)
    return kept[None, None, None] & (True if shown is None else shown)


def latent_causal_at_the_first_key(right: LatentKernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row


def latent_absorbed_in_float16(right: AbsorbedKernel, x: Arrays, fmt: DType) -> np.ndarray:
    queries = right.absorbed(x, fmt)
    return round_to(queries, DTYPES["f16"]).astype(queries.dtype)


def latent_of_the_first_sample(right: AbsorbedKernel, x: Arrays, fmt: DType) -> np.ndarray:
    latents = right.values(x, fmt)
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


def latent_lse_without_rotary(right: LatentKernel, scores: np.ndarray, call: Call) -> np.ndarray:
    D = call.sizes.D // 2
    short = replace(call, query=call.query[..., :D], key=call.key[..., :D])
    return right.log_sum_exp(right.final(short), short)


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


def latent_projection_without_gradient(
    right: AbsorbedKernel, x: Arrays, call: Call, cotangent: np.ndarray
) -> dict[str, np.ndarray]:
    return {**right.gradients(x, call, cotangent), "w_uv": np.zeros_like(x["w_uv"])}


def latent_rotary_key_scaled(right: AbsorbedKernel, arrays: Mapping[str, Rounded]) -> Arrays:
    x = right.read(arrays)
    if "latent_scale" not in x:
        return x
    return {**x, "key_rope": x["key_rope"] * x["latent_scale"][..., -1:]}


row = partial(deviation, family=FAMILY, right=AbsorbedKernel)

DEVIATIONS = [
    row("latent-scale-of-the-latent", "values",
        "The scale is that of the size of latent and rotary key.",
        "`softmax_scale = head_dim ** -0.5` of the absorbed query; it is (d + t) ** -0.5",
        family="scale", scale=latent_scale_of_the_latent),
    row("latent-scale-without-rotary", "values",
        "The scale is that of the part of a query without a position.",
        "`qk_nope_head_dim ** -0.5`; the rotary part counts, too", family="scale",
        right=LatentKernel, scale=latent_scale_without_rotary),
    row("latent-scale-of-decoding", "values", "With one query the scale that is given is ignored.",
        "a kernel for decoding without `softmax_scale`", family="scale",
        scale=latent_scale_of_decoding),
    row("latent-scale-roughly", "values", "The scale is 1 % too large.",
        "a constant with two digits; compute the scale from the sizes", family="scale",
        scale=lambda right, x, given: 1.01 * right.scale(x, given)),
    row("latent-rotary-dropped", "values", "The rotary part of the scores is left out.",
        "`q_nope @ k_nope` alone; add `q_pe @ k_pe`", queries=latent_rotary_dropped),
    row("latent-rotary-key-of-the-token-before", "values",
        "A latent has the rotary key of the token before.",
        "`k_pe[j - 1]` beside `c[j]`; both are of token j", right=LatentKernel,
        keys=latent_rotary_key_of_the_token_before),
    row("latent-queries-by-another-head", "values",
        "Queries are projected by the matrix of the head before.", "`w_uk[:, h - 1]` for head h",
        family="heads", absorbed=latent_queries_by_another_head),
    row("latent-values-by-another-head", "values",
        "Averages are projected by the matrix of the head before.", "`w_uv[:, h - 1]` for head h",
        family="heads", output=latent_values_by_another_head),
    row("latent-values-are-keys", "values", "Values are projected by the matrix of the keys.",
        "`w_kv[..., :d]` for the values; theirs are the columns from d on", right=LatentKernel,
        values=latent_values_are_keys),
    row("latent-projection-turned", "values",
        "Heads and components of the keys' projection are read in the other order.",
        "`w_kv.view(r, h, d + v)` of a matrix that lies as (r, d + v, h)", family="layout",
        right=LatentKernel, keys=latent_projection_turned),
    row("latent-components-reversed", "values",
        "Latents are read from their last component on in the queries.",
        "`w_uk[h].T` for square blocks; the absorbed query is `q @ w_uk[h].T`, its key `c @ w_uk[h]`",
        absorbed=lambda right, x, fmt: right.absorbed({**x, "w_uk": x["w_uk"][::-1]}, fmt)),
    row("latent-last-key-dropped", "values",
        "The last key is attended by no row, unless it is alone.",
        "`cache[:, : length - 1]`; the newest token is attended", family="mask",
        allowed=latent_last_key_dropped),
    row("latent-causal-at-the-first-key", "values", "The causal mask is aligned at the first key.",
        "`tril()` of (Lq, Lk); shift it by Lk - Lq", family="mask", right=LatentKernel,
        causal=latent_causal_at_the_first_key),
    row("latent-padding-forgotten-in-decoding", "values", "A single query attends hidden keys.",
        "`if q_len > 1` around the mask; decoding has padding, too", family="mask",
        masked=lambda right, mask, call: np.ones_like(mask) if call.sizes.Lq == 1 else mask),
    row("latent-absorbed-in-float16", "values",
        "Projected queries are rounded to float16, whatever the dtype.",
        "`.half()` before the product with `w_uk`", family="numerics",
        absorbed=latent_absorbed_in_float16),
    row("latent-of-the-first-sample", "values", "All samples have the values of the first sample.",
        "`latent[0]` for all samples", family="heads", values=latent_of_the_first_sample),
    row("latent-lse-without-rotary", "values",
        "The log-sum-exp leaves the rotary part of the scores out.",
        "`logsumexp(q_nope @ k_nope)`; the whole scores count", family="lse", right=LatentKernel,
        log_sum_exp=latent_lse_without_rotary),
    row("latent-rotary-gradient-of-one-head", "gradients",
        "The gradient of rotary keys is that of the first head.",
        "`k_pe.expand(...)` whose gradient is read for one head; sum over the heads",
        family="gradient", right=LatentKernel, over_heads=lambda right, key: key[:, 0]),
    row("latent-gradient-of-keys-alone", "gradients",
        "Latents get the gradient of the keys, and not that of the values.",
        "`latent.detach()` in one of the two products", family="gradient", right=LatentKernel,
        latent_gradient=lambda right, x, key, value: right.latent_gradient(x, key, 0 * value)),
    row("latent-projection-without-gradient", "gradients",
        "The projection of values gets no gradient.",
        "`w_uv` frozen in the absorbed form; it is a parameter", family="gradient",
        gradients=latent_projection_without_gradient),
    row("latent-scale-of-the-first-tile", "values",
        "All tiles of a latent have the scale of the first tile.",
        "`scale[0]` of a token; every 128 components have a scale", family="quantized",
        right=(FirstTileScales, AbsorbedKernel)),
    row("latent-tiles-of64", "values", "A tile of a latent has 64 components.",
        "`component // 64`; a tile has 128 components", family="quantized",
        right=(TilesOf64, LatentKernel)),
    row("latent-last-tile-forgotten", "values",
        "The components of a latent behind the last whole tile are not multiplied by a scale.",
        "`width // 128` tiles; round up", family="quantized",
        right=(WholeTilesAlone, AbsorbedKernel)),
    row("latent-scale-of-the-token-before", "values",
        "A latent has the scales of the token before.",
        "`scale[slot - 1]`, written after the codes", family="quantized", right=LatentKernel,
        of_tiles=lambda right, array, size: right.of_tiles(np.roll(array, 1, 1), size)),
    row("latent-rotary-key-scaled", "values",
        "Rotary keys are multiplied by the scale of the last tile, too.",
        "the whole row of the cache times `scale`; rotary keys are no codes", family="quantized",
        read=latent_rotary_key_scaled),
]  # fmt: skip
