"""Inherited failures: a person's function is not blamed for what its framework does wrong.

A function that calls the framework's own attention, or one of its operations, fails where the framework
fails. Such a cell is `known`, and its record names the finding. Three conditions must hold:

- An entry of the framework's manifest that cites a finding expects one of the framework's implementations
  to fail the same check in the same case, with the kind and the message of the function's failure.
- That implementation, which is asked the cell now, does fail so.
- Where errors are measured, that of the function is at most `AS_FAR`; elsewhere its message begins with
  that one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backends.compilation import compiled_forms
from backends.declared import THROUGH
from backends.protocol import Implementation, TimeOver
from suite.judge.cell import Cell
from suite.judge.run import Limit, run
from suite.judge.verdict import Verdict
from suite.records.expectations import Expectation, Manifest
from suite.records.findings import title_of

AS_FAR = 2.0
"""The largest error of a function, in errors of the framework's own implementation, that is taken for the
framework's. Two ways to call one operation differ a little: in TensorFlow, whose scale of float64 passes
through float32, by a factor of 1.5."""


def inherited(
    cell: Cell,
    verdict: Verdict,
    implementations: list[Implementation],
    manifest: Manifest,
    limit: Limit,
) -> Verdict:
    """The verdict of a person's function, `known` where one of the framework's `implementations` fails
    the cell in the same way. `manifest` is that of the framework; `limit` is that of a cell's time."""
    if verdict.status != "fail":
        return verdict
    for implementation in _candidates(cell, implementations):
        entry = manifest.find(implementation.name, cell.check.name, cell.case.id)
        if entry is None or not entry.finding or not entry.expects(verdict):
            continue
        try:
            own = run(Cell(cell.check, cell.case, implementation, cell.seed), limit=limit)
        except TimeOver:
            continue
        if entry.expects(own) and _is_as_far(verdict, own):
            message = f"{verdict.message} [{_explanation(implementation, entry)}]"
            return replace(verdict, status="known", message=message, inherited=entry.finding)
    return verdict


def _candidates(cell: Cell, implementations: list[Implementation]) -> Iterator[Implementation]:
    """The implementations of the cell's operator, through the compiler that the function goes through."""
    function = cell.implementation
    forms = compiled_forms(function.backend, implementations) if function.mode == "compiled" else []
    for implementation in (*implementations, *forms):
        same = implementation.operator is function.operator
        if same and _compiler(implementation) == _compiler(function):
            yield implementation


def _compiler(implementation: Implementation) -> str:
    return implementation.name.partition(THROUGH)[2]


def _is_as_far(verdict: Verdict, own: Verdict) -> bool:
    """Whether a failure is hardly larger than that of the framework's own implementation."""
    if verdict.message.startswith(own.message):  # a function is told besides which errors refuse
        return True
    error, limit = _extent(verdict), _extent(own)
    return error is not None and limit is not None and error <= AS_FAR * limit


def _extent(verdict: Verdict) -> float | None:
    """How far an answer is off, in bounds or, where none is exceeded, in standard deviations."""
    measured = verdict.measured
    beyond = measured.error_ratio is not None and measured.error_ratio > 1
    return measured.error_ratio if beyond else measured.rms


def _explanation(implementation: Implementation, entry: Expectation) -> str:
    name = implementation.backend.name
    who = (
        f"{name}'s own operations, written out ({implementation.name}), fail"
        if implementation.textbook
        else f"{name}'s own {implementation.name} fails"
    )
    finding = title_of(entry.finding)
    return f"{who} this cell too: {finding}; not your code: {entry.cause}; {entry.issue}"
