"""What tests of runtimes share: an implementation by its name, its verdict, and values that cross."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.registry import function_implementation, load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.catalogue import AnyCase, find
from attention_conformance.suite.spec.dtypes import DTYPES


def of(backend: Backend, name: str) -> Implementation:
    """The implementation that is called so."""
    return next(i for i in backend.implementations() if i.name == name)


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
    function, _ = function_implementation(load("torch"), place, said, like)
    for cell in all_checks()[check].cells(level, [function]):
        yield cell, judge(cell)


def crossed(backend: Backend, name: str) -> Any:
    """The runtime's array of the numbers at the edges of a dtype, which come back as they were."""
    fmt = DTYPES[name]
    edges = np.array(
        [0.0, -0.0, fmt.max, -fmt.smallest_normal, fmt.smallest_subnormal, np.inf, np.nan]
    )
    array = backend.array(edges, fmt)
    assert backend.is_array(array)
    assert backend.dtype_name(array) == fmt.long_name
    assert (backend.device_name(array), tuple(array.shape)) == ("cpu", edges.shape)
    assert np.array_equal(backend.to_numpy(array), edges, equal_nan=True)
    return array
