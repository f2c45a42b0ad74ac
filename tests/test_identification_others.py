"""Identification of faults of the catalogue, most of them of other operators than plain attention, and of
honest variants, which are told nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis import others
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.identify import identify
from attention_conformance.suite.judge.diagnosis.instrument import Instrument
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases

torch = pytest.importorskip("torch")

from tests.functions import varlen  # noqa: E402
from tests.functions.caching import Growing  # noqa: E402
from tests.runtimes import of  # noqa: E402

ROTARY = "rotary/none/mha/f32/b2h3q17k1d16"
LATENT = "latent/causalbr/mha/f32/b2h3q4k9d8v6"
MORE_KEYS = "packed/none/gqa2/f32/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"

OTHERS = (
    ("value-heads-tiled", "Query head 1 reads value head 1, expected 0: value heads are tiled",
     "sdpa/causal/gqa2/f32/b2h6q17k23d8"),
    ("mask-multiplied", "The score of hidden keys is 0, expected -inf.",
     "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/dense"),
    ("mask-below-the-diagonal-causal", "A node attends all nodes before it, as if the tree were a chain.",
     "sdpa/tree112/gqa2/f32/b2h6q7k18d8"),
    ("query-bias-dropped", "The query bias is not used.",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("key-and-value-kernels-swapped", "The projections of key and value are exchanged.",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("scale-of-model", "of the width of the query, expected",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("layer-causal-sees-next", "A causal query sees the next key",
     "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self"),
    ("last-mask-alone", "is ignored.", "sdpa/causal+pad/gqa2/bf16/b2h4q11k9d6/bias.qk/scale0.3"),
    ("gains-taken-for-constants", "The gradient of the query gain is zero.",
     "multi-head/pad/mha/f32/b2h3q5k9d4/e12.12.12.12/qknorm/eps1e-06"),
    ("rotary-off-by-one", "Position p is rotated as position p + 1.",
     "rotary/none/mha/f32/b2h3q17k1d16"),
    ("rotary-base-ignored", "The base of the frequencies is 10000, expected 500000.",
     "rotary/none/mha/f32/b2h3q17k1d16/base500000.0/at1000000"),
    ("packed-keys-end-later", "which belongs to another segment",
     "packed/none/gqa2/f32/b5h4q5k57d8/seg1.1.1.1.1x17.8.16.1.15/causalbr"),
    ("packed-keys-end-earlier", "does not see key 4 of its own 5",
     "packed/none/mha/f32/b3h4q24k24d8/seg5.7.12"),
    ("cached-codes-of-four-bits", "times what codes in int8 allow.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3"),
    ("latent-scale-roughly", "The scale is 1.01 times the right one.", LATENT),
    ("latent-causal-at-the-first-key", "The causal mask is aligned top-left", LATENT),
)  # fmt: skip
"""Faults of the catalogue, what is said of them, and a case that they fail."""


@pytest.mark.parametrize(("name", "sentence", "case"), OTHERS)
def test_other_operators_are_read(name: str, sentence: str, case: str) -> None:
    backend = registry.load("attention_conformance.suite.deviations:mutants")
    wrong = of(backend, name)
    found = identify(backend, wrong, [Case.parse(case)], seconds=60)
    assert sentence in found[0].sentence
    assert {one.family for one in found} == {found[0].family}


def test_a_scale_that_was_not_read_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nearest = others._of_factor

    def at_the_last_moment(answered: others.Answered) -> Any:
        problem = nearest(answered)
        assert problem is not None
        monkeypatch.setattr(Instrument, "late", True)
        return problem

    monkeypatch.setattr(others, "_of_factor", at_the_last_moment)
    backend = registry.load("attention_conformance.suite.deviations:mutants")
    wrong = of(backend, "latent-scale-roughly")
    assert not identify(backend, wrong, [Case.parse(LATENT)], seconds=60)


def of_user(function: Callable[..., Any], like: str, case: str) -> list[Diagnosis]:
    """What a torch function of an operator is told that fails one case."""
    backend = registry.load("torch")
    mine = registry.callable_implementation(backend, function, "function", {}, like)[0]
    return identify(backend, mine, [Case.parse(case)], seconds=60)


def of_operator(implementation: Implementation) -> list[Case]:
    """Small cases in float32 that an implementation supports."""
    every = (*cases("smoke"), *cases("standard"))
    mine = (c for c in every if c.operator is implementation.operator and c.dtype.name == "f32")
    return [c for c in mine if c.sizes.Lk < 100 and implementation.unsupported(c) is None][:30]


def test_honest_variants_are_told_nothing() -> None:
    backend = registry.load("tests.honest:honest")
    turns: Counter[str] = Counter()
    for implementation in backend.implementations():
        turn = turns[implementation.operator.name] % 2
        turns[implementation.operator.name] += 1
        mine = of_operator(implementation)[turn:6:2]  # variants of an operator share its cases
        assert not identify(backend, implementation, mine, seconds=60), implementation


class Coarse(Growing):
    """Keys and values in float16 pass through bfloat16."""

    def step(self, state, query, key, value, **words):
        if key.dtype == torch.float16:
            key, value = key.bfloat16().half(), value.bfloat16().half()
        return super().step(state, query, key, value, **words)


def test_what_answers_rightly_explains_no_rounding() -> None:
    case = "cached/none/gqa2/f16/b2h4q9k9d8/c5.1.3"
    (found,) = of_user(Coarse, "cached", case)
    assert "Output is wrong in" in found.sentence  # no window, which the case lacks


def turned(query, position, *, theta=lambda i, D: 1e4 ** (-2 * i / D), angles="halves", pairs="halves",
           sign=1.0, to=None):  # fmt: skip
    """A rotation whose angles and pairs are halves or neighbours, with angles rounded to a dtype."""
    D = query.shape[-1]
    wide = torch.promote_types(query.dtype, torch.float32) if to is None else to
    angle = position[..., None].to(wide) * theta(torch.arange(D // 2).double(), D).to(wide) * sign
    angle = angle[:, None] if angle.ndim == 3 else angle
    angle = torch.cat([angle] * 2, -1) if angles == "halves" else angle.repeat_interleave(2, -1)
    cosine, sine = (f(angle).to(torch.promote_types(query.dtype, torch.float32))
                    for f in (torch.cos, torch.sin))  # fmt: skip
    if pairs == "halves":
        across = torch.cat([-query[..., D // 2 :], query[..., : D // 2]], -1)
    else:
        across = torch.stack([-query[..., 1::2], query[..., ::2]], -1).flatten(-2)
    return (query * cosine + across * sine).to(query.dtype)


@pytest.mark.parametrize(
    ("knobs", "sentence", "case"),
    [
        ({"angles": "neighbours"}, "Angles belong to neighbours 2i and 2i + 1, and halves", ROTARY),
        ({"pairs": "neighbours"}, "Angles belong to halves i and i + D/2, and neighbours",
         f"{ROTARY}/interleaved"),
        ({"theta": lambda i, D: 1e4 ** (-i / D)}, "The frequencies are base^(-i/D), expected", ROTARY),
        ({"theta": lambda i, D: 1e4 ** (-4 * i / D)}, "The frequencies are base^(-4i/D)", ROTARY),
        ({"to": torch.bfloat16}, "Angles are computed in bfloat16 before the sine and cosine.",
         "rotary/none/mha/bf16/b2h3q17k1d16/at4097"),
    ],
)  # fmt: skip
def test_rotations_are_read(knobs: dict[str, object], sentence: str, case: str) -> None:
    def function(query, position):
        return turned(query, position, **knobs)

    found = of_user(function, "rotary", case)
    assert sentence in found[0].sentence
    assert len(found) == 1


def test_right_rotations_are_told_nothing() -> None:
    for case in (ROTARY, "rotary/none/mha/bf16/b2h3q17k1d16/at4097"):
        assert not of_user(turned, "rotary", case)


def test_right_log_sum_exps_are_told_nothing() -> None:
    def function(outputs, lse):
        weights = lse.softmax(0).nan_to_num()[..., None].to(outputs.dtype)
        return (weights * outputs).sum(0), torch.logsumexp(lse, 0)

    assert not of_user(function, "merge", "merge/none/mha/f32/b2h3q5k2d8")


def test_a_key_of_the_own_segment_is_seen_too_early() -> None:
    (found,) = of_user(varlen.of_the_longest, "packed", MORE_KEYS)
    assert "Segment 0 of 4 sees key 3 of its own 5 too early" in found.sentence
    assert found.hint.startswith("a causal mask")


def test_a_missing_gradient_of_zeros_is_not_told() -> None:
    case = "merge/none/mha/f32/b2h3q5k1d8"
    assert not of_user(lambda outputs, lse: (outputs[0], lse[0]), "merge", case)


class Layer(torch.nn.Module):
    """Multi-head attention in torch, whose heads may be viewed and whose mask may be added."""

    def __init__(self, query_width, heads):
        super().__init__()
        self.heads, self.parts = heads, {}

    def load_attention(self, parameters):
        self.parts = {name: parameters[name] for name in list(parameters)}

    def forward(
        self, x, causal=False, valid=None, split=False, merged=False, projects=True, adds=False
    ):
        B, L, E = x.shape
        parts = []
        for name in ("query", "key", "value"):
            flat = (
                x @ self.parts[f"{name}_kernel"].reshape(E, -1)
                + self.parts[f"{name}_bias"].flatten()
            )
            right = flat.unflatten(2, (self.heads, -1)).transpose(1, 2)
            parts.append(flat.view(B, self.heads, L, -1) if split else right)
        query, key, value = parts
        shown = torch.ones(B, 1, L, L, dtype=torch.bool).tril(0 if causal else L)
        shown = shown if valid is None else shown & valid[:, None, None]
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores + shown.to(scores.dtype) if adds else scores.masked_fill(~shown, -torch.inf)
        out = scores.softmax(-1) @ value
        out = (out if merged else out.transpose(1, 2)).reshape(B, L, E)
        kernel = self.parts["output_kernel"].reshape(E, E)
        return out @ kernel + self.parts["output_bias"] if projects else out


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"split": True, "merged": True}, "Heads are split and merged by a view"),
        ({"projects": False}, "The output projection, kernel and bias, is not applied."),
        ({"adds": True}, "Hidden keys lose 1 of their score: the mask is added as 0 and 1."),
        ({}, ""),
    ],
)
def test_layers_are_composed_otherwise(knobs: dict[str, bool], sentence: str) -> None:
    class Wrong(Layer):
        def forward(self, x, causal=False, valid=None):
            return super().forward(x, causal, valid, **knobs)

    case = "multi-head/pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
    found = of_user(Wrong, "multi-head", case)
    assert [sentence in one.sentence for one in found] == [True] * bool(sentence)
