"""Explanations: what separates failing from passing cells is found, and nothing is made up."""

from __future__ import annotations

from typing import Any

import pandas as pd
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
    (group,) = explanation.groups(frames.cells(run(*cells)))
    assert (len(group.cells), group.passes) == (len(fails), len(passes))
    return group.separation


def of_keys(*lengths: int, mask: str = "none", dtype: str = "f32") -> list[str]:
    return [f"sdpa/{mask}/mha/{dtype}/b2h3q5k{keys}d8" for keys in lengths]


def test_facts_tell_cases_apart_and_are_plain() -> None:
    told: dict[tuple, str] = {}
    for case in everything("full"):
        facts = case.facts
        assert all(isinstance(value, int | float | str | None) for value in facts.values())
        identity = (case.operator.name, getattr(case, "group", ""), case.dtype.name, *facts.items())
        assert told.setdefault(identity, case.id) == case.id


def test_the_facts_of_a_case() -> None:
    case = Case.parse("sdpa/pad+win4.0/mqa/f32/b2h3q17k23d8v12/bias.inf/cap5.0/onehot/dense")
    sizes = {"B": 2, "H": 3, "Hkv": 1, "Lq": 17, "Lk": 23, "D": 8, "Dv": 12}
    assert list(case.facts)[:7] == list(sizes)
    assert case.facts == sizes | {
        "heads": "mqa", "mask": "pad+win4.0", "bias": "inf", "scale": None, "softcap": 5.0,
        "sinks": False, "lse": False, "alibi_slopes": False, "logit_scale": False, "rate": 0.0,
        "training": False, "recipe": "onehot", "axis_order": "bhld", "form": "dense",
    }  # fmt: skip


def test_a_threshold_of_a_size() -> None:
    said = separated(of_keys(33, 47, 65, 129), of_keys(1, 5, 7, 31))
    assert said == "all 4 failures have Lk >= 33, none of 4 passes has"
    said = separated(of_keys(1, 3, 5, 7), of_keys(15, 33, 47, 65))
    assert said == "all 4 failures have Lk <= 7, none of 4 passes has"


@pytest.mark.parametrize(
    ("fails", "passes"), [((33, 47, 65), (1, 5, 7, 31)), ((33, 47, 65, 129), (1, 5, 7))]
)
def test_sizes_of_few_cells_say_nothing(fails: tuple[int, ...], passes: tuple[int, ...]) -> None:
    assert separated(of_keys(*fails), of_keys(*passes)) == ""


def test_words_come_before_sizes() -> None:
    said = separated(of_keys(33, 47, 65, 129, mask="causal"), of_keys(1, 5, 7, 31))
    assert said == "all 4 failures have mask causal, none of 4 passes has"


def test_passes_without_elements_separate_nothing() -> None:
    empty = [f"sdpa/none/mha/f32/b2h3q{q}k{k}d8" for q, k in ((0, 5), (0, 7), (0, 9), (0, 33))]
    fails = of_keys(33, 47, 65, 129)
    assert separated(fails, empty) == "no cell of the check that has elements passes"


def test_a_size_within_others_is_named() -> None:
    fails = [x for dtype in ("f16", "bf16", "f32", "f64") for x in of_keys(33, dtype=dtype)]
    passes = [x for dtype in ("f16", "bf16", "f32", "f64") for x in of_keys(17, 47, dtype=dtype)]
    assert separated(fails, passes) == "all 4 failures have Lk = 33, none of 8 passes has"


@pytest.mark.parametrize(
    ("fails", "passes", "has"),
    [
        (of_keys(7, 31, mask="causal"), of_keys(7, 31, 65), "mask causal"),
        (of_keys(7, 31, dtype="bf16"), of_keys(7, 31, 65), "dtype bf16"),
        (
            of_keys(7, dtype="bf16") + of_keys(31, dtype="f16"),
            of_keys(7, 31) + of_keys(7, 31, dtype="f64"),
            "dtype bf16 or dtype f16",
        ),
        (of_keys(9, 31, 33, 47), of_keys(16, 32, 48, 64), "Lk no multiple of 16"),
        (
            [f"sdpa/none/mha/f32/b1h1q{q}k{k}d8" for q, k in ((9, 5), (7, 3), (65, 33), (4, 2))],
            [f"sdpa/none/mha/f32/b1h1q{q}k{k}d8" for q, k in ((5, 9), (33, 33), (3, 65), (4, 5))],
            "Lq > Lk",
        ),
        (
            [f"sdpa/none/mha/f32/b2h3q5k{k}d8/cap5.0" for k in (7, 9)],
            of_keys(7, 9),
            "feature softcap",
        ),
        (
            [f"sdpa/none/mha/f32/b2h3q5k{k}d8/cap5.0" for k in (7, 9)],
            [f"sdpa/none/mha/f32/b2h3q5k{k}d8/cap2.0" for k in (7, 9)],
            "softcap 5.0",
        ),
    ],
)  # fmt: skip
def test_words_and_comparisons(fails: list[str], passes: list[str], has: str) -> None:
    both = "both" if len(fails) == 2 else f"all {len(fails)}"
    assert (
        separated(fails, passes) == f"{both} failures have {has}, none of {len(passes)} passes has"
    )


