"""Levels: the table says what is asked at which level, every row is used, and each is explained."""

from __future__ import annotations

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec.catalogue import Selection, find
from attention_conformance.suite.spec.levels import DTYPES_AT, SHARES
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


def test_every_case_has_a_reason_and_keeps_its_place_at_later_levels() -> None:
    for selection in selections():
        smoke, standard, full = (selection(level) for level in LEVELS)
        assert {*smoke} <= {*standard} <= {*full}
        assert all(selection.why("full").values())


@pytest.mark.parametrize("case_id", ["elect/no-keys/f32", "bad/heads-do-not-divide/f32"])
def test_probes_have_a_reason_too(case_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--why", case_id]) == 0
    checks = [line for line in capsys.readouterr().out.splitlines() if " since " in line]
    assert checks
    assert all(line.endswith(find(case_id).why) for line in checks)
