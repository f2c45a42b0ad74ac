"""Identification of faults of the catalogue, most of them of other operators than plain attention, and of
honest variants, which are told nothing."""

from __future__ import annotations

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
PAGED = "paged/none/gqa2/f32/b3h4q9k24d8/seg1.3.5x7.12.5/causal"
LATENT = "latent/causalbr/mha/f32/b2h3q4k9d8v6"
MORE_KEYS = "packed/none/gqa2/f32/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"
TILED = "quantized/none/gqa2/f32/b1h4q3k9d160v130/e4m3/pertile/causal"
LATENT_CODES = "latent/causalbr/mha/f32/b2h3q4k9d8v6/r160e4/e4m3"
WRITES = "quantized/none/gqa2/f32/b2h4q3k17d8/perhead/causal/writes"
QUANTIZED = "quantized/none/gqa2/f32/b2h4q3k17d8/perhead/causal"

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
    ("split-size-first", "Heads and components of the projected query and key and value",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("merge-size-first", "Heads and components are interleaved before the output projection.",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("scale-of-model", "of the width of the query, expected",
     "multi-head/pad/mha/f32/b1h4q7k7d3/e12.12.12.12/self/single/average"),
    ("layer-causal-sees-next", "A causal query sees the next key",
     "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self"),
    ("last-mask-alone", "is ignored.", "sdpa/causal+pad/gqa2/bf16/b2h4q11k9d6/bias.qk/scale0.3"),
    ("variance-unbiased", "The variance is divided by n - 1",
     "layer-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self"),
    ("gains-taken-for-constants", "The gradient of the query gain is zero.",
     "multi-head/pad/mha/f32/b2h3q5k9d4/e12.12.12.12/qknorm/eps1e-06"),
    ("rotary-pairs-otherwise", "Pairs are components 2i and 2i + 1, expected components i and i + "
                               "D/2.", "rotary/none/mha/f32/b2h3q17k1d16"),
    ("rotary-backwards", "the angle has the other sign", "rotary/none/mha/f32/b2h3q17k1d16"),
    ("rotary-off-by-one", "Position p is rotated as position p + 1.",
     "rotary/none/mha/f32/b2h3q17k1d16"),
    ("rotary-base-ignored", "The base of the frequencies is 10000, expected 500000.",
     "rotary/none/mha/f32/b2h3q17k1d16/base500000.0/at1000000"),
    ("packed-keys-end-later", "which belongs to another segment",
     "packed/none/gqa2/f32/b5h4q5k57d8/seg1.1.1.1.1x17.8.16.1.15/causalbr"),
    ("packed-keys-end-earlier", "does not see key 4 of its own 5",
     "packed/none/mha/f32/b3h4q24k24d8/seg5.7.12"),
    ("packed-as-one", "Boundaries of segments are ignored",
     "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal"),
    ("packed-aligned-first", "The causal mask is aligned top-left in every segment.", MORE_KEYS),
    ("packed-heads-by-turns", "Key/value heads are tiled",
     "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal"),
    ("paged-table-of-another", "A sample reads the pages of the next sample.", PAGED),
    ("paged-slot-late", "Every key is read one slot late.", PAGED),
    ("paged-last-page-whole", "The last page of a sample is attended to its end.", PAGED),
    ("paged-layout-mistaken", "Heads and slots of a page are exchanged",
     "paged/none/gqa2/f32/b3h4q9k24d8/seg1.3.5x7.12.5/hnd/causal"),
    ("write-negative-wraps", "slots counted from the end of the pool",
     "paged-write/none/mha/f32/b3h2q9k24d8/seg1.3.5x7.12.5/skipped"),
    ("write-values-forgotten", "Values are not written.",
     "paged-write/none/mha/f32/b3h2q9k24d8/seg1.3.5x7.12.5"),
    ("paged-heads-in-turn", "Key/value heads are tiled, expected each repeated for its group.",
     "paged/none/gqa2/f32/b3h4q9k24d8/seg1.3.5x7.12.5/causal"),
    ("cached-mask-of-the-chunk", "The causal mask is aligned at the first token of a chunk.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3"),
    ("cached-chunk-sees-itself", "attend the whole chunk", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3"),
    ("cached-frozen", "Only the first chunk is kept.", "cached/none/mha/f32/b3h2q8k20d8/c1.1.1.1.4"),
    ("cached-window-of-decoding", "In steps of one token the window sees one key less.",
     "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8"),
    ("cached-values-stay", "Keys are reordered, and values are not.",
     "cached/none/mha/f32/b3h2q8k20d8/c3.pick200.1.4"),
    ("cached-documents-together", "Tokens attend earlier documents of their sample.",
     "cached/none/mha/f32/b3h2q8k20d8/c1+2.1.0+4"),
    ("cached-documents-of-the-chunk", "Later chunks of a document attend the documents before it.",
     "cached/none/mha/f32/b3h2q8k20d8/c1+2.1.0+4"),
    ("cached-rotary-anew", "The positions of a rotation begin at 0 in every chunk.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/rot.halves"),
    ("cached-rotary-of-keys-alone", "and queries by their places in the chunk.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/rot.halves"),
    ("cached-rotary-of-queries-later", "Queries are rotated by positions behind their chunk.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/rot.halves"),
    ("cached-rotary-of-slots", "Positions of a rotation begin at 0 again once the ring went round.",
     "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8/pad5.0.12/rot.interleaved"),
    ("cached-rotary-counts-on", "The positions of a rotation count tokens that have left the cache, too.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.back2.1.3/rot.interleaved"),
    ("cached-rotary-padded-once", "by positions behind the left padding, and keys by their slots.",
     "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8/pad5.0.12/rot.interleaved"),
    ("cached-rotated-twice", "Keys in the cache are rotated again when they are read.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/rot.halves"),
    ("cached-padding-attended", "Left padding is attended.",
     "cached/none/mha/f32/b3h2q8k20d8/c1.3.1.3/pad5.0.12"),
    ("cached-siblings-seen", "A node attends all nodes of smaller depth.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c3.tree1121.keep3.2"),
    ("cached-parent-dropped", "A node does not attend its parent.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c3.tree1121.keep3.2"),
    ("cached-keeps-the-first-nodes", "Of a tree the first nodes stay, as many as the path has.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c3.tree1121.keep3.2"),
    ("cached-keeps-one-path", "All samples keep the path of sample 0.",
     "cached/none/mha/f32/b3h2q8k20d8/c1.tree112.keep2x0.4"),
    ("cached-depth-is-the-index", "Distances in a tree count nodes, and not their depths.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c1.tree11213.keep4.3/slopes"),
    ("cached-reset-of-all", "A reset of some samples is one of all.",
     "cached/none/mha/f32/b3h2q8k20d8/c2.back2of0.3of1.resetof2.3of20.3"),
    ("cached-rollback-of-all", "A rollback of some samples is one of all.",
     "cached/none/mha/f32/b3h2q8k20d8/c2.back2of0.3of1.resetof2.3of20.3"),
    ("cached-sinks-once", "Only the first chunk has sinks.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/win3/cap2.0/sinks/slopes/scale0.3"),
    ("cached-sink-of-every-part", "The sinks count 3 times.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/win3/cap2.0/sinks/slopes/scale0.3"),
    ("split-empty-part-kept", "no key keeps the answer of the sample before.",
     PAGED),
    ("split-lse-in-bfloat16", "Log-sum-exps of parts of the keys are rounded to bfloat16.", PAGED),
    ("split-empty-part-weighs", "a sample has no key weighs as if its log-sum-exp were 0", PAGED),
    ("split-mask-of-the-first-part", "the mask is that of the first part", PAGED),
    ("quantized-key-scale-for-values", "Values have the scales of keys.", QUANTIZED),
    ("quantized-scale-of-the-next-head", "Every head has the scales of the next head.", QUANTIZED),
    ("quantized-scale-of-the-next-token", "Every token has the scale of the next token.",
     "quantized/none/gqa2/f32/b2h4q3k17d8/pertoken/zero/causal"),
    ("quantized-difference-wraps", "Codes minus zero points wrap around in 8 bits.",
     "quantized/none/mqa/f32/b3h2q1k23d8v6/perchannel/zero"),
    ("quantized-bias-of-another-format", "an exponent bias larger by 1",
     "quantized/none/mqa/f32/b3h2q1k23d8v6/e4m3/perchannel"),
    ("quantized-new-tokens-unrounded", "New tokens are attended before they become codes.", WRITES),
    ("quantized-new-tokens-unrounded", "New tokens are attended before they become codes.",
     "quantized/none/gqa2/f32/b1h4q17k17d8/e4m3/perhead/causal/writes"),
    ("quantized-stored-too-late", "stored behind the attention", WRITES),
    ("quantized-stored-one-slot-early", "New tokens are stored one slot early.", WRITES),
    ("quantized-stored-in-the-old-range", "clipped to the range of the codes before.", WRITES),
    ("quantized-stored-with-key-scales", "Values have the scales of keys.", WRITES),
    ("quantized-stored-with-the-scale-before", "Every token has the scale of the token before.",
     "quantized/none/gqa2/f32/b2h4q3k17d8/pertoken/zero/causal/writes"),
    ("quantized-value-scale-forgotten", "The scales of values are not used.", QUANTIZED),
    ("quantized-zero-after-the-scale", "Zero points are subtracted behind the scale.",
     "quantized/none/mqa/f32/b3h2q1k23d8v6/perchannel/zero"),
    ("quantized-unsigned", "Codes are read as unsigned numbers.", WRITES),
    ("quantized-tiles-of64", "A tile has 64 components.", TILED),
    ("quantized-scale-of-the-first-tile", "All tiles have the scale of tile 0.", TILED),
    ("quantized-last-tile-forgotten", "The last tile is not multiplied by its scale.", TILED),
    ("latent-last-tile-forgotten", "The last tile is not multiplied by its scale.", LATENT_CODES),
    ("latent-rotary-key-scaled", "Rotary keys are multiplied by the scale", LATENT_CODES),
    ("quantized-pages-of-the-next-sample", "The pages are those of the next sample.",
     "quantized/none/gqa2/f32/b2h4q3k17d8/perhead/causal/page4"),
    ("quantized-scales-in-order", "Scales are taken in the order of the pool",
     "quantized/none/gqa2/f32/b2h4q3k17d8/e4m3/pertoken/causal/page3"),
    ("quantized-stored-in-the-page-before", "New tokens are stored in the page before theirs.",
     "quantized/none/gqa2/f32/b2h4q3k17d8/pertoken/causal/writes/page4"),
    ("quantized-page-overwritten", "behind the last token of a page are set to 0.",
     "quantized/none/gqa2/f32/b2h4q3k17d8/pertoken/causal/writes/page4"),
    ("latent-rotary-keys-in-order", "Rotary keys are taken in the order of the pool",
     f"{LATENT_CODES}/page4"),
    ("latent-scales-in-order", "Scales are taken in the order of the pool", f"{LATENT_CODES}/page4"),
    ("cached-codes-of-four-bits", "times what codes in int8 allow.",
     "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3"),
    ("latent-scale-roughly", "The scale is 1.01 times the right one.", LATENT),
    ("codes-tiles-of64", "A tile has 64 components.",
     "quantized-write/none/mha/f32/b1h2q5k5d160v130/pertile"),
    ("codes-cut-off", "Numbers are rounded towards 0.", "quantized-write/none/mha/f32/b3h2q9k9d8v6/e5m2"),
    ("codes-cut-off", "Numbers are rounded towards 0.",
     "quantized-write/none/mha/f32/b2h2q17k17d8/perhead"),
    ("codes-clipped-to-early-tokens", "clipped to the range of the first tokens",
     "quantized-write/none/mha/f32/b2h2q17k17d8/perhead"),
    ("codes-wrap", "Numbers beyond the range wrap around.",
     "quantized-write/none/mha/f32/b2h2q17k17d8/perhead/zero/beyond"),
    ("latent-scale-of-the-latent", "1/sqrt(R + E), of latent and rotary key", LATENT),
    ("latent-rotary-dropped", "The rotary part of the scores is left out.", LATENT),
    ("latent-queries-by-another-head", "projected by the matrix of the head before.", LATENT),
    ("latent-values-are-keys", "Values are projected by the matrix of the keys.", LATENT),
    ("latent-projection-turned", "Heads and components of the projection of keys are", LATENT),
    ("latent-last-key-dropped", "The last key is not attended.", LATENT),
    ("latent-causal-at-the-first-key", "The causal mask is aligned top-left", LATENT),
    ("latent-absorbed-in-float16", "Projected queries are rounded to float16.", LATENT),
    ("latent-halves-averaged", "The answers of both halves of the keys are averaged.", LATENT),
    ("latent-lse-without-rotary", "Of what is returned only the lse is wrong.",
     "latent/causal/mha/f32/b2h4q7k7d8/r32e8/lse"),
    ("merge-without-rescaling", "All parts weigh the same: log-sum-exps are not used.",
     "merge/none/mha/f32/b2h3q5k2d8"),
    ("merge-by-base-two", "Parts weigh 2^lse, expected e^lse.", "merge/none/mha/f32/b2h3q5k2d8"),
    ("merge-of-the-first-head",
     "All heads have the log-sum-exps of head 0.", "merge/none/mha/f32/b2h3q5k2d8"),
    ("merge-lse-of-the-largest", "Of what is returned only the lse is wrong.",
     "merge/none/mha/f32/b2h3q5k2d8"),
)  # fmt: skip
"""Faults of the catalogue, what is said of them, and a case that they fail."""


@pytest.mark.parametrize(("name", "sentence", "case"), OTHERS)
def test_other_operators_are_read(name: str, sentence: str, case: str) -> None:
    backend = registry.load("attention_conformance.suite.faults:mutants")
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
    backend = registry.load("attention_conformance.suite.faults:mutants")
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
    for implementation in backend.implementations():
        mine = of_operator(implementation)[:6]
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
        ({"sign": -1.0}, "Pairs are rotated the other way: the angle has the other sign.", ROTARY),
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


@pytest.mark.parametrize(
    ("joined", "sentence"),
    [
        (lambda lse: lse.sum(0), "The merged log-sum-exp is the sum of the parts' log-sum-exps."),
        (lambda lse: lse.mean(0), "The merged log-sum-exp is the mean of the parts'"),
        (lambda lse: torch.logsumexp(lse, 0), ""),
    ],
)
def test_merged_log_sum_exps_are_read(joined: Callable[..., Any], sentence: str) -> None:
    def function(outputs, lse):
        weights = lse.softmax(0).nan_to_num()[..., None].to(outputs.dtype)
        return (weights * outputs).sum(0), joined(lse)

    found = of_user(function, "merge", "merge/none/mha/f32/b2h3q5k2d8")
    assert [sentence in one.sentence for one in found] == [True] * bool(sentence)


def test_a_key_of_the_own_segment_is_seen_too_early() -> None:
    (found,) = of_user(varlen.of_the_longest, "packed", MORE_KEYS)
    assert "Segment 0 of 4 sees key 3 of its own 5 too early" in found.sentence
    assert found.hint.startswith("a causal mask")


def test_a_missing_gradient_of_zeros_is_not_told() -> None:
    case = "merge/none/mha/f32/b2h3q5k1d8"
    assert not of_user(lambda outputs, lse: (outputs[0], lse[0]), "merge", case)


def test_a_scale_of_zero_is_told_from_any_scale() -> None:
    class Falsy(Growing):
        def step(self, state, query, key, value, scale=None):
            return super().step(state, query, key, value, scale=scale or None)

    found = of_user(Falsy, "cached", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/scale0.0")
    assert [one.sentence for one in found] == ["A scale of 0 is replaced by the default one."]


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
        ({"split": True}, "Heads are split by a view, expected a transpose of heads and rows."),
        ({"merged": True}, "Heads are merged by a view"),
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
