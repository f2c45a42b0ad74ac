"""Identification: wrong functions are told what they compute instead, right ones are told nothing.

`tests/frozen` holds the first sentences of whole corpora (told-*.txt); here stand sentences that no
kernel of these is told, pictures, second sentences, and silence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.identify import identify
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases
from tests.runtimes import of as of_backend

torch = pytest.importorskip("torch")

from tests.functions import misread, of_torch  # noqa: E402

PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"
CAUSAL = "sdpa/causal/mha/f32/b2h3q17k17d8"
CROSS = "sdpa/causal/mha/f32/b2h3q17k23d8"
GROUPED = "sdpa/none/gqa2/f32/b2h6q17k23d8"
MASKED = "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/dense"
BIASED = "sdpa/none/mha/f32/b2h3q17k23d8/bias.bhqk"
SCALED = "sdpa/none/mha/f32/b2h3q17k23d8/scale0.3"
ROTARY = "rotary/none/mha/f32/b2h3q17k1d16"
NORMED = "multi-head/pad/mha/f32/b2h3q5k9d4/e12.12.12.12/qknorm/eps1e-06"


def of(function: Callable[..., Any], like: str = "") -> Implementation:
    backend = registry.load("torch")
    return registry.callable_implementation(backend, function, "function", {}, like)[0]


def told(function: Callable[..., Any], *ids: str) -> list[Diagnosis]:
    """What a function is told that fails the cases of these ids."""
    implementation = of(function, "" if ids[0].startswith("sdpa") else ids[0].partition("/")[0])
    return identify(implementation.backend, implementation, [*map(Case.parse, ids)], seconds=60)


named, plain = misread.named, of_torch.textbook


def weighed(weigh: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose weights are `weigh(scores)`."""
    return named(weigh=weigh)


def of_heads(query, key, value):
    return plain(query, key, value, scale=query.shape[1] ** -0.5)


def scale_ignored(query, key, value, scale=None):
    return plain(query, key, value)


def bias_reversed(query, key, value, attn_mask=None):
    return plain(query, key, value, attn_mask.flip(-1))


def causal_by_blocks(query, key, value, is_causal=False):
    seen = torch.arange(key.shape[2]) // 8 <= torch.arange(query.shape[2])[:, None] // 8
    return plain(query, key, value, seen if is_causal else None)


def key_misread(query, key, value):
    return plain(query, key.transpose(1, 2).reshape(key.shape), value)


def hidden_in_float16(query, key, value, attn_mask=None):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = scores + (1 - attn_mask.to(scores.dtype)) * torch.tensor(-1e9).to(scores.dtype)
    return scores.softmax(-1) @ value


def narrow(dtype, *names):
    """Attention that rounds some of its operands, its scores or its output to another dtype."""

    def to(name, x):
        return x.to(dtype).to(x.dtype) if name in names else x

    def function(query, key, value):
        query, key, value = to("query", query), to("key", key), to("value", value)
        scores = to("scores", query @ key.mT * query.shape[-1] ** -0.5)
        return to("output", scores.softmax(-1) @ value)

    return function


def of_8_bits(query, key, value):
    step = key.abs().amax((-1, -2), keepdim=True) / 127
    return plain(query, (key / step).round() * step, value)


