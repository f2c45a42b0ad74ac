"""Promise: keys may be answered in parts and merged. Answers of parts that are stored in 16 bits are a
declaration, without which they fail; log-sum-exps in 16 bits always fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from tests.honest.split import SplitSingleKeys, SplitStored
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions" / "paging.py"


class Undeclared(SplitStored):
    """Answers of parts are stored in 16 bits, and nothing is said of it."""

    rounding = DeclaredRounding()


def verdicts(kernel: type[SplitStored], level: str = "standard") -> Iterator[tuple[Case, Verdict]]:
    """The verdicts of a kernel in the check values, in 16 bits."""
    kernels = KernelBackend("split", (kernel,)).implementations()
    for seed in range(2):
        for cell in all_checks()["values"].cells(level, kernels, seed):
            if cell.case.dtype.is_half:
                yield cell.case, judge(cell)


@pytest.mark.parametrize("kernel", [SplitStored, SplitSingleKeys])
def test_stored_answers_of_parts_are_a_declaration(kernel: type[SplitStored]) -> None:
    assert {verdict.status for _, verdict in verdicts(kernel)} <= {"pass", "unsupported"}


def test_stored_answers_of_parts_fail_without_it() -> None:
    failed = {case.dtype.name for case, verdict in verdicts(Undeclared) if verdict.status == "fail"}
    assert failed == {"bf16", "f16"}


def statuses(said: Mapping[str, Any]) -> set[str]:
    """Statuses of a person's function that stores answers of parts, in bfloat16 at standard."""
    said = {"numerics": "exact", **said}
    judged = of_person(f"{FUNCTIONS}:in_parts", "paged", said, "standard")
    of_bf16 = {verdict.status for cell, verdict in judged if cell.dtype.name == "bf16"}
    return of_bf16 - {"unsupported"}


def test_a_person_claims_stored_parts() -> None:
    pytest.importorskip("torch")
    assert statuses({}) == {"pass", "fail"}
    assert statuses({"stored_parts": True}) == {"pass"}
