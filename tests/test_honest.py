"""Promise: right implementations that round differently never fail, whatever the seed. Keys may be
answered in parts and merged: parts that are stored in 16 bits are a declaration, without which they
fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import judge
from tests.runtimes import of_person

BITWISE = ("bad_problem", "contract", "dropout", "election", "empty", "nan", "poison")
"""Checks that hold or not whatever is drawn: asked with one seed."""

OF_MEMORY = ("kept_answers", "own_memory")
"""Checks of the memory of an answer, which does not depend on roundings: asked of one variant of each
operator."""


def failures(level: str, seed: int, checks: Iterable[Check], step: int = 1) -> list[str]:
    """What fails among every `step`-th cell. Cases are outermost, so that each needs its oracle once for
    all variants."""
    variants = load("tests.honest:honest").implementations()
    one_each = [*{variant.operator.name: variant for variant in variants}.values()]
    messages = []
    for check in checks:
        cells = check.cells(level, one_each if check.name in OF_MEMORY else variants, seed)
        for cell in islice(cells, seed % step, None, step):
            verdict = judge(cell)
            if verdict.status not in ("pass", "unsupported"):
                messages.append(
                    f"{cell.implementation.name} {check.name} {cell.case.id} seed {seed}: "
                    f"{verdict.kind} {verdict.message}"
                )
    return messages


@pytest.mark.seldom
def test_smoke() -> None:
    """What does not depend on a seed; the rest is asked with other seeds below."""
    assert not failures("smoke", 0, [all_checks()[name] for name in BITWISE])


@pytest.mark.slow
@pytest.mark.parametrize("name", all_checks())
def test_standard(name: str) -> None:
    assert not failures("standard", 0, [all_checks()[name]])


@pytest.mark.seldom
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 21))]
)
def test_smoke_of_many_seeds(seed: int, third: int) -> None:
    """Of the seed that commits ask every second cell; nights ask all of nineteen others."""
    checks = [c for c in all_checks().values() if c.name not in BITWISE]
    assert not failures("smoke", seed, checks[third::3], step=2 if seed == 1 else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", all_checks())
def test_full(name: str) -> None:
    assert not failures("full", 0, [all_checks()[name]])


FUNCTIONS = Path(__file__).parent / "functions" / "paging.py"


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
