"""Identification of faults of the catalogue, most of them of other operators than plain attention, and of
honest variants, which are told nothing."""

from __future__ import annotations

import pytest

from backends import registry
from backends.protocol import Implementation
from suite.judge.diagnosis.identify import identify
from suite.spec.case import Case
from suite.spec.catalogue import cases

OTHERS = (
    ("value-heads-tiled", "Query head 1 reads value head 1, expected 0: key/value heads are tiled",
     "sdpa/causal/gqa2/f32/b2h6q17k23d8"),
    ("mask-multiplied", "The score of hidden keys is 0, expected -inf.",
     "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/dense"),
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
    ("last-mask-alone", "is ignored.", "masked/causal+pad/mha/f32/b2h1q5k9d8v6/e8.8.6.6/head"),
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
    ("packed-aligned-first", "The causal mask is aligned top-left in every segment.",
     "packed/none/gqa2/f32/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"),
    ("packed-heads-by-turns", "Key/value heads are tiled",
     "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal"),
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
    backend = registry.load("suite.faults:mutants")
    (wrong,) = (i for i in backend.implementations() if i.name == name)
    found = identify(backend, wrong, [Case.parse(case)], seconds=60)
    assert sentence in found[0].sentence


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
