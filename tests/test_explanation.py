"""Explanations: what separates failing from passing cells is found, and nothing is made up."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.report import explanation, frames
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import everything
from tests.rows import cell, run


def judged(case: str, status: str = "pass", **fields: Any) -> CellRecord:
    """The record of a case of the grammar, with its facts."""
    parsed = Case.parse(case)
    known = {"operator": parsed.operator.name, "features": parsed.needs, "facts": parsed.facts}
    kind = {} if status == "pass" else {"kind": "value"}
    return cell(case, status=status, **{**known, **kind, **fields})


def separated(fails: list[str], passes: list[str]) -> str:
    """What is said of failing and passing cases of one check."""
    cells = [judged(case, "fail") for case in fails] + [judged(case) for case in passes]
    (group,) = explanation.failure_groups(frames.cells(run(*cells)))
    assert (len(group.cells), group.passes) == (len(fails), len(passes))
    return group.separation


def of_keys(*lengths: int, mask: str = "none", dtype: str = "f32") -> list[str]:
    return [f"sdpa/{mask}/mha/{dtype}/b2h3q5k{keys}d8" for keys in lengths]


@pytest.mark.seldom
def test_facts_tell_cases_apart_and_are_plain() -> None:
    told: dict[tuple, str] = {}
    for case in everything("full"):
        facts = case.facts
        assert all(isinstance(value, int | float | str | None) for value in facts.values())
        identity = (case.operator.name, getattr(case, "group", ""), case.dtype.name, *facts.items())
        assert told.setdefault(identity, case.id) == case.id


SIZES = (1, 5, 7, 31)
LONG = (33, 47, 65, 129)
DTYPES = ("f16", "bf16", "f32", "f64")
EMPTY = [f"sdpa/none/mha/f32/b2h3q{q}k{k}d8" for q, k in ((0, 5), (0, 7), (0, 9), (0, 33))]
CROSS = [f"sdpa/none/mha/f32/b1h1q{q}k{k}d8" for q, k in ((9, 5), (7, 3), (65, 33), (4, 2))]
SQUARE = [f"sdpa/none/mha/f32/b1h1q{q}k{k}d8" for q, k in ((5, 9), (33, 33), (3, 65), (4, 5))]
EQUAL = [f"sdpa/none/mha/f32/b2h3q{n}k{n}d8" for n in (4, 5, 7, 9, *LONG)]
CAPPED = {
    cap: [f"sdpa/none/mha/f32/b2h3q5k{k}d8/cap{cap}" for k in (7, 9)] for cap in ("5.0", "2.0")
}


@pytest.mark.parametrize(
    ("fails", "passes", "said"),
    [
        # A threshold of a size; few cells say nothing of sizes.
        (of_keys(*LONG), of_keys(*SIZES), "all 4 failures have Lk >= 33, none of 4 passes has"),
        (of_keys(1, 3, 5, 7), of_keys(15, 33, 47, 65),
         "all 4 failures have Lk <= 7, none of 4 passes has"),
        (of_keys(*LONG), of_keys(1, 5, 7), ""),
        ([x for dt in DTYPES for x in of_keys(33, dtype=dt)],
         [x for dt in DTYPES for x in of_keys(17, 47, dtype=dt)],
         "all 4 failures have Lk = 33, none of 8 passes has"),
        # Words come before sizes.
        (of_keys(*LONG, mask="causal"), of_keys(*SIZES),
         "all 4 failures have mask causal, none of 4 passes has"),
        (of_keys(7, 31, dtype="bf16"), of_keys(7, 31, 65),
         "both failures have dtype bf16, none of 3 passes has"),
        (of_keys(7, dtype="bf16") + of_keys(31, dtype="f16"),
         of_keys(7, 31) + of_keys(7, 31, dtype="f64"),
         "both failures have dtype bf16 or dtype f16, none of 4 passes has"),
        (of_keys(9, 31, 33, 47), of_keys(16, 32, 48, 64),
         "all 4 failures have Lk no multiple of 16, none of 4 passes has"),
        (CROSS, SQUARE, "all 4 failures have Lq > Lk, none of 4 passes has"),
        (CAPPED["5.0"], CAPPED["2.0"], "both failures have softcap 5.0, none of 2 passes has"),
        # Two conditions together, of four failures or more.
        (of_keys(33, 65, 129, 257, mask="causal"),
         of_keys(33, 65, 129, 257) + of_keys(1, 3, 5, 7, mask="causal"),
         "all 4 failures have mask causal and Lk >= 33, none of 8 passes has both"),
        (of_keys(33, 65, mask="causal"), of_keys(33, 65, 129) + of_keys(1, 7, mask="causal"),
         "both failures have mask causal, as have 2 of 5 passes"),
        # Nothing is made up.
        (of_keys(7, 33), of_keys(1, 9, 31, 65), ""),
        (of_keys(7, 9), [], "no cell of the check passes"),
        (of_keys(*LONG), EMPTY, "no cell of the check that has elements passes"),
        (EQUAL[4:], EQUAL[:4],
         "all 4 failures have Lq >= 33, none of 4 passes has; so with Lk >= 33"),
    ],
)  # fmt: skip
def test_what_separates_failures_from_passes_is_said(
    fails: list[str], passes: list[str], said: str
) -> None:
    assert separated(fails, passes) == said


def test_cells_of_other_checks_and_implementations_are_left_out() -> None:
    fails, passes = of_keys(33, 65, 129, 257), of_keys(1, 5, 7, 9)
    cells = [judged(case, "fail") for case in fails] + [judged(case) for case in passes]
    others = [judged(case, implementation="jax:jax-nn") for case in fails]
    others += [judged(case, check="contract") for case in fails]
    others += [judged(case, "unsupported") for case in of_keys(257)]
    (group,) = explanation.failure_groups(frames.cells(run(*cells, *others)))
    assert group.separation == "all 4 failures have Lk >= 33, none of 4 passes has"
    assert (group.check, group.kind, group.implementation) == ("values", "value", "torch:sdpa")


def test_the_smallest_case_comes_first() -> None:
    cases = [
        "sdpa/none/mha/f32/b2h3q5k257d8",
        "sdpa/causal/mha/f32/b1h1q7k33d8/bias.qk",
        "sdpa/causal/mha/f32/b1h1q7k33d8",
        "sdpa/none/mha/f32/b2h3q5k33d80",
    ]
    frame = frames.cells(run(*(judged(case, "fail") for case in cases)))
    (group,) = explanation.failure_groups(frame)
    assert frame["case"][list(group.cells)].tolist() == [cases[2], cases[1], cases[0], cases[3]]
    shown = explanation.failure_table(frame).iloc[0]
    assert (shown["case"], shown["failures"], shown["passes"]) == (cases[2], 4, 0)
