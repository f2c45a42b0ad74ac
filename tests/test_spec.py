"""Spec: ids and cases determine each other, levels have a table that explains them, covering
arrays cover; a block of a mask is the block of its dense form (what masks say, frozen bounds see)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec import catalogue
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import Selection
from attention_conformance.suite.spec.covering import Row, Tuple, feasible
from attention_conformance.suite.spec.levels import DTYPES_AT, SHARES, Covering
from attention_conformance.suite.spec.masks import Causal, Tree, parse_mask
from attention_conformance.suite.spec.operators import OPERATORS, WORDS
from attention_conformance.suite.spec.operators.sdpa_paths import BY_MASK, ByClass
from attention_conformance.suite.spec.sizes import Sizes

POOLS = {
    "cases": catalogue.cases,
    "gradients": catalogue.gradient_cases,
    "compiled": catalogue.compiled_cases,
}
COVERINGS = [
    pytest.param(array, cases, id=f"{operator}-{part}")
    for operator in OPERATORS.values()
    for part, cases in POOLS.items()
    for ask in getattr(operator.asks, part)
    for array in ask.ids
    if isinstance(array, Covering)
]
covered = pytest.mark.parametrize(("covering", "cases"), COVERINGS)


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
def test_covering_arrays_cover_every_target_that_makes_sense(
    covering: Covering, cases: Callable[[str], Sequence[Case]]
) -> None:
    """The targets are all pairs, and some triples. Two arrays together have the targets of their
    directions."""
    tuples = feasible(covering.axes, covering.valid, covering.targets)
    rows = BY_MASK.rows if isinstance(covering, ByClass) else covering.rows
    assert not not_shown(rows, tuples)
    for row in covering.rows:
        for a in row:
            for b in row:
                if a != b:
                    assert covering.valid({a: row[a], b: row[b]})
    assert set(covering.ids("standard")) <= {case.id for case in cases("standard")}


def not_shown(rows: Iterable[Row], tuples: Iterable[Tuple]) -> list[Tuple]:
    """The tuples of axis values that stand together in no row."""
    return [each for each in tuples if not any(set(each) <= row.items() for row in rows)]


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
