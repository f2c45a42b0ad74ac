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

torch = pytest.importorskip("torch")

from tests.diagnosed.gradients import gradients_of  # noqa: E402
from tests.diagnosed.masks import past  # noqa: E402
from tests.diagnosed.of_torch import TORCH  # noqa: E402
from tests.diagnosed.textbook import kernel  # noqa: E402
from tests.functions import of_torch  # noqa: E402

PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"
CAUSAL = "sdpa/causal/mha/f32/b2h3q17k17d8"
CROSS = "sdpa/causal/mha/f32/b2h3q17k23d8"
GROUPED = "sdpa/none/gqa2/f32/b2h6q17k23d8"
MASKED = "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/dense"
SCALED = "sdpa/none/mha/f32/b2h3q17k23d8/scale0.3"


def of(function: Callable[..., Any], like: str = "") -> Implementation:
    backend = registry.load("torch")
    return registry.callable_implementation(backend, function, "function", {}, like)[0]


def told(function: Callable[..., Any], *ids: str) -> list[Diagnosis]:
    """What a function is told that fails the cases of these ids."""
    implementation = of(function, "" if ids[0].startswith("sdpa") else ids[0].partition("/")[0])
    return identify(implementation, [*map(Case.parse, ids)], seconds=60)


plain = of_torch.textbook


def changed(**changes: Callable[..., Any]) -> Callable[..., Any]:
    """The textbook of `tests.diagnosed` with some stages changed."""
    return kernel(TORCH, (*TORCH.parameters, "enable_gqa"), changes)


def weighed(weigh: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose weights are `weigh(scores)`."""
    return changed(weights=lambda right, c, s: weigh(s))


def scaled(factor: Callable[[Any], float]) -> Callable[..., Any]:
    """Attention with another scale."""
    return changed(factor=lambda right, c: factor(c))


def narrow(dtype: torch.dtype, *names: str) -> Callable[..., Any]:
    """Attention that rounds some of its operands, its scores or its output to another dtype."""

    def to(name: str, x: Any) -> Any:
        return x.to(dtype).to(x.dtype) if name in names else x

    return changed(
        operands=lambda right, c: map(to, ("query", "key", "value"), right.operands(c)),
        scores=lambda right, c: to("scores", right.scores(c)),
        output=lambda right, c, w: to("output", right.output(c, w)),
    )


def of_keys(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Attention of changed keys."""

    def operands(right: Any, c: Any) -> Any:
        query, key, value = right.operands(c)
        return query, change(key), value

    return changed(operands=operands)


def in_8_bits(key):
    step = key.abs().amax((-1, -2), keepdim=True) / 127
    return (key / step).round() * step


def undivided(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


def anchored_at_the_head(scores):
    raised = (scores - scores.amax((-1, -2), keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def minus_a_billion(right, c, s):
    """(1 - mask) * -1e9 is added, in the dtype of the query."""
    s = right.biased(c, s).to(c.dtype)
    return s if c.mask is None else s + (1 - c.mask.to(s.dtype)) * torch.tensor(-1e9).to(s.dtype)


def block_by_block(scores):
    return torch.cat([block.softmax(-1) for block in scores.split(8, -1)], -1)


def last_key_forgotten(right, c):
    """The value of the last key has no gradient."""
    query, key, value = right.operands(c)
    return query, key, torch.cat([value[:, :, :-1], value[:, :, -1:].detach()], 2)


@pytest.mark.parametrize(
    ("function", "case", "sentence", "hint"),
    [
        (weighed(torch.sigmoid), PLAIN, "Weights are a sigmoid", ""),
        (weighed(undivided), PLAIN, "not divided by their sum", ""),
        (changed(causal=lambda right, c: c.keys // 8 <= c.rows // 8), CAUSAL,
         "compares blocks of 8, expected each query and key.", ""),
        (scaled(lambda c: c.query.shape[-1] ** -0.5 * math.log2(math.e)), PLAIN, "times log2(e)", "exp2"),
        (scaled(lambda c: -(c.query.shape[-1] ** -0.5)), PLAIN, "with the other sign", ""),
        (scaled(lambda c: c.shape[1] ** -0.5), PLAIN, "1/sqrt(H)", "the number of heads"),
        (scaled(lambda c: c.query.shape[-1] ** -0.5), SCALED,
         "expected 0.3 = the given scale", "`scale` is not used"),
        (of_keys(lambda key: key.transpose(1, 2).reshape(key.shape)), PLAIN,
         "Heads and rows of key are interleaved", ""),
        (changed(of_groups=lambda right, c, x: right.of_groups(c, x.flip(1))), GROUPED,
         "heads are in reverse order", ""),
        (narrow(torch.bfloat16, "query", "key"), PLAIN, "or their scores, are rounded to bfloat16", ""),
        (narrow(torch.float16, "value"), PLAIN, "Value is rounded to TF32 or float16 inside", ""),
        (narrow(torch.float16, "output"), PLAIN, "Results are rounded to TF32 or float16", ""),
        (narrow(torch.float16, "scores"), PLAIN, "Scores are rounded to float16 inside", ""),
        (of_keys(in_8_bits), PLAIN,
         "rounded to 8 bits inside: steps of the largest element of a head", ""),
        (weighed(anchored_at_the_head), PLAIN, "is not that of the row", ""),
        (changed(mask=lambda right, c: None, biased=minus_a_billion), MASKED.replace("f32", "f16"),
         "In float16, not in float32: NaN comes back in all rows", ""),
        (weighed(lambda s: s.masked_fill(s == 0, -torch.inf).softmax(-1)), PLAIN,
         "Keys whose score is exactly 0 are hidden", ""),
        (weighed(block_by_block), PLAIN,
         "Every block of 8 keys has its own softmax, and the answers are added.", ""),
        (changed(operands=gradients_of(value=lambda c: 0.0)), PLAIN,
         "The gradient of the value is zero.", ""),
        (changed(operands=last_key_forgotten), PLAIN, "of the value is wrong in key 6 of 7 alone", ""),
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


def next_key(right: Any, c: Any) -> Any:
    return past(c, 1)


SEES_NEXT = changed(causal=next_key)


def test_a_mask_that_is_wrong_is_drawn() -> None:
    (found, *_) = told(SEES_NEXT, CAUSAL)
    assert "off by +1: query i attends keys up to i + 1, expected keys up to i." in found.sentence
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
    over_queries = changed(causal=next_key, weights=lambda right, c, s: s.softmax(-2))
    said = [one.sentence for one in told(over_queries, PLAIN, CROSS)]
    assert said[0].startswith("The softmax runs over the queries")
    assert len(said) == 1
    halved = changed(causal=next_key, weights=lambda right, c, s: s.softmax(-1) / 2)
    said = [one.sentence for one in told(halved, PLAIN, "sdpa/causal+pad/mha/f32/b2h3q17k23d8")]
    assert "0.5 times the right ones" in said[0]
    assert "query i attends keys up to i + 1" in said[1]


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
        assert not identify(implementation, mine, seconds=60), implementation