def test_two_conditions_together() -> None:
    fails = of_keys(33, 65, 129, 257, mask="causal")
    said = separated(fails, of_keys(33, 65, 129, 257) + of_keys(1, 3, 5, 7, mask="causal"))
    assert said == "all 4 failures have mask causal and Lk >= 33, none of 8 passes has both"


def test_two_failures_are_separated_by_one_condition_alone() -> None:
    fails = of_keys(33, 65, mask="causal")
    said = separated(fails, of_keys(33, 65, 129) + of_keys(1, 7, mask="causal"))
    assert said == "both failures have mask causal, as have 2 of 5 passes"


def test_what_some_passes_share_is_said() -> None:
    fails = of_keys(33, 47, 129) + of_keys(65, dtype="bf16")
    said = separated(fails, of_keys(1, 2, 3, 4, 5) + of_keys(47, dtype="bf16"))
    assert said == "all 4 failures have Lk >= 33, as has 1 of 6 passes"


def test_nothing_is_made_up() -> None:
    assert separated(of_keys(7, 33), of_keys(1, 9, 31, 65, dtype="f32")) == ""
    assert separated(of_keys(7, 9), []) == "no cell of the check passes"


def test_sizes_that_separate_alike_are_both_named() -> None:
    cases = [f"sdpa/none/mha/f32/b2h3q{n}k{n}d8" for n in (4, 5, 7, 9, 33, 47, 65, 129)]
    said = separated(cases[4:], cases[:4])
    assert said == "all 4 failures have Lq >= 33, none of 4 passes has; so with Lk >= 33"


def test_cells_of_other_checks_and_implementations_are_left_out() -> None:
    fails, passes = of_keys(33, 65, 129, 257), of_keys(1, 5, 7, 9)
    cells = [judged(case, "fail") for case in fails] + [judged(case) for case in passes]
    others = [judged(case, implementation="jax:jax-nn") for case in fails]
    others += [judged(case, check="contract") for case in fails]
    others += [judged(case, "unsupported") for case in of_keys(257)]
    (group,) = explanation.groups(frames.cells(run(*cells, *others)))
    assert group.separation == "all 4 failures have Lk >= 33, none of 4 passes has"
    assert (group.check, group.kind, group.implementation) == ("values", "value", "torch:sdpa")


def test_kinds_that_need_no_numbers_come_first_then_values_then_gradients_and_many_before_few() -> (
    None
):
    cases = of_keys(1, 2, 3)
    cells = [
        judged(cases[2], "fail", check="contract", kind="dtype"),
        *(judged(case, "fail", check="layouts") for case in cases),
        judged(cases[0], "crash", check="contract", kind="crash"),
        *(judged(case, "error", check="gradients", kind="harness") for case in cases),
        judged(cases[0], "fail"),
        *(judged(case, "fail", kind="non-finite") for case in cases[1:]),
        judged(cases[0], "known", check="paths"),
    ]
    groups = explanation.groups(frames.cells(run(*cells)))
    assert [(group.check, group.kind, len(group.cells)) for group in groups] == [
        ("contract", "dtype", 1), ("values", "non-finite", 2), ("values", "value", 1),
        ("gradients", "harness", 3), ("layouts", "value", 3), ("contract", "crash", 1),
    ]  # fmt: skip


def test_the_smallest_case_comes_first() -> None:
    cases = [
        "sdpa/none/mha/f32/b2h3q5k257d8",
        "sdpa/causal/mha/f32/b1h1q7k33d8/bias.qk",
        "sdpa/causal/mha/f32/b1h1q7k33d8",
        "sdpa/none/mha/f32/b2h3q5k33d80",
    ]
    frame = frames.cells(run(*(judged(case, "fail") for case in cases)))
    (group,) = explanation.groups(frame)
    assert frame["case"][list(group.cells)].tolist() == [cases[2], cases[1], cases[0], cases[3]]
    shown = explanation.explained(frame).iloc[0]
    assert (shown["case"], shown["failures"], shown["passes"]) == (cases[2], 4, 0)


def test_records_without_facts_are_explained_by_what_they_have() -> None:
    cells = [cell(case, status="fail", kind="value") for case in of_keys(7, 9, dtype="bf16")]
    cells += [cell(case) for case in of_keys(7, 9)]
    (group,) = explanation.groups(frames.cells(run(*cells)))
    assert group.separation == "both failures have dtype bf16, none of 2 passes has"


def test_nothing_fails_nothing_is_explained() -> None:
    frame = frames.cells(run(cell(), cell("sdpa/x", status="known")))
    assert explanation.groups(frame) == []
    assert explanation.explained(frame).empty
    assert isinstance(explanation.explained(frame), pd.DataFrame)
