"""Promise: every mutant is killed by the check that is named for it, and every check kills one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from backends.registry import load
from suite.checks import all_checks
from suite.judge.judge import judge
from suite.judge.kill_table import format_table, kill, kill_table
from tests.mutants.backend import KernelBackend
from tests.mutants.faults_precision import SingleInside, SumsInDtype
from tests.mutants.kernel import Kernel
from tests.mutants.registry import MUTANTS

NAMES = [mutant.name for mutant in MUTANTS]


@pytest.mark.parametrize("name", NAMES)
def test_killed_by_the_check_named_for_it(name: str) -> None:
    (mutant,) = (m for m in load("tests.mutants:mutants").implementations() if m.name == name)
    outcome = kill(mutant, all_checks())
    assert outcome.killed, f"({outcome.fault}) under {outcome.killed_by}: {outcome.message}"


def test_every_check_kills_a_mutant() -> None:
    assert {check.name for check in all_checks()} == {mutant.killed_by for mutant in MUTANTS}


def test_smoke_kills_963_of_1000_and_the_table_lists_all() -> None:
    kills = kill_table(load("tests.mutants:mutants"), all_checks(), "smoke")
    killed = {kill.mutant for kill in kills if kill.killed}
    assert len(killed) >= 0.963 * len(NAMES), sorted(set(NAMES) - killed)
    text = format_table(kills)
    assert all(re.search(rf"^  {re.escape(name)} ", text, re.MULTILINE) for name in NAMES)
    assert f"{len(killed)} of {len(NAMES)} mutants killed" in text


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_mutants_say_what_is_wrong(mutant: Any) -> None:
    assert re.fullmatch(r"[^\n]{10,110}\.", mutant.fault), "a fault is one line"
    assert re.fullmatch(r"([A-M]\d+)?", mutant.like)


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("mutant", [SumsInDtype, SingleInside])
def test_declared_low_precision_fails_precision_alone(mutant: type[Kernel]) -> None:
    backend = KernelBackend("low", (mutant,))
    statuses: dict[str, set[str]] = {}
    for check in all_checks():
        for cell in check.cells("smoke", backend.implementations()):
            verdict = judge(cell)
            statuses.setdefault(verdict.status, set()).add(check.name)
    assert statuses.pop("fail") == {"precision"}
    assert set(statuses) <= {"pass", "unsupported"}


def test_an_honest_implementation_survives() -> None:
    definition = next(iter(load("numpy").implementations()))
    definition.fault, definition.killed_by = "none", "values"  # type: ignore[attr-defined]
    outcome = kill(definition, all_checks(), "smoke", others=True)
    assert not outcome.killed
    assert outcome.others == ()
    assert outcome.message == f"{outcome.cells} pass"
    assert "survivors" in format_table([outcome])


def test_an_implementation_without_a_fault_is_refused() -> None:
    definition = next(iter(load("numpy").implementations()))
    with pytest.raises(ValueError, match="is no mutant"):
        kill(definition, all_checks())
    definition.fault, definition.killed_by = "none", "nothing"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="which is no check"):
        kill(definition, all_checks())
