"""Latent attention: other projections, parts, scales and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.judge.diagnosis.in_pages import of_pages
from attention_conformance.suite.judge.diagnosis.instrument import softmax
from attention_conformance.suite.judge.diagnosis.layers import RESHAPED, Another, Guess, made
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.judge.diagnosis.quantized import misread
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import gathered
from attention_conformance.suite.spec.operators.latent import dequantized, plain
from attention_conformance.suite.spec.operators.tiles import untiled

NAMES = {"w_uk": "keys", "w_uv": "values"}
"""What each up-projection makes."""

Changes = Mapping[str, tuple[Mapping[str, Any], str, str]]
"""By sentence: what is replaced, the family, and a hint."""


def of_latent(inputs: Inputs) -> Iterator[Another]:
    """Other pages, parts of the scores, projections, scales, values and masks."""
    yield from of_pages(inputs)
    inputs = gathered(inputs)
    changes = {
        **_of_codes(inputs),
        **_of_parts(inputs),
        **_of_projections(inputs),
        **_of_scales(inputs),
    }
    guesses: list[Guess] = [
        (partial(inputs.replace, **change), sentence, family, hint)
        for sentence, (change, family, hint) in changes.items()
    ]
    yield from made(inputs, guesses)
    yield from _of_averages(inputs)
    if inputs.sizes.Lk > 1:
        shown = inputs.attends & (np.arange(inputs.sizes.Lk) < inputs.sizes.Lk - 1)
        if shown.any(-1).all():
            without = inputs.replace(mask=None, form="dense", mask_array=shown)
            yield without, "The last key is not attended.", "mask", "`cache[:, : length - 1]`"
    if inputs.dense_mask is not None:
        for meant, sentence, hint in meanings(inputs):
            pairs = np.broadcast_to(meant, inputs.attends.shape)
            yield inputs.replace(mask=None, form="dense", mask_array=pairs), sentence, "mask", hint


def _of_parts(inputs: Inputs) -> Changes:
    """Parts of scores that are left out, or belong to other tokens or samples."""
    query, rope = inputs.query, inputs.arrays["query_rope"]
    key = inputs.arrays["key_rope"]
    latents = {n: x for n, x in inputs.arrays.items() if n.startswith("latent")}
    both, token = "`q_nope @ k_nope + q_pe @ k_pe`", "`k_pe[j]` goes with `c[j]`"
    sample = "an index of samples"
    return {
        "The rotary part of the scores is left out.": ({"query_rope": 0 * rope}, "latent", both),
        "Only the rotary part of the scores counts.": ({"query": 0 * query}, "latent", both),
        "A latent has the rotary key of the token before.": (
            {"key_rope": np.roll(key, 1, 1)}, "latent", token,
        ),
        "A latent has the rotary key of the next token.": (
            {"key_rope": np.roll(key, -1, 1)}, "latent", token,
        ),
        "All samples have the rotary keys of sample 0.": (
            {"key_rope": 0 * key + key[:1]}, "heads", sample,
        ),
        "All samples have the latents of sample 0.": (
            {n: 0 * x + x[:1] for n, x in latents.items()}, "heads", sample,
        ),
    }  # fmt: skip


def _of_codes(inputs: Inputs) -> Changes:
    """Scales of latents that are codes: of other tiles and tokens."""
    scale = inputs.arrays.get("latent_scale")
    if scale is None:
        return {}
    changes = {
        "All tiles of a latent have the scale of tile 0.": (0 * scale + scale[..., :1], "`scale[0]`"),
        "A tile of a latent has the scale of the next tile.": (
            np.roll(scale, -1, 2), "an index of tiles",
        ),
        "A latent has the scales of the token before.": (np.roll(scale, 1, 1), "`scale[slot - 1]`"),
        "A latent has the scales of the next token.": (np.roll(scale, -1, 1), "`scale[slot + 1]`"),
        "All samples have the scales of sample 0.": (0 * scale + scale[:1], "an index of samples"),
        "Scales of latents are not used.": (0 * scale + 1, "`latent_scale` that is not read"),
        "Scales of latents count as their reciprocals.": (1 / scale, "`scale_inv`"),
        "Scales of latents are rounded to bfloat16.": (
            round_to(scale, DTYPES["bf16"]), "`scale.to(bfloat16)`",
        ),
    }  # fmt: skip
    found: dict[str, tuple[dict[str, Any], str, str]] = {
        text: ({"latent_scale": other}, "quantized", hint)
        for text, (other, hint) in changes.items()
    }
    scaled = {"key_rope": inputs.arrays["key_rope"] * scale[..., -1:]}
    hint = "the whole row of the cache times `scale`"
    found["Rotary keys are multiplied by the scale of the last tile."] = scaled, "quantized", hint
    for text, wrong, hint in misread(scale, inputs.letters["r"]):
        right = untiled(scale, inputs.letters["r"])
        codes = {"latent_codes": inputs.arrays["latent_codes"] * wrong / right}
        found[text] = codes, "quantized", hint
    return found


def _of_projections(inputs: Inputs) -> Changes:
    """Projections of other heads, in another order, or of each other."""
    changes: dict[str, tuple[dict[str, Any], str, str]] = {}
    for name, what in NAMES.items():
        w = inputs.arrays[name]
        R, H, size = w.shape
        head, order = f"an index of heads of `{name}`", f"the axes of `{name}`"
        of_head = f"The {what} of a head are projected by the matrix of"
        turned = np.ascontiguousarray(w.reshape(R, size, H).swapaxes(1, 2))
        interleaved = f"Heads and components of the projection of {what} are interleaved."
        changes |= {
            f"{of_head} the head before.": ({name: np.roll(w, 1, 1)}, "heads", head),
            f"{of_head} the next head.": ({name: np.roll(w, -1, 1)}, "heads", head),
            f"{of_head} head 0.": ({name: 0 * w + w[:, :1]}, "heads", head),
            interleaved: ({name: turned}, "layout", RESHAPED),
            f"The {what} take latents from their last component on.": (
                {name: w[::-1]}, "latent", order,
            ),
        }  # fmt: skip
        if R == size:
            transposed = {name: np.ascontiguousarray(w.swapaxes(0, 2))}
            text = f"The projection of {what} is transposed."
            changes[text] = transposed, "latent", "`x @ W` for `x @ W.T`"
    if inputs.sizes.Dv <= inputs.sizes.D:
        keys = inputs.arrays["w_uk"][..., : inputs.sizes.Dv]
        hint = "`w_kv[..., :d]` makes keys, `w_kv[..., d:]` values"
        changes["Values are projected by the matrix of the keys."] = {"w_uv": keys}, "latent", hint
    return changes


def _of_scales(inputs: Inputs) -> Changes:
    """Scales of other sizes."""
    s, right = inputs.sizes, inputs.effective_scale
    D, R, E = s.D, inputs.letters["r"], inputs.letters["e"]
    scales = {
        "1/sqrt(D + E)": (D + E) ** -0.5, "1/sqrt(D), without the rotary part": D**-0.5,
        "1/sqrt(R + E), of latent and rotary key": (R + E) ** -0.5, "1/sqrt(R), of the latent": R**-0.5,
        "1/sqrt(E)": E**-0.5, "1": 1.0, "1/(D + E)": 1 / (D + E), "1/sqrt(Dv)": s.Dv**-0.5,
        "the square of the right one": right**2,
    }  # fmt: skip
    hint = "the size of a query is D + E, in both forms"
    return {
        f"The scale is {scale:.3g} = {text}, expected {right:.3g}.": (
            {"scale": scale}, "scale", hint,
        )
        for text, scale in scales.items()
    }  # fmt: skip


def _of_averages(inputs: Inputs) -> Iterator[Another]:
    """Averages of other values, of halves of the keys, and by rounded queries."""
    query, key, value = plain(inputs.arrays)
    products = query @ key.swapaxes(-1, -2)
    lifted = np.einsum("bhqd,rhd->bhqr", inputs.query, inputs.arrays["w_uk"])
    for fmt in (DTYPES["f16"], DTYPES["bf16"]):
        apart = round_to(lifted, fmt) - lifted
        moved = np.einsum("bhqr,bkr->bhqk", apart, dequantized(inputs.arrays))
        rounded = (products + moved) * inputs.effective_scale
        text = f"Projected queries are rounded to {fmt.long_name}."
        output = softmax(rounded, inputs.attends) @ value
        yield {"output": output}, text, "numerics", "`.half()` before the product with `w_uk`"
    scores = products * inputs.effective_scale
    output = softmax(scores, inputs.attends) @ (0 * value + value[:1])
    text = "All samples have the values of sample 0."
    yield {"output": output}, text, "heads", "an index of samples"
    middle = inputs.sizes.Lk // 2
    if middle and inputs.attends[..., :middle].any(-1).all():
        halves = (slice(None, middle), slice(middle, None))
        parts = [softmax(scores[..., k], inputs.attends[..., k]) @ value[:, :, k] for k in halves]
        text = "The answers of both halves of the keys are averaged."
        yield {"output": sum(parts) / 2}, text, "merge", "weight parts by `exp(lse - total)`"
