"""What tests of runtimes share: an implementation by its name, its verdict, and values that cross."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from attention_conformance.backends.protocol import Backend, BackendUnavailable, Implementation
from attention_conformance.backends.registry import function_implementation, load, modules
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.catalogue import AnyCase, find


def of(backend: Backend, name: str) -> Implementation:
    """The implementation that is called so."""
    return next(i for i in backend.implementations() if i.name == name)


def needs(backend: str) -> None:
    """Skips the test where a module of the backend is not installed."""
    for module in modules(backend):
        pytest.importorskip(module)


def loaded(name: str) -> Backend:
    """The backend; the test is skipped where its modules are missing or its engine is another one."""
    needs(name)
    try:
        return load(name)
    except BackendUnavailable as error:
        pytest.skip(str(error))


def user_function(place: Path | str, like: str = "", backend: str = "torch", **said: Any) -> Any:
    """A person's function "FILE.py:NAME", with what is claimed of it."""
    return function_implementation(loaded(backend), str(place), said, like)[0]


def verdict_of(
    implementation: Implementation, case: AnyCase | str, check: str = "values"
) -> Verdict:
    """What a check says of an implementation and a case, or the case with this id."""
    case = find(case) if isinstance(case, str) else case
    return judge(Cell(all_checks()[check], case, implementation))


def judged(backend: Backend, name: str, text: str, check: str = "values") -> Verdict:
    """What a check says of the implementation that is called so and a case."""
    return verdict_of(of(backend, name), text, check)


def of_person(
    place: str, like: str, said: Mapping[str, Any] = MappingProxyType({}), level: str = "smoke",
    check: str = "values",
) -> Iterator[tuple[Cell, Verdict]]:  # fmt: skip
    """The cells of a check for a person's function in PyTorch, with their verdicts."""
    for cell in all_checks()[check].cells(level, [user_function(place, like, **said)]):
        yield cell, judge(cell)
