"""Levels: the table says what is asked at which level, every row is used, and each is explained."""

from __future__ import annotations

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec.catalogue import Ask, Selection, asked, cases, find, one_in
from attention_conformance.suite.spec.levels import ALL, DTYPES_AT, HALF, SHARES, postponed
from attention_conformance.suite.spec.operator import MODES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import LEVELS


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


def test_frameworks_answer_questions_in_few_dtypes_at_first() -> None:
    check = next(check for check in all_checks().values() if check.name == "election")
    assert check.builtin_cases
    assert check.compiled
    smoke, standard, full = ({*check.builtin_cases(level)} for level in LEVELS)
    assert {case.dtype.name for case in smoke} == {*HALF, "f16"}
    assert all(case.question.dtypes[0] == "f16" for case in smoke if case.dtype.name == "f16")
    assert smoke | standard < full == {*check.cases("smoke")}
    assert {case.question.name for case in full - standard} == {*MODES}
    assert {case.dtype.name for case in check.compiled("full")} == {*HALF}


def test_every_case_has_a_reason_and_keeps_its_place_at_later_levels() -> None:
    for selection in selections():
        smoke, standard, full = (selection(level) for level in LEVELS)
        assert {*smoke} <= {*standard} <= {*full}
        assert all(selection.why("full").values())


def test_a_pattern_is_asked_in_the_dtypes_of_its_row() -> None:
    def dtypes(ask: Ask, level: str) -> list[str]:
        return [case.dtype.name for case in asked(ask)(level)]

    plain = ("sdpa/none/mha/{dt}/b2h3q5k7d8", "sdpa/causal/mha/{dt}/b2h3q5k7d8")
    assert dtypes(Ask(*plain), "smoke") == ["f32", "bf16"]
    assert sorted(dtypes(Ask(*plain), "standard")) == sorted(HALF * 2)
    assert sorted(dtypes(Ask(*plain), "full")) == sorted(ALL * 2)
    assert dtypes(Ask(*plain, since="standard"), "smoke") == []
    assert {*dtypes(Ask(*plain, dtypes="promise"), "standard")} == {*ALL}
    layer = ("dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",)
    assert layer[0].split("/")[4] in OPERATORS["dot"].asks.common_sizes
    assert {*dtypes(Ask(*layer, since="standard"), "standard")} == {*ALL}
    other = ("dot/none/mha/{dt}/b3h1q5k9d8v6/e8.8.6.6",)
    assert {*dtypes(Ask(*other, dtypes="promise"), "standard")} == {*HALF}
    with pytest.raises(ValueError, match="unknown level 'huge'; valid: smoke, standard, full"):
        asked(Ask(*plain))("huge")


def test_a_share_leaves_most_choices_as_cases_are_added() -> None:
    pool = cases("standard")
    before, after = ({*one_in(4, part)} for part in (pool[:-10], pool))
    assert len(before & after) > 0.9 * len(before)


def test_what_implementations_postpone() -> None:
    later = {"f16", "variations"}
    assert postponed("smoke", later, "f32", variation=True, in_smoke=True)
    assert not postponed("smoke", later, "f32", variation=False, in_smoke=True)
    assert not postponed("standard", later, "f32", variation=True, in_smoke=True)
    assert postponed("smoke", later, "f16", variation=False, in_smoke=True)
    assert postponed("standard", later, "f16", variation=False, in_smoke=False)
    assert not postponed("standard", later, "f16", variation=False, in_smoke=True)
    assert not postponed("full", later, "f16", variation=True, in_smoke=False)
    assert postponed("standard", {"kernels"}, "f32", variation=False, in_smoke=True)
    assert not postponed("full", {"kernels"}, "f32", variation=True, in_smoke=True)
    assert postponed("full", {"kernels"}, "f32", variation=False, in_smoke=False)


def test_why_names_checks_levels_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--why", "sdpa/causal/gqa2/f32/b2h6q17k23d8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sdpa/causal/gqa2/f32/b2h6q17k23d8"
    future = next(line for line in lines if line.split()[0] == "future")
    assert future.split()[:3] == ["future", "since", "smoke"]
    assert DTYPES_AT["float32 first"].why in future
    flag = next(line for line in lines if line.split()[0] == "flag_equals_dense")
    assert DTYPES_AT["promise"].why in flag
    assert main(["list", "--why", "sdpa/none/mha/bf16/b2h3q17k16d8"]) == 0
    assert "nearest" + 22 * " " + "since smoke     a case by itself" in capsys.readouterr().out


@pytest.mark.parametrize("case_id", ["elect/no-keys/f32", "bad/heads-do-not-divide/f32"])
def test_probes_have_a_reason_too(case_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--why", case_id]) == 0
    checks = [line for line in capsys.readouterr().out.splitlines() if " since " in line]
    assert checks
    assert all(line.endswith(find(case_id).why) for line in checks)


def test_the_reason_of_a_case_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--why", "sdpa/nothing"]) == 2
    assert "not a case id: 'sdpa/nothing'; expected sdpa/MASK/" in capsys.readouterr().err
