"""Promise: every fault is killed by the check that it names, and every check kills one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.deviation import CATALOGUE, Deviation
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.run.kill_table import kill
from tests.frozen.kills import KILLS

NAMES = [fault.name for fault in all_faults()]

SMOKE, STANDARD = (part.read() for part in KILLS)
"""The first kill of each fault, as it is frozen for the levels."""


def survives(name: str) -> bool:
    """True if smoke is not known to kill the fault."""
    return SMOKE.get(name, " survives").endswith(" survives")


@cache
def mutants() -> dict[str, Implementation]:
    """The mutants by name."""
    backend = load("attention_conformance.suite.deviations:mutants")
    return {mutant.name: mutant for mutant in backend.implementations()}


def is_killed_as_frozen(mutant: Implementation, level: str, line: str) -> bool:
    """True if the mutant fails the cell of a frozen line, which is a cell of the level."""
    check, case, *_ = line.split()
    cells = all_checks()[check].cells(level, [mutant])
    return any(judge(cell).status == "fail" for cell in cells if cell.case.id == case)


@pytest.mark.parametrize("name", NAMES)
def test_killed_by_the_check_named_for_it(name: str) -> None:
    """Smoke kills the fault, or standard. Only if the frozen cell does not fail, all cells are judged."""
    level, frozen = ("standard", STANDARD) if survives(name) else ("smoke", SMOKE)
    mutant, line = mutants()[name], frozen.get(name, "")
    check = CATALOGUE[type(mutant)].killed_by
    if not line.startswith(f"{check} ") or not is_killed_as_frozen(mutant, level, line):
        outcome = kill(mutant, all_checks().values(), level)
        assert outcome.killed, f"{outcome.fault}: {outcome.message}"


def test_every_check_kills_a_mutant() -> None:
    assert {check.name for check in all_checks().values()} == {
        fault.killed_by for fault in all_faults()
    }


def test_smoke_kills_97_of_100() -> None:
    """`test_killed_by_the_check_named_for_it` asks smoke to kill all others."""
    assert len([*filter(survives, NAMES)]) <= 0.03 * len(NAMES)


def breaking(holds: Callable[[Deviation], object]) -> list[str]:
    """The faults for which something does not hold."""
    return [fault.name for fault in all_faults() if not holds(fault)]


def test_deviations_say_what_is_wrong() -> None:
    """A sentence is one line. A hint is one line, and no sentence. People know no words of this suite."""
    private = re.compile("poison|sunk|twin|elect|cotangent|mutant|case")
    assert not breaking(lambda one: re.fullmatch(r"[^\n]{10,110}\.", one.sentence))
    assert not breaking(lambda one: re.fullmatch(r"[^\n]{10,98}(?<!\.)", one.hint))
    assert not breaking(lambda one: one.hint.count("`") % 2 == 0)
    assert not breaking(lambda one: not private.search(one.sentence + one.hint))


@pytest.mark.parametrize("name", ["sums-in-dtype", "single-inside"])
def test_declared_low_precision_fails_precision_alone(name: str) -> None:
    statuses: dict[str, set[str]] = {}
    for check in all_checks().values():
        for cell in check.cells("smoke", [mutants()[name]]):
            verdict = judge(cell)
            statuses.setdefault(verdict.status, set()).add(check.name)
    assert statuses.pop("fail") == {"precision"}
    assert set(statuses) <= {"pass", "unsupported"}
