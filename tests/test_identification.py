"""Identification: wrong functions are told what they compute instead, right ones are told nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation, own_attention
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.identify import identify
from attention_conformance.suite.spec.case import Case

torch = pytest.importorskip("torch")

from tests.functions import misread, of_torch  # noqa: E402

PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"
DOUBLE = "sdpa/none/mha/f64/b2h3q17k23d8"
CAUSAL = "sdpa/causal/mha/f32/b2h3q17k17d8"
CASES = (
    PLAIN, CAUSAL, "sdpa/causal/mha/f32/b2h3q17k23d8", "sdpa/none/gqa2/f32/b2h6q17k23d8",
    "sdpa/pad/mha/f32/b2h3q17k23d8", "sdpa/win4.0/mha/f32/b2h3q17k17d8",
    "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/dense", "sdpa/none/mha/f32/b2h3q17k23d8/bias.bhqk",
    "sdpa/none/mha/f32/b2h3q17k23d8/scale0.3", "sdpa/causal/mha/bf16/b2h3q1k23d64",
)  # fmt: skip


def of(function: Callable[..., Any]) -> Implementation:
    backend = registry.load("torch")
    return registry.callable_implementation(backend, function, "function", {})[0]


def told(function: Callable[..., Any], *ids: str) -> list[Diagnosis]:
    """What a function is told that fails the cases of these ids."""
    implementation = of(function)
    cases = [Case.parse(text) for text in ids or CASES]
    return identify(implementation.backend, implementation, cases, seconds=60)


def first(function: Callable[..., Any], *ids: str) -> tuple[str, str]:
    """The sentence that a function is told first, and its family."""
    found = told(function, *ids)
    assert found, "nothing was found"
    assert found[0].source == "measured"
    assert 1 <= found[0].explains <= found[0].tried == len(ids or CASES)
    return found[0].sentence, found[0].family


def scale_ignored(query, key, value, scale=None):
    return of_torch.textbook(query, key, value)


def with_bias(change):
    """Attention whose bias is changed first."""

    def function(query, key, value, attn_mask=None):
        return of_torch.textbook(query, key, value, change(attn_mask))

    return function


def without_last_component(query, key, value):
    scale = query.shape[-1] ** -0.5
    return of_torch.textbook(query[..., :-1], key[..., :-1], value, scale=scale)


def of_heads(query, key, value):
    return of_torch.textbook(query, key, value, scale=query.shape[1] ** -0.5)


def without_last_key(query, key, value):
    return of_torch.textbook(query, key[:, :, :-1], value[:, :, :-1])


def of_first_query(query, key, value, attn_mask=None):
    return of_torch.textbook(query, key, value, attn_mask[:, :, :1])


def narrow(query, key, value, attn_mask=None):
    behind = torch.arange(key.shape[2]) >= 4
    return of_torch.textbook(query, key, value, attn_mask | behind)


def in_chunks(size, dim):
    """Attention whose causal mask begins anew for every chunk of queries (2) or keys (1)."""

    def function(query, key, value, attn_mask=None, is_causal=False):
        q, k = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        q, k = (q % size, k) if dim == 2 else (q, k % size)
        return of_torch.textbook(query, key, value, k <= q if is_causal else attn_mask)

    return function


def penalised(scores):
    return torch.where(scores == -torch.inf, scores.new_tensor(-30.0), scores).softmax(-1)


@pytest.mark.parametrize(
    ("function", "case", "sentence", "family"),
    [
        (misread.named(diagonal=-1), CAUSAL, "does not see the key at its own position", "mask"),
        (misread.named(diagonal=3), CASES[2], "off by +3", "mask"),
        (misread.named(hides=False), CASES[6], "The mask is inverted", "mask"),
        (misread.named(weigh=penalised), CASES[6], "The score of hidden keys is -30", "mask"),
        (misread.named(axis=-2), PLAIN, "The softmax runs over the queries", "softmax"),
        (misread.named(axis=1), PLAIN, "The softmax runs over the heads", "softmax"),
        (misread.named(weigh=torch.sigmoid), PLAIN, "Weights are a sigmoid", "softmax"),
        (misread.named(weigh=torch.exp), PLAIN, "not divided by their sum", "softmax"),
        (misread.named(weigh=lambda s: s.softmax(-1) / 2), PLAIN, "0.5 times the right ones", "softmax"),
        (without_last_key, PLAIN, "last key of 7 is never seen", "mask"),
        (of_first_query, CASES[6], "The mask of query 0 is used for every query.", "mask"),
        (narrow, CASES[6], "The mask hides nothing from key 4 on.", "mask"),
        (in_chunks(4, 2), CAUSAL, "The mask causal begins anew every 4 queries.", "mask"),
        (in_chunks(4, 1), CAUSAL, "The mask causal begins anew every 4 keys.", "mask"),
    ],
)  # fmt: skip
def test_the_pattern_of_weights_is_named(
    function: Callable[..., Any], case: str, sentence: str, family: str
) -> None:
    said, of_family = first(function, case)
    assert sentence in said
    assert of_family == family


def test_a_mask_that_is_wrong_is_drawn() -> None:
    (found, *_) = told(misread.named(diagonal=1), CAUSAL)
    assert "sees the next key: query i attends keys up to i + 1" in found.sentence
    assert found.family == "mask"
    picture = found.picture.splitlines()
    assert len(picture) <= 14
    assert picture[2].split() == [*"#......", *"#X....."]
    assert picture[8].split() == [*"#######", *"#######"]


@pytest.mark.parametrize(
    ("function", "case", "sentence", "hint"),
    [
        (misread.named(factor=8**-0.5), PLAIN,
         "The scale is 0.125 = 1/D, expected 0.354 = 1/sqrt(D).", "/ D"),
        (misread.named(factor=8**0.5), PLAIN, "The scale is 1, expected 0.354", "not scaled"),
        (misread.named(factor=math.log2(math.e)), PLAIN, "times log2(e)", "exp2"),
        (of_heads, PLAIN, "1/sqrt(H)", "the number of heads"),
        (misread.named(factor=-1), PLAIN, "with the other sign", ""),
        (scale_ignored, CASES[8],
         "1/sqrt(D), the default, expected 0.3 = the given scale", "`scale` is not used"),
        (with_bias(lambda bias: bias * 8**-0.5), CASES[7],
         "The bias is scaled like the scores", "q @ k + bias"),
        (with_bias(torch.zeros_like), CASES[7],
         "The bias is ignored", "not used"),
        (with_bias(lambda bias: bias.flip(-1)), CASES[7],
         "The bias is reversed along the keys", ""),
        (without_last_component, PLAIN,
         "Of the 8 components of query and key those from 7 on are left out", "leaves out the rest"),
    ],
)  # fmt: skip
def test_the_scores_are_measured(
    function: Callable[..., Any], case: str, sentence: str, hint: str
) -> None:
    found = told(function, case)
    assert sentence in found[0].sentence
    assert hint in found[0].hint
    assert len(found) == 1


def swapped(x):
    return x.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (misread.grouped(lambda x, H: x.repeat(1, H // x.shape[1], 1, 1)),
         "Query head 1 reads value head 1, expected 0: value heads are tiled"),
        (misread.grouped(lambda x, H: x[:, :1].expand(-1, H, -1, -1)), "every head reads head 0"),
        (misread.grouped(lambda x, H: x.flip(1).repeat_interleave(H // x.shape[1], 1)),
         "heads are in reverse order"),
        (misread.grouped(lambda x, H: x.roll(1, 0).repeat_interleave(H // x.shape[1], 1)),
         "Sample 0 reads the value of sample 1"),
    ],
)  # fmt: skip
def test_heads_and_samples_are_named(function: Callable[..., Any], sentence: str) -> None:
    said, family = first(function, CASES[3])
    assert sentence in said
    assert family == "heads"


def test_the_order_of_axes_is_named() -> None:
    def merged(query, key, value):
        return swapped(of_torch.textbook(query, key, value))

    def misread_key(query, key, value):
        return of_torch.textbook(query, swapped(key), value)

    assert "Heads and rows of the output are interleaved" in first(merged, PLAIN)[0]
    assert "Heads and rows of key are interleaved" in first(misread_key, PLAIN)[0]


def narrow(dtype, *names):
    """Attention that rounds some of its operands, its weights or its output to another dtype."""

    def to(name, x):
        return x.to(dtype).to(x.dtype) if name in names else x

    def function(query, key, value):
        query, key, value = to("query", query), to("key", key), to("value", value)
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return to("output", to("weights", weights) @ value)

    return function


def of_8_bits(query, key, value):
    step = key.abs().amax((-1, -2), keepdim=True) / 127
    return of_torch.textbook(query, (key / step).round() * step, value)


def summed_in_bfloat16(query, key, value):
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    total = torch.zeros_like(weights[..., :1] * value[..., :1, :], dtype=torch.bfloat16)
    for j in range(key.shape[2]):
        total = total + (weights[..., j : j + 1] * value[..., j : j + 1, :]).to(torch.bfloat16)
    return total.to(query.dtype)


def anchored_at_the_head(scores):
    raised = (scores - scores.amax((-1, -2), keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def weighed(weigh):
    """Attention whose weights are `weigh(scores)`."""
    return misread.named(weigh=weigh)


@pytest.mark.parametrize(
    ("function", "case", "sentence"),
    [
        (narrow(torch.bfloat16, "query", "key"), PLAIN,
         "Query and key, or their scores, are rounded to bfloat16"),
        (narrow(torch.float16, "value"), PLAIN, "Value is rounded to TF32 or float16 inside"),
        (narrow(torch.float32, "query", "key"),
         "sdpa/none/mha/f64/b2h3q17k23d8", "Query and key, or their scores, are rounded to float32"),
        (narrow(torch.bfloat16, "weights"), PLAIN, "Weights are rounded to bfloat16 before the product"),
        (narrow(torch.float16, "output"), PLAIN, "Results are rounded to TF32 or float16"),
        (weighed(lambda s: s.half().float().softmax(-1)), PLAIN, "Scores are rounded to float16 inside"),
        (of_8_bits, PLAIN, "Keys are rounded to 8 bits inside: steps of the largest element of a head"),
        (summed_in_bfloat16, PLAIN, "Sums over keys run in bfloat16: 512 equal weights"),
        (weighed(lambda s: s.exp() / s.exp().sum(-1, keepdim=True)), PLAIN,
         "The maximum is not subtracted"),
        (weighed(anchored_at_the_head), PLAIN, "is not that of the row"),
    ],
)  # fmt: skip
def test_what_is_rounded_inside_is_named(
    function: Callable[..., Any], case: str, sentence: str
) -> None:
    found = told(function, case)
    assert sentence in found[0].sentence
    assert found[0].family in ("numerics", "softmax")


def scaled_in_place(query, key, value):
    return (query.mul_(query.shape[-1] ** -0.5) @ key.mT).softmax(-1) @ value


def dropping(query, key, value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return torch.nn.functional.dropout(scores.softmax(-1), 0.2) @ value


def always_the_same_dropout(query, key, value):
    torch.manual_seed(3)
    return dropping(query, key, value)


class Buffered:
    """Keeps its output, and adds to or overwrites what it returned before."""

    def __init__(self, adds: bool) -> None:
        self.out, self.adds = None, adds

    def __call__(self, query, key, value):
        out = of_torch.textbook(query, key, value)
        if self.out is None or (self.out.shape, self.out.dtype) != (out.shape, out.dtype):
            self.out = torch.zeros_like(out)
        self.out.copy_(self.out + out if self.adds else out)
        return self.out.clone() if self.adds else self.out


class KeptByQuery:
    """Keeps the keys that came with a query."""

    def __init__(self) -> None:
        self.kept: dict[float, Any] = {}

    def __call__(self, query, key, value):
        key, value = self.kept.setdefault(float(query.sum()), (key, value))
        return of_torch.textbook(query, key, value)


def in_float32(query, key, value):
    return of_torch.textbook(query.float(), key.float(), value.float())


@pytest.mark.parametrize(
    ("function", "sentence", "family"),
    [
        (scaled_in_place, "The call writes into query: it changes its arguments in place.",
         "state"),
        (Buffered(adds=True), "A second call with the same inputs gives another answer", "state"),
        (Buffered(adds=False), "The output of a call changes when another call runs", "state"),
        (KeptByQuery(), "same query and other keys and values gives the answer of the call before",
         "state"),
        (in_float32, "Of bfloat16 inputs the expected dtype bfloat16, got float32.", "contract"),
        (dropping, "Dropout is on", "dropout"),
        (always_the_same_dropout, "Dropout is on", "dropout"),
    ],
)  # fmt: skip
def test_side_effects_are_named(function: Callable[..., Any], sentence: str, family: str) -> None:
    said, of_family = first(function, PLAIN)
    assert sentence in said
    assert of_family == family


@pytest.mark.parametrize(
    "function",
    [of_torch.textbook, of_torch.online, of_torch.reversed_keys, of_torch.float64_inside, of_torch.exp2,
     of_torch.log_sum_exp, of_torch.bottom_right, of_torch.one_size, of_torch.finite_hiding],
)  # fmt: skip
def test_right_functions_are_told_nothing(function: Callable[..., Any]) -> None:
    assert not told(function)


@pytest.mark.parametrize(("name", "count"), [("torch", len(CASES)), ("jax", 2), ("tf", 4)])
def test_own_attention_is_told_nothing(name: str, count: int) -> None:
    """Released attention is right on small float32 problems and in its gradients. JAX compiles every
    operation for every shape, so that it is asked less."""
    pytest.importorskip({"tf": "keras"}.get(name, name))
    backend = registry.load(name)
    plain = [i for i in backend.implementations() if i.operator.is_default and not i.textbook]
    for implementation in plain if name == "torch" else [own_attention(backend)]:
        assert implementation is not None
        mine = [c for c in map(Case.parse, CASES[:count]) if implementation.unsupported(c) is None]
        assert not identify(backend, implementation, mine, seconds=60), implementation


def test_a_function_that_raises_says_nothing() -> None:
    def broken(query, key, value):
        raise RuntimeError("no")

    assert not told(broken, PLAIN)
