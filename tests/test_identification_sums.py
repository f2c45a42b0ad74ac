"""Identification of sums of weights, of blocks of keys, and of scores at their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_conformance.suite.judge.diagnosis import weights  # noqa: E402
from attention_conformance.suite.judge.diagnosis.instrument import Instrument  # noqa: E402
from attention_conformance.suite.spec.case import Case  # noqa: E402
from tests.functions import misread, of_torch  # noqa: E402
from tests.test_identification import CASES, CAUSAL, PLAIN, first, of, told  # noqa: E402


def later_alone(scores):
    """Weights of the keys that a causal mask hides."""
    shown = torch.isneginf(scores) if torch.isneginf(scores).any() else torch.ones_like(scores) > 0
    return torch.where(shown, scores.nan_to_num(neginf=0.0), -torch.inf).softmax(-1).nan_to_num()


def padded(query, key, value):
    """Attention whose keys are padded with zeros to whole blocks of 12, which count."""
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, -key.shape[2] % 12)) for x in (key, value))
    return of_torch.textbook(query, key, value)


def in_blocks(weigh, divides=False):
    """Attention whose weights are made of blocks of 8 keys by `weigh(scores, running maximum)`."""

    def weights(scores):
        blocks, running, made = scores.split(8, -1), None, []
        for block in blocks:
            top = block.amax(-1, keepdim=True)
            running = top if running is None else torch.maximum(running, top)
            made.append(weigh(block, running) if len(blocks) > 1 else block.softmax(-1))
        joined = torch.cat(made, -1)
        return joined / joined.sum(-1, keepdim=True) if divides else joined

    return misread.named(weigh=weights)


def normalised(*names):
    """Attention whose operands of these names are divided by their length."""

    def function(query, key, value, attn_mask=None):
        arrays = {"query": query, "key": key}
        for name in names:
            arrays[name] = torch.nn.functional.normalize(arrays[name], dim=-1)
        return of_torch.textbook(**arrays, value=value, attn_mask=attn_mask)

    return function


def of_the_root(query, key, value, scale=None):
    scale = torch.tensor(query.shape[-1] ** -0.5 if scale is None else scale, dtype=query.dtype)
    return of_torch.textbook(query * scale.sqrt(), key * scale.sqrt(), value, scale=1.0)


def of_values(query, key, value):
    return of_torch.textbook(query, key, value, scale=value.shape[-1] ** -0.5)


def padded_scale(query, key, value):
    return of_torch.textbook(query, key, value, scale=(-(-query.shape[-1] // 16) * 16) ** -0.5)


def beside_a_bias(query, key, value, attn_mask=None):
    scale = None if attn_mask is None else 1.0
    return of_torch.textbook(query, key, value, attn_mask, scale=scale)


def causal_by_blocks(query, key, value, is_causal=False):
    """Attention whose causal mask holds for blocks of 8."""
    hidden = torch.arange(key.shape[2]) // 8 > torch.arange(query.shape[2])[:, None] // 8
    return of_torch.textbook(query, key, value, ~hidden if is_causal else None)


def hidden_in_float16(query, key, value, attn_mask=None):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = scores + (1 - attn_mask.to(scores.dtype)) * torch.tensor(-1e9).to(scores.dtype)
    return scores.softmax(-1) @ value


def mask_of_another_sample(query, key, value, attn_mask=None):
    """The mask of sample and head (b, h) serves element b H + h of heads in front of samples."""
    if attn_mask is not None:
        B, H = query.shape[:2]
        mask = attn_mask.expand(B, H, -1, -1)
        attn_mask = mask.flatten(0, 1).unflatten(0, (H, B)).transpose(0, 1)
    return of_torch.textbook(query, key, value, attn_mask)


def float_mask_as_boolean(query, key, value, attn_mask=None):
    return of_torch.textbook(query, key, value, None if attn_mask is None else attn_mask == 0)


@pytest.mark.parametrize(
    ("function", "case", "sentence", "family"),
    [
        (misread.named(axis=1), CASES[6], "The softmax runs over the heads", "softmax"),
        (misread.named(axis=0), PLAIN, "The softmax runs over the samples", "softmax"),
        (misread.named(weigh=lambda s: s.transpose(1, 2).flatten(2).softmax(-1)
                       .unflatten(2, (s.shape[1], -1)).transpose(1, 2)), PLAIN,
         "The softmax runs over the heads and keys together", "softmax"),
        (misread.named(weigh=later_alone), CAUSAL, "The causal mask is inverted", "mask"),
        (misread.named(weigh=lambda s: s.masked_fill(s == 0, -torch.inf).softmax(-1)), PLAIN,
         "Keys whose score is exactly 0 are hidden", "mask"),
        (misread.named(weigh=lambda s: s.nan_to_num(neginf=-7e3).softmax(-1)), CAUSAL,
         "The score of hidden keys is finite, about -7,000, expected -inf", "mask"),
        (padded, PLAIN, "The denominator of the softmax has 5 scores of 0 too many", "softmax"),
        (misread.named(weigh=lambda s: s.exp() / s[..., 2:5].exp().sum(-1, keepdim=True)), PLAIN,
         "Weights are divided by the sum over keys 2 to 4 of 7 alone", "softmax"),
        (in_blocks(lambda s, running: s.softmax(-1) / 3), PLAIN,
         "Every block of 8 keys has its own softmax, and the answers are averaged.", "softmax"),
        (in_blocks(lambda s, running: s.softmax(-1)), PLAIN,
         "Every block of 8 keys has its own softmax, and the answers are added.", "softmax"),
        (in_blocks(lambda s, running: (s - s.amax(-1, keepdim=True)).exp(), divides=True), PLAIN,
         "Every block of 8 keys has its own maximum", "softmax"),
        (in_blocks(lambda s, running: (s - running).exp(), divides=True), PLAIN,
         "What a block of 8 keys adds is not rescaled when the maximum grows.", "softmax"),
        (in_blocks(lambda s, running: (s - 2 * running).exp(), divides=True), PLAIN,
         "What a block of 8 keys adds is rescaled by the inverse factor.", "softmax"),
        (in_blocks(lambda s, running: s.exp() * (1 + running.abs()), divides=True), PLAIN,
         "Weights are in the right proportion within blocks of 8 keys alone", "softmax"),
        (misread.named(weigh=lambda s: (s - s.amax(-1, keepdim=True)).exp()
                       / ((s - s.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True) + 1e-4)), PLAIN,
         "The denominator of the softmax is too large by 0.0001", "softmax"),
        (of_values, "sdpa/none/mha/f32/b2h3q17k23d8v10", "The scale is 0.316 = 1/sqrt(Dv)", "scale"),
        (padded_scale, PLAIN, "The scale is 0.25 = 1/sqrt(D rounded up to a multiple of 16)", "scale"),
        (beside_a_bias, CASES[7], "Beside a bias the scale is 1, expected 0.354", "scale"),
        (causal_by_blocks, CAUSAL, "The causal mask compares blocks of 8, expected each query and key.",
         "mask"),
        (hidden_in_float16, "sdpa/bool.bhqk/mha/f16/b2h3q17k23d8/dense",
         "In float16, not in float32: NaN comes back in all rows", "softmax"),
        (mask_of_another_sample, CASES[6], 
         "Head 1 of sample 0 has the mask of head 2, expected head 1 (4 of 6 are wrong).", "mask"),
        (float_mask_as_boolean, CASES[7], "keys whose bias is not 0 are hidden", "mask"),
        (normalised("query", "key"), PLAIN,
         "Scores take query and key divided by the length of each vector", "scores"),
        (normalised("key"), CASES[7], "Scores take key divided by the length", "scores"),
        (of_the_root, "sdpa/none/mha/f32/b2h3q17k23d8/scale-0.3",
         "A negative scale gives NaN: -0.3 does, 0.3 does not.", "scale"),
    ],
)  # fmt: skip
def test_sums_blocks_and_scores_are_named(
    function: Callable[..., Any], case: str, sentence: str, family: str
) -> None:
    said, of_family = first(function, case)
    assert sentence in said
    assert of_family == family


def test_a_second_fault_is_told_though_no_failing_case_has_it_alone() -> None:
    def keys_dropped(query, key, value):
        kept = max(7, key.shape[2] // 8 * 8)
        return of_torch.textbook(query, key[:, :, :kept], value[:, :, :kept], scale=1 / 8)

    said = [one.sentence for one in told(keys_dropped, PLAIN)]
    assert said[0].startswith("The scale is 0.125")
    assert said[1] == "The last 7 of 23 keys are never seen."
    said = [one.sentence for one in told(misread.named(axis=-2, diagonal=1), PLAIN, CASES[2])]
    assert said[0].startswith("The softmax runs over the queries")
    assert len(said) == 1
    function = misread.named(weigh=lambda s: s.softmax(-1) / 2, diagonal=1)
    said = [one.sentence for one in told(function, PLAIN, "sdpa/causal+pad/mha/f32/b2h3q17k23d8")]
    assert "0.5 times the right ones" in said[0]
    assert "A causal query sees the next key" in said[1]


def test_heads_that_are_viewed_do_not_hide_the_scale() -> None:
    def viewed(query, key, value, attn_mask=None):
        right = of_torch.textbook(query, key, value, attn_mask, scale=1.0)
        return right.transpose(1, 2).reshape(right.shape)

    said = [one.sentence for one in told(viewed, CASES[6])]
    assert "Heads and rows of the output are interleaved: (B, Lq, H, Dv)" in said[0]
    assert said[1:] == ["The scale is 1, expected 0.354 = 1/sqrt(D)."]


def test_a_mask_is_not_read_through_weights_that_nobody_understands() -> None:
    function = misread.named(weigh=lambda s: (s.softmax(-1) + s.softmax(-1).roll(2, -2)) / 2)
    assert not {"mask", "softmax"} & {one.family for one in told(function, PLAIN, CASES[6])}


def merged(power):
    """Attention of two halves of the keys, which weigh exp(power * log-sum-exp)."""

    def weights(scores):
        halves = scores.split((scores.shape[-1] + 1) // 2, -1)
        lse = torch.cat([half.logsumexp(-1, keepdim=True) for half in halves], -1)
        shares = (power * lse).softmax(-1)
        return torch.cat(
            [half.softmax(-1) * shares[..., n, None] for n, half in enumerate(halves)], -1
        )

    return misread.named(weigh=weights)


@pytest.mark.parametrize(
    ("power", "said", "hint"),
    [(1 / math.log(2), "exp(1.44 lse)", "to base 2"), (-1.0, "exp(-1 lse)", "a sign"),
     (0.5, "exp(0.5 lse)", "")],
)  # fmt: skip
def test_parts_with_weights_of_another_base_are_named(power: float, said: str, hint: str) -> None:
    found = told(merged(power), PLAIN)
    assert (
        f"has its own softmax, and weighs {said} in their sum, expected exp(lse)."
        in found[0].sentence
    )
    assert hint in found[0].hint
    assert not told(merged(1.0), PLAIN)


def limited(limit):
    """Attention whose scores are changed first."""
    return misread.named(weigh=lambda scores: limit(scores).softmax(-1))


@pytest.mark.parametrize(("limit", "about"), [(20, "20"), (300, "300")])
def test_clipped_scores_are_named(limit: float, about: str) -> None:
    clipped = limited(lambda scores: scores.clamp(-limit, limit))
    text = f"Scores above about {about} are all alike: they are clipped."
    assert first(clipped, PLAIN) == (text, "scores")
    assert not told(limited(lambda scores: scores), PLAIN)


def test_rounding_makes_no_scores_alike() -> None:
    rounded = of(limited(lambda scores: scores.half().float()))
    assert not list(weights.ask_large(Instrument(rounded, 60), Case.parse(PLAIN)))
