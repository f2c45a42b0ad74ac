"""Faults of latent attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.latent import (
    AbsorbedKernel,
    Arrays,
    LatentCall,
    LatentKernel,
)
from attention_conformance.suite.deviations.merge import MergedByRoundedLse
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def mask_without_last_key(right: AbsorbedKernel, call: Call) -> np.ndarray | None:
    mask = right.allowed(call)
    is_not_last = np.arange(call.sizes.Lk) < max(call.sizes.Lk - 1, 1)
    return is_not_last[None, None, None] & (True if mask is None else mask)


def causal_of_folded_heads(right: LatentKernel, call: Call) -> np.ndarray:
    """Returns the causal mask (H, Lq, Lk) of Lq * H rows, the heads of a query one after the other, of
    which the last stands at the last key. Every row attends the first key."""
    s = call.sizes
    row = np.arange(s.Lq * s.H).reshape(s.Lq, s.H).T[..., None]
    return np.asarray(np.arange(s.Lk) <= np.maximum(row + s.Lk - s.Lq * s.H, 0))


def lse_without_rotary(right: LatentKernel, scores: np.ndarray, call: LatentCall) -> np.ndarray:
    """Returns the log-sum-exp of scores without their rotary part."""
    D = call.nope_size
    unrotated = replace(call, query=call.query[..., :D], key=call.key[..., :D])
    return right.log_sum_exp(right.final_scores(unrotated), unrotated)


def arrays_with_first_weights(right: AbsorbedKernel, arrays: Any) -> Arrays:
    store, x = memory(right), dict(right.load_arrays(arrays))
    for name in ("w_uk", "w_uv"):
        if store.get(name, (None,))[0] is not arrays[name]:
            store[name] = arrays[name], x[name].copy()
        x[name] = store[name][1]
    return x


row = partial(deviation, family="latent", right=AbsorbedKernel)

DEVIATIONS = [
    row("latent-absorbed-weights-kept", "stateless",
        "Projections are kept by the array that holds them, whatever values it has later.",
        "weights absorbed once; absorb them anew when a parameter changes",
        family="state", load_arrays=arrays_with_first_weights),
    row("latent-lse-in-the-dtype", "values",
        "Log-sum-exps of parts are stored in bfloat16, the dtype of the query.",
        "`torch.empty_like(lse, dtype=query.dtype)`; keep log-sum-exps in float32", family="merge",
        right=(MergedByRoundedLse, AbsorbedKernel),
        facts={"dtypes": ("bf16",), "numerics": "stepwise"}),
    row("latent-last-key-dropped", "values",
        "The last key is attended by no row, unless it is alone.",
        "`cache[:, : length - 1]`; the newest token is attended", family="mask",
        allowed=mask_without_last_key),
    row("latent-causal-at-the-first-key", "values", "The causal mask is aligned at the first key.",
        "`tril()` of (Lq, Lk); shift it by Lk - Lq", family="mask", right=LatentKernel,
        last_causal_key=lambda right, row, call: row),
    # aiter, ATOM 2060
    row("latent-causal-of-folded-heads", "values",
        "Heads are folded into rows before the causal mask, which counts them as queries.",
        "`q.flatten(1, 2)` before `tril`; mask by the number of the query", family="mask",
        right=LatentKernel, causal=causal_of_folded_heads),
    row("latent-absorbed-in-float16", "values",
        "Projected queries are rounded to float16, whatever the dtype.",
        "`.half()` before the product with `w_uk`", family="numerics",
        absorbed=lambda right, x, fmt:
            round_to(right.absorbed(x, fmt), DTYPES["f16"]).astype(x["query"].dtype)),
    row("latent-of-the-first-sample", "values", "All samples have the values of the first sample.",
        "`latent[0]` for all samples", family="heads",
        values=lambda right, x, fmt: np.repeat(right.values(x, fmt)[:1], len(x["latent"]), 0)),
    row("latent-scale-of-the-second-tile", "values",
        "Tiles of a latent from the third on have the scale of the second.",
        "`scale[min(tile, 1)]`; every 128 components have a scale", family="quantized",
        right=LatentKernel, spread_tiles=lambda right, scale, size: right.spread_tiles(
            scale[..., np.minimum(np.arange(scale.shape[-1]), 1)], size)),
    row("latent-lse-without-rotary", "values",
        "The log-sum-exp leaves the rotary part of the scores out.",
        "`logsumexp(q_nope @ k_nope)`; the whole scores count", family="lse", right=LatentKernel,
        log_sum_exp=lse_without_rotary),
    row("latent-rotary-gradient-of-one-head", "gradients",
        "The gradient of rotary keys is that of the first head.",
        "`k_pe.expand(...)` whose gradient is read for one head; sum over the heads",
        family="gradient", right=LatentKernel, sum_over_heads=lambda right, key: key[:, 0]),
    row("latent-rotary-gradient-of-eight-heads", "gradients",
        "The gradient of rotary keys sums the first eight heads alone.",
        "a block of 8 heads; sum over all heads", family="gradient", right=LatentKernel,
        sum_over_heads=lambda right, key: right.sum_over_heads(key[:, :8])),
    row("latent-gradient-of-keys-alone", "gradients",
        "Latents get the gradient of the keys, and not that of the values.",
        "`latent.detach()` in one of the two products", family="gradient", right=LatentKernel,
        latent_gradient=lambda right, x, key, value: right.latent_gradient(x, key, 0 * value)),
    row("latent-projection-without-gradient", "gradients",
        "The projection of values gets no gradient.",
        "`w_uv` frozen in the absorbed form; it is a parameter", family="gradient",
        gradients=lambda right, x, call, cotangent:
            {**right.gradients(x, call, cotangent), "w_uv": np.zeros_like(x["w_uv"])}),
]  # fmt: skip
