"""Identification of sums of weights, of blocks of keys, and of scores at their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.functions import misread, of_torch  # noqa: E402
from tests.test_identification import CASES, CAUSAL, PLAIN, first  # noqa: E402


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
