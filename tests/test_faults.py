"""Promise: every fault is killed by the check that it names, and every check kills one."""

from __future__ import annotations

import re

import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.faults import all_faults
from attention_conformance.suite.faults.backend import KernelBackend
from attention_conformance.suite.faults.deviation import CATALOGUE, FAMILIES, Deviation
from attention_conformance.suite.faults.kernels.attention import Kernel
from attention_conformance.suite.faults.precision import SingleInside, SumsInDtype
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.run.kill_table import format_table, kill
from tests.runtimes import of

NAMES = [fault.name for fault in all_faults()]


@pytest.mark.parametrize("name", NAMES)
def test_killed_by_the_check_named_for_it(name: str) -> None:
    mutant = of(load("attention_conformance.suite.faults:mutants"), name)
    outcome = kill(mutant, all_checks().values(), "standard")
    assert outcome.killed, f"{outcome.fault}: {outcome.message}"


def test_every_check_kills_a_mutant() -> None:
    assert {check.name for check in all_checks().values()} == {
        fault.killed_by for fault in all_faults()
    }


def test_smoke_kills_97_of_100_and_the_table_lists_all() -> None:
    mutants = load("attention_conformance.suite.faults:mutants").implementations()
    kills = [kill(mutant, all_checks().values(), "smoke") for mutant in mutants]
    killed = {kill.fault.name for kill in kills if kill.killed}
    assert len(killed) >= 0.97 * len(NAMES), sorted(set(NAMES) - killed)
    text = format_table(kills)
    assert all(re.search(rf"^{re.escape(name)} ", text, re.MULTILINE) for name in NAMES)
    assert f"{len(killed)} of {len(NAMES)} mutants killed" in text
    assert all(
        re.search(rf"^{family} .* of \d+  [a-z_]+ \d", text, re.MULTILINE) for family in FAMILIES
    )


@pytest.mark.parametrize("fault", all_faults(), ids=NAMES)
def test_faults_say_what_is_wrong(fault: Deviation) -> None:
    assert re.fullmatch(r"[^\n]{10,110}\.", fault.sentence), "a fault is one line"
    assert re.fullmatch(r"[^\n]{10,98}(?<!\.)", fault.hint), "a hint is one line, and no sentence"
    assert fault.hint.count("`") % 2 == 0
    private = re.search(
        r"poison|sunk|twin|elect|cotangent|mutant|case", fault.sentence + fault.hint
    )
    assert not private, "people know no words of this suite"
    assert fault.family in FAMILIES


def test_every_family_has_a_fault() -> None:
    assert {fault.family for fault in all_faults()} == set(FAMILIES)


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("mutant", [SumsInDtype, SingleInside])
def test_declared_low_precision_fails_precision_alone(mutant: type[Kernel]) -> None:
    backend = KernelBackend("low", (mutant,))
    statuses: dict[str, set[str]] = {}
    for check in all_checks().values():
        for cell in check.cells("smoke", backend.implementations()):
            verdict = judge(cell)
            statuses.setdefault(verdict.status, set()).add(check.name)
    assert statuses.pop("fail") == {"precision"}
    assert set(statuses) <= {"pass", "unsupported"}


def honest(killed_by: str, implementation: Implementation) -> Deviation:
    """A right implementation that is said to be a deviation."""
    return Deviation("honest", killed_by, "Nothing is wrong.", "", "mask", type(implementation))


def test_an_honest_implementation_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = next(iter(load("numpy").implementations()))
    monkeypatch.setitem(CATALOGUE, type(definition), honest("values", definition))
    outcome = kill(definition, all_checks().values(), "smoke")
    assert not outcome.killed
    assert re.fullmatch(r"\d+ pass", outcome.message)
    assert format_table([outcome]).startswith("survivor ")


def test_an_implementation_without_a_fault_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = next(iter(load("numpy").implementations()))
    with pytest.raises(ValueError, match="is no mutant"):
        kill(definition, all_checks().values(), "smoke")
    monkeypatch.setitem(CATALOGUE, type(definition), honest("nothing", definition))
    with pytest.raises(ValueError, match="which is no check"):
        kill(definition, all_checks().values(), "smoke")
