"""pytest cases of a function's cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest

from attention_conformance.backends.declared import UsageError
from attention_conformance.judging import cells_of, plan_of
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN


class JudgedCell:
    """One cell of one function. A call of the object judges the cell.

    The call returns if the cell passes. The pytest case fails if the cell fails, is skipped if the
    function does not support the case, and is an expected failure if a manifest says so. `check` and
    `case` name the cell. `verdict` is its record after the call, None before.
    """

    def __init__(self, plan: Plan, cell: Cell) -> None:
        self._plan, self._cell = plan, cell
        self.check, self.case = cell.check.name, cell.case.id
        self.verdict: CellRecord | None = None

    def __call__(self) -> None:
        """Judge the cell. Ends a pytest case by skip, expected failure or failure."""
        __tracebackhide__ = True
        self.verdict = verdict = record(
            self._cell, judge(self._cell, self._plan.policy(self._cell, 0.0))
        )
        message = printable(verdict.message)
        if verdict.status == "unsupported":
            pytest.skip(message)
        if verdict.status == "known":
            pytest.xfail(message)
        if verdict.status in BROKEN:
            pytest.fail(f"{verdict.kind}: {message}\n  case {self.case}", pytrace=False)

    def __repr__(self) -> str:
        return f"{self.check}/{self.case}"


def parametrize_attention(
    function: Callable[..., Any],
    backend: str = "torch",
    level: str = "smoke",
    *,
    checks: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    argument: str = "cell",
    **options: Any,
) -> pytest.MarkDecorator:
    """Returns a decorator of a test: every cell that the function supports becomes a pytest case.

        @parametrize_attention(my_kernel, backend="torch", dtypes=("f16",))
        def test_my_kernel(cell):
            cell()

    - `expected_failures`: reasons by shell pattern of CHECK/CASE; matching cases are strict expected
      failures
    - `argument`: the name of the test's argument
    - `options`: those of `check_attention`, without `raises` and `timeout`

    Frameworks are imported when the test module is imported. Raises UsageError.
    """
    plan = plan_of(function, backend, level, **options)
    supported = [
        cell
        for cell in cells_of(plan, checks)
        if cell.check.unsupported(cell.implementation, cell.case) is None
    ]
    cases = [JudgedCell(plan, cell) for cell in supported]
    if not cases:
        raise UsageError("the function supports none of the selected cells")
    patterns = expected_failures or {}
    for pattern in patterns:
        if not any(fnmatchcase(repr(case), pattern) for case in cases):
            raise UsageError(f"expected_failures: {pattern!r} matches none of {len(cases)} cells")
    parameters = []
    for case in cases:
        reasons = [why for pattern, why in patterns.items() if fnmatchcase(repr(case), pattern)]
        marks = [pytest.mark.xfail(reason=why, strict=True) for why in reasons[:1]]
        parameters.append(pytest.param(case, id=repr(case), marks=marks))
    return pytest.mark.parametrize(argument, parameters)