def anchored_at_the_head(scores):
    raised = (scores - scores.amax((-1, -2), keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def in_blocks(weigh, divides=True):
    """Attention whose weights are made of blocks of 8 keys by `weigh(scores, running maximum)`."""

    def weights(scores):
        blocks, running, made = scores.split(8, -1), None, []
        for block in blocks:
            top = block.amax(-1, keepdim=True)
            running = top if running is None else torch.maximum(running, top)
            made.append(weigh(block, running) if len(blocks) > 1 else block.softmax(-1))
        joined = torch.cat(made, -1)
        return joined / joined.sum(-1, keepdim=True) if divides else joined

    return weighed(weights)


def turned(query, position, *, angles="halves", pairs="halves", to=None):
    """A rotation by base^(-2i / D), whose angles and pairs are halves or neighbours."""
    D = query.shape[-1]
    wide = torch.promote_types(query.dtype, torch.float32) if to is None else to
    theta = 1e4 ** (-2 * torch.arange(D // 2).double() / D)
    angle = position[..., None].to(wide) * theta.to(wide)
    angle = angle[:, None] if angle.ndim == 3 else angle
    angle = torch.cat([angle] * 2, -1) if angles == "halves" else angle.repeat_interleave(2, -1)
    if pairs == "halves":
        across = torch.cat([-query[..., D // 2 :], query[..., : D // 2]], -1)
    else:
        across = torch.stack([-query[..., 1::2], query[..., ::2]], -1).flatten(-2)
    return (query * angle.cos() + across * angle.sin()).to(query.dtype)


def rotated(**knobs):
    return lambda query, position: turned(query, position, **knobs)


def backward(change):
    """Attention whose gradients are `change(query, key, value, weights, cotangent)`."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
            ctx.save_for_backward(query, key, value, weights)
            return weights @ value

        @staticmethod
        def backward(ctx, out):
            return change(*ctx.saved_tensors, out)

    return lambda query, key, value: Changed.apply(query, key, value)


def terms(query, key, value, weights, out, mean=1.0, scale=None):
    """The gradients of attention; with `mean` -1 the row's sum of p dp is added."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    d_weights = out @ value.mT
    inner = (weights * d_weights).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - mean * inner) * scale
    return d_scores @ key, d_scores.mT @ query, weights.mT @ out


def exchanged(*saved):
    query, key, value = terms(*saved)
    return query, value, key


def without_value(*saved):
    query, key, value = terms(*saved)
    return query, key, 0 * value


def last_key_forgotten(*saved):
    query, key, value = terms(*saved)
    value[:, :, -1] = 0
    return query, key, value


class Poison(torch.autograd.Function):
    """Zeros, whose gradient is NaN at some places."""

    @staticmethod
    def forward(ctx, query, places):
        ctx.save_for_backward(places)
        return torch.zeros_like(query)

    @staticmethod
    def backward(ctx, out):
        return torch.where(ctx.saved_tensors[0], torch.nan, out * 0), None


def poisoned(places):
    """Attention whose fully masked rows are 0, and give NaN to the query at `places(those rows)`."""

    def function(query, key, value, attn_mask=None):
        if attn_mask is None:
            attn_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        empty = ~attn_mask.any(-1, keepdim=True)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~attn_mask, -torch.inf).masked_fill(empty, 0.0).softmax(-1)
        out = (weights * ~empty) @ value
        return out if places is None else out + Poison.apply(query, places(empty).expand(out.shape))

    return function


@pytest.mark.parametrize(
    ("function", "case", "sentence", "hint"),
    [
        (weighed(torch.sigmoid), PLAIN, "Weights are a sigmoid", ""),
        (weighed(torch.exp), PLAIN, "not divided by their sum", ""),
        (causal_by_blocks, CAUSAL, "compares blocks of 8, expected each query and key.", ""),
        (named(factor=math.log2(math.e)), PLAIN, "times log2(e)", "exp2"),
        (named(factor=-1), PLAIN, "with the other sign", ""),
        (of_heads, PLAIN, "1/sqrt(H)", "the number of heads"),
        (scale_ignored, SCALED, "expected 0.3 = the given scale", "`scale` is not used"),
        (bias_reversed, BIASED, "The bias is reversed along the keys", ""),
        (key_misread, PLAIN, "Heads and rows of key are interleaved", ""),
        (misread.grouped(lambda x, H: x.flip(1).repeat_interleave(H // x.shape[1], 1)), GROUPED,
         "heads are in reverse order", ""),
        (narrow(torch.bfloat16, "query", "key"), PLAIN, "or their scores, are rounded to bfloat16", ""),
        (narrow(torch.float16, "value"), PLAIN, "Value is rounded to TF32 or float16 inside", ""),
        (narrow(torch.float16, "output"), PLAIN, "Results are rounded to TF32 or float16", ""),
        (narrow(torch.float16, "scores"), PLAIN, "Scores are rounded to float16 inside", ""),
        (of_8_bits, PLAIN, "rounded to 8 bits inside: steps of the largest element of a head", ""),
        (weighed(anchored_at_the_head), PLAIN, "is not that of the row", ""),
        (hidden_in_float16, MASKED.replace("f32", "f16"),
         "In float16, not in float32: NaN comes back in all rows", ""),
        (weighed(lambda s: s.masked_fill(s == 0, -torch.inf).softmax(-1)), PLAIN,
         "Keys whose score is exactly 0 are hidden", ""),
        (in_blocks(lambda s, running: s.softmax(-1), divides=False), PLAIN,
         "Every block of 8 keys has its own softmax, and the answers are added.", ""),
        (backward(lambda *saved: terms(*saved, mean=-1.0)), PLAIN, "The backward pass adds D", ""),
        (backward(lambda *saved: terms(*saved, scale=1 / 8)), PLAIN, "have the scale twice.", ""),
        (backward(exchanged), PLAIN, "The gradients of key and value are exchanged.", ""),
        (backward(without_value), PLAIN, "The gradient of the value is zero.", ""),
        (backward(last_key_forgotten), PLAIN, "of the value is wrong in key 6 of 7 alone", ""),
        (poisoned(lambda empty: empty), PLAIN,
         "have an output of 0, but NaN comes back in the gradient of the query, in these rows.", ""),
        (poisoned(lambda empty: empty.any()), PLAIN, "comes back in the gradient of the query.", ""),
        (rotated(pairs="neighbours"), f"{ROTARY}/interleaved",
         "Angles belong to halves i and i + D/2, and neighbours", ""),
    ],
)  # fmt: skip
def test_what_is_computed_instead_is_named(
    function: Callable[..., Any], case: str, sentence: str, hint: str
) -> None:
    found = told(function, case)
    assert found, "nothing was found"
    assert sentence in found[0].sentence
    assert hint in found[0].hint
    assert (found[0].source, found[0].explains, found[0].tried) == ("measured", 1, 1)


def test_a_mask_that_is_wrong_is_drawn() -> None:
    (found, *_) = told(named(diagonal=1), CAUSAL)
    assert "sees the next key: query i attends keys up to i + 1" in found.sentence
    picture = found.picture.splitlines()
    assert len(picture) <= 14
    assert picture[2].split() == [*"#......", *"#X....."]
    assert picture[8].split() == [*"#######", *"#######"]


def test_a_second_fault_is_told_though_no_failing_case_has_it_alone() -> None:
    def keys_dropped(query, key, value):
        kept = max(7, key.shape[2] // 8 * 8)
        return plain(query, key[:, :, :kept], value[:, :, :kept], scale=1 / 8)

    said = [one.sentence for one in told(keys_dropped, PLAIN)]
    assert said[0].startswith("The scale is 0.125")
    assert said[1] == "The last 7 of 23 keys are never seen."
    said = [one.sentence for one in told(named(axis=-2, diagonal=1), PLAIN, CROSS)]
    assert said[0].startswith("The softmax runs over the queries")
    assert len(said) == 1
    function = named(weigh=lambda s: s.softmax(-1) / 2, diagonal=1)
    said = [one.sentence for one in told(function, PLAIN, "sdpa/causal+pad/mha/f32/b2h3q17k23d8")]
    assert "0.5 times the right ones" in said[0]
    assert "A causal query sees the next key" in said[1]


def test_a_fault_of_layers_is_read_from_gradients() -> None:
    backend = registry.load("attention_conformance.suite.deviations:mutants")
    wrong = of_backend(backend, "gains-taken-for-constants")
    found = identify(backend, wrong, [Case.parse(NORMED)], seconds=60)
    assert "The gradient of the query gain is zero." in found[0].sentence


def merge(outputs, lse):
    shares = lse.softmax(0).nan_to_num()[..., None].to(outputs.dtype)
    return (shares * outputs).sum(0), torch.logsumexp(lse, 0)


RIGHT = [
    (function, (PLAIN, CAUSAL, CROSS, MASKED))
    for function in (plain, of_torch.online, of_torch.exp2, of_torch.bottom_right,
                     of_torch.finite_hiding, poisoned(None))
] + [
    (backward(terms), (PLAIN, CAUSAL)),
    (turned, (ROTARY, "rotary/none/mha/bf16/b2h3q17k1d16/at4097")),
    (merge, ("merge/none/mha/f32/b2h3q5k2d8",)),
    # A gradient of zeros that is missing.
    (lambda outputs, lse: (outputs[0], lse[0]), ("merge/none/mha/f32/b2h3q5k1d8",)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "ids"), RIGHT)
def test_right_functions_are_told_nothing(
    function: Callable[..., Any], ids: tuple[str, ...]
) -> None:
    supported = [text for text in ids if of_supports(function, text)]
    assert supported
    assert not told(function, *supported)


def of_supports(function: Callable[..., Any], text: str) -> bool:
    like = "" if text.startswith("sdpa") else text.partition("/")[0]
    return of(function, like).unsupported(Case.parse(text)) is None


def test_honest_variants_are_told_nothing() -> None:
    backend = registry.load("tests.honest:honest")
    turns: Counter[str] = Counter()
    every = [c for c in (*cases("smoke"), *cases("standard")) if c.dtype.name == "f32"]
    for implementation in backend.implementations():
        operator = implementation.operator
        own = (c for c in every if c.operator is operator and c.sizes.Lk < 100)
        mine = [c for c in own if implementation.unsupported(c) is None]
        turn = turns[operator.name] % 2
        turns[operator.name] += 1
        mine = mine[turn:6:2]  # variants of an operator share its cases
        assert not identify(backend, implementation, mine, seconds=60), implementation
