"""Promise: right implementations that round differently never fail, whatever the seed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from backends.registry import load
from suite.checks import all_checks
from suite.judge.cell import run
from tests.mutants.honest import HONEST

NAMES = [variant.name for variant in HONEST]

BITWISE = (
    "bad_problem", "contract", "election", "empty", "nan", "poison",
    "layer_bad_problem", "layer_contract", "layer_dropout", "layer_future", "layer_poison",
)  # fmt: skip
"""Checks that hold or not whatever is drawn: asked with one seed."""

Failures = dict[str, list[str]]


def failures(level: str, seeds: Iterable[int], skip: tuple[str, ...] = ()) -> Failures:
    """What fails, by variant. Cases are outermost, so that each needs its oracle once."""
    variants = load("tests.mutants:honest").implementations()
    found: Failures = {name: [] for name in NAMES}
    for seed in seeds:
        for check in all_checks():
            for cell in () if check.name in skip else check.cells(level, variants, seed):
                verdict = run(cell)
                if verdict.status not in ("pass", "unsupported"):
                    found[cell.implementation.name].append(
                        f"{check.name} {cell.case.id} seed {seed}: {verdict.kind} {verdict.message}"
                    )
    return found


@pytest.fixture(scope="module")
def standard() -> Failures:
    return failures("standard", [0])


@pytest.fixture(scope="module")
def smoke_of_many_seeds() -> Failures:
    return failures("smoke", range(1, 21), BITWISE)


@pytest.fixture(scope="module")
def full() -> Failures:
    return failures("full", [0])


@pytest.mark.parametrize("name", NAMES)
def test_standard(name: str, standard: Failures) -> None:
    assert not standard[name]


@pytest.mark.parametrize("name", NAMES)
def test_smoke_of_many_seeds(name: str, smoke_of_many_seeds: Failures) -> None:
    assert not smoke_of_many_seeds[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_full(name: str, full: Failures) -> None:
    assert not full[name]
