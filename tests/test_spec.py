"""Spec: ids and cases determine each other, levels nest and have a table that explains them, covering
arrays cover; a block of a mask is the block of its dense form (what masks say, frozen bounds see)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec import catalogue
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import Selection, cases_of
from attention_conformance.suite.spec.covering import Row, Tuple, feasible, pairs_of
from attention_conformance.suite.spec.levels import DTYPES_AT, SHARES, Covering
from attention_conformance.suite.spec.masks import Causal, Tree, parse_mask
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS, WORDS
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import LEVELS

PARTS = ("cases", "gradients", "compiled", "compiled_gradients")
POOLS = {
    "cases": catalogue.cases,
    "gradients": catalogue.gradient_cases,
    "compiled": catalogue.compiled_cases,
}
COVERINGS = {
    f"{operator}-{part}": (array, cases)
    for operator in OPERATORS.values()
    for part, cases in POOLS.items()
    for ask in getattr(operator.asks, part)
    for array in ask.ids
    if isinstance(array, Covering)
}
covered = pytest.mark.parametrize(("covering", "cases"), COVERINGS.values(), ids=COVERINGS)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_levels_nest(operator: Operator) -> None:
    for part in PARTS:
        asks = getattr(operator.asks, part)
        smoke, standard, full = (cases_of(*asks)(level) for level in LEVELS)
        assert set(smoke) <= set(standard) <= set(full), part
        assert len(set(full)) == len(full), part
    assert cases_of(*operator.asks.cases)("smoke"), "an operator that nothing is asked of"
    differentiated = bool(cases_of(*operator.asks.gradients)("smoke"))
    forward_only = {"cached", "quantized-write"}
    assert differentiated == (operator.name not in forward_only), (
        "caches serve, and are not trained"
    )


@pytest.mark.parametrize("level", ["smoke", "standard"])
def test_the_cases_of_some_operators_are_those_among_all(level: str) -> None:
    """In the same order, and with the same reasons."""
    names = ("sdpa", "cached", "multi-head")
    for check in all_checks().values():
        for selection in (check.cases, check.compiled):
            if isinstance(selection, Selection):
                wanted = [x for x in selection.why(level).items() if x[0].operator.name in names]
                assert [*selection.why(level, names).items()] == wanted, check.name


def test_ids_are_unique_and_parse_back() -> None:
    catalogued = catalogue.everything("full")
    assert len({case.id for case in catalogued}) == len(catalogued)
    problems = {case.id: case for check in all_checks().values() for case in check.cases("full")}
    compiled = [check.compiled("full") for check in all_checks().values() if check.compiled]
    problems |= {case.id: case for cases in compiled for case in cases}
    for case in {**problems, **{case.id: case for case in catalogued}}.values():
        assert set(case.needs) <= WORDS.keys()
        if isinstance(case, Case):
            assert Case.parse(case.id) == case
            assert catalogue.find(case.id) == case
            assert OPERATORS[case.id.split("/")[0]] is case.operator
        else:
            assert catalogue.find(case.id) is case
    assert {case.operator for case in problems.values()} == set(OPERATORS.values())


@covered
def test_covering_arrays_cover_every_pair_that_makes_sense(
    covering: Covering, cases: Callable[[str], Sequence[Case]]
) -> None:
    pairs = feasible(covering.axes, covering.valid, pairs_of(covering.axes))
    assert not not_shown(covering.rows, pairs)
    for row in covering.rows:
        for a in row:
            for b in row:
                if a != b:
                    assert covering.valid({a: row[a], b: row[b]})
    assert set(covering.ids("standard")) <= {case.id for case in cases("standard")}


def not_shown(rows: Iterable[Row], tuples: Iterable[Tuple]) -> list[Tuple]:
    """The tuples of axis values that stand together in no row."""
    return [each for each in tuples if not any(set(each) <= row.items() for row in rows)]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sdpa/causal/mha", "expected sdpa/MASK/HEADS/DTYPE/SIZES"),
        ("sdpb/causal/mha/f32/b1h1q1k1d1", "unknown operator 'sdpb'"),
        ("sdpa/diagonal/mha/f32/b1h1q1k1d1", "unknown mask 'diagonal'"),
        ("sdpa/none/mha/f8/b1h1q1k1d1", "unknown dtype 'f8'"),
        ("sdpa/none/mha/f32/b1h1q1", "bad sizes"),
        ("sdpa/none/four/f32/b1h1q1k1d1", "bad heads"),
        ("sdpa/none/gqa2/f32/b1h3q1k1d1", "multiple"),
        ("sdpa/none/mha/f32/b1h1q1k1d1/loud", "unknown option 'loud'"),
        ("sdpa/none/mha/f32/b1h1q1k1d1/drop2.0", "rate must be between 0 and 1, got 'drop2.0'"),
        ("multi-head/none/mha/f32/b1h1q1k1d1/e1.1.1.1/drop-0.5", "rate must be between 0 and 1"),
        ("sdpa/none/mha/f32/b1h1q1k1d1/bias.qk/slopes", "ask only one of both"),
        ("sdpa/none/mha/f32/b1h1q1k1d1/nobias", "unknown option 'nobias'"),
        (
            "sdpa/none/mha/f32/b1h1q1k1d1/scale0.50",
            "expected 'sdpa/none/mha/f32/b1h1q1k1d1/scale0.5'",
        ),
        ("multi-head/none/mha/f32/b1h1q1k1d1", "expected multi-head/MASK/HEADS/DTYPE/SIZES/WIDTHS"),
        ("multi-head/none/mha/f32/b1h1q1k1d1/w1.1.1.1", "bad widths 'w1.1.1.1'"),
        ("dot/none/mha/f32/b1h2q1k1d8/e8.8.8.8", "needs the size 1, got query heads: 2"),
        ("packed/none/mha/f32/b3h4q24k24d8", "needs lengths of segments, as in seg5.7.12"),
        (
            "packed/none/mha/f32/b3h4q24k24d8/seg5.7.11",
            "queries: expected 3 with 24, got 3 with 23",
        ),
        ("packed/none/mha/f32/b2h4q4k9d8/seg2.2x4.6", "keys: expected 2 with 9, got 2 with 10"),
        ("packed/none/mha/f32/b2h4q4k4d8/seg2.2x4.0/causalbr", "every query needs a key"),
        ("packed/none/mha/f32/b1h4q4k4d8/seg4/causalbr", "causal, not causalbr"),
        ("packed/none/mha/f32/b1h4q0k0d8/seg0", "needs a query and a key"),
        ("rotary/none/mha/f32/b2h3q17k1d15", "got 15"),
        ("rotary/none/mha/f32/b2h3q17k1d16/rot18", "at most 16 here, got 18"),
        ("rotary/none/mha/f32/b2h3q17k1d16/rot2/ntk", "needs at least two frequencies"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4.4/self", "needs one size, got queries: 3"),
        ("additive/none/mha/f32/b2h1q3k4d2/e4.4.2.2/single", "size 1, got queries: 3"),
        ("layer-norm/none/mha/f32/b2h1q3k3d5/e5.5.5.5/self/train", "leave out the option train"),
    ],
)
def test_bad_ids_say_what_is_wrong(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        Case.parse(text)


def selections() -> list[Selection]:
    sources = [
        source for check in all_checks().values() for source in (check.cases, check.compiled)
    ]
    return [source for source in sources if isinstance(source, Selection)]


def test_every_row_of_the_table_is_used() -> None:
    reasons = {
        reason.partition(":")[0]
        for selection in selections()
        for reasons in selection.why("full").values()
        for reason in reasons.split("; ")
    }
    assert DTYPES_AT.keys() <= reasons
    assert {f"share {name}" for name in SHARES} <= reasons


S = Sizes(B=3, H=2, Hkv=2, Lq=7, Lk=5, D=4, Dv=4)


def test_every_case_of_an_operator_says_why_it_stands() -> None:
    pools = "cases", "gradients", "compiled", "compiled_gradients"
    asks = [ask for one in OPERATORS.values() for pool in pools for ask in getattr(one.asks, pool)]
    assert [ask.ids for ask in asks if not ask.why and [*ask.patterns()]] == []


def test_trees_attend_their_paths_and_all_keys_before() -> None:
    tree = Tree((1, 1, 2, 1, 3))
    assert tree.parents(7).tolist() == [-1, 0, 0, 2, 1, 4, 5]
    assert tree.depths(7).tolist() == [0, 1, 1, 2, 2, 3, 4]
    behind = tree.dense(Sizes(B=1, H=1, Hkv=1, Lq=4, Lk=6, D=4, Dv=4)).astype(int)
    assert behind.tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]
    assert Tree((3,)).parents(4).tolist() == [-1, -1, -1, 0]
    for sizes in (S, Sizes(B=1, H=1, Hkv=1, Lq=5, Lk=9, D=4, Dv=4)):
        chain = Tree((1,)).dense(sizes)
        assert np.array_equal(chain, Causal(bottom_right=True).dense(sizes))
    assert parse_mask("tree11213") == tree
    assert tree.dense(S, rows=slice(3, 5)).tolist() == tree.dense(S)[3:5].tolist()
