"""Steps: what reads the verdict of a cell once the check has answered (see `suite.judge.judge.Policy`).

- `overflow`: a failure of a user function in float16 names the numbers of its code that are infinite
  there.
- `expected`: a failure that the manifest expects is `known`; another failure or a pass there fails.
- `inherited`: a user function is not blamed for what its framework does wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from attention_conformance.backends.compilers import compiled_forms
from attention_conformance.backends.declared import THROUGH
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import Policy, judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records.expectations import Expectation, ExpectationError, Manifest
from attention_conformance.suite.run.loading import LoadedBackend
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

NARROW = DTYPES["f16"]

OVERFLOW_KINDS = ("non-finite", "election")
"""The kinds of failures that an infinity in place of a number can explain."""

OVERFLOW_ERROR = "without overflow"
"""The words of torch's error about a number that a dtype does not hold."""

AS_FAR = 2.0
"""The largest error of a user function, in errors of the framework's own implementation, that counts as
the framework's error. Two ways to call one operation differ a little: in TensorFlow, whose scale of
float64 passes through float32, by a factor of 1.5."""


def overflow(cell: Cell, verdict: Verdict) -> Verdict:
    """The verdict of a user function. A failure in float16 that an infinity can explain says which
    numbers of the function's code are infinite there. Its message begins with the claim of the other
    dtypes.

    Code that hides scores by adding (1 - mask) * -1e9 is right in float32 and bfloat16. In float16 -1e9
    is -inf, and fully masked rows are NaN. If the product is made in float16, 0 times -inf is NaN, too.
    """
    of_narrow = cell.dtype is NARROW or f" {NARROW.name}" in verdict.message
    explains = verdict.kind in OVERFLOW_KINDS or OVERFLOW_ERROR in verdict.message
    if verdict.status != "fail" or not (explains and of_narrow):
        return verdict
    numbers = [
        f"{n:g} is {round_to(n, NARROW):g}".replace("e+0", "e").replace("e+", "e")
        for n in overflowing(cell.implementation.judged)
    ]
    if not numbers:
        return verdict
    wider = ",".join(n for n in cell.implementation.declared.dtypes if n != NARROW.name)
    claim = f"claim dtypes={wider}? " if wider else ""
    where = f"{NARROW.long_name} ends at {NARROW.max:g}, and there the code's {', '.join(numbers)}"
    return replace(verdict, message=f"{claim}{where}: {verdict.message}")


def expected(manifest: Manifest, cell: Cell, verdict: Verdict) -> Verdict:
    """The verdict in the light of a manifest. Two entries that claim one cell are an error."""
    name = cell.implementation.name
    try:
        return manifest.apply(verdict, name, cell.check.name, cell.case.id)
    except ExpectationError as error:
        return _unusable(verdict, error)


def inherited(loaded: LoadedBackend, policy: Policy, cell: Cell, verdict: Verdict) -> Verdict:
    """The verdict of a user function, `known` if one of its framework's natives fails in the same way.

    A function that calls the framework's own attention, or one of its operations, fails where the
    framework fails. The record names the finding. Three conditions hold for such a cell:

    1. An entry of the framework's manifest cites a finding. The entry expects that a native fails the
       same check in the same case, with the kind and the message of the function's failure.
    2. That native does fail so, judged now by `policy`.
    3. The function's error is at most `AS_FAR` times the native's. If no error is measured, the
       function's message contains the native's message.
    """
    if verdict.status != "fail":
        return verdict
    for native in _candidates(cell, loaded.natives):
        try:
            entry = loaded.manifest.find(native.name, cell.check.name, cell.case.id)
        except ExpectationError as error:
            return _unusable(verdict, error)
        if entry is None or not entry.finding or not entry.matches_failure(verdict):
            continue
        own = judge(Cell(cell.check, cell.case, native, cell.seed), policy)
        if entry.matches_failure(own) and _is_as_far(verdict, own):
            message = f"{verdict.message} [{_explanation(native, entry)}]"
            return replace(verdict, status="known", message=message, inherited=entry.finding)
    return verdict


def _unusable(verdict: Verdict, error: ExpectationError) -> Verdict:
    return replace(verdict, status="error", kind="harness", message=str(error))


def _candidates(cell: Cell, natives: Sequence[Implementation]) -> Iterator[Implementation]:
    """The natives of the cell's operator, through the compiler that the function goes through."""
    function = cell.implementation
    forms = compiled_forms(function.backend, [*natives]) if function.mode == "compiled" else []
    for native in (*natives, *forms):
        if native.operator is function.operator and _compiler(native) == _compiler(function):
            yield native


def _compiler(implementation: Implementation) -> str:
    return implementation.name.partition(THROUGH)[2]


def _is_as_far(verdict: Verdict, own: Verdict) -> bool:
    """True if a failure is hardly larger than that of the framework's own implementation."""
    if own.message in verdict.message:  # a function is told more
        return True
    error, limit = _extent(verdict), _extent(own)
    return error is not None and limit is not None and error <= AS_FAR * limit


def _extent(verdict: Verdict) -> float | None:
    """The error of an answer, in bounds or, where no bound is exceeded, in standard deviations."""
    measured = verdict.measured
    beyond = measured.error_ratio is not None and measured.error_ratio > 1
    return measured.error_ratio if beyond else measured.rms


def _explanation(native: Implementation, entry: Expectation) -> str:
    name = native.backend.name
    who = (
        f"{name}'s own operations, written out ({native.name}), fail"
        if native.textbook
        else f"{name}'s own {native.name} fails"
    )
    cited = f"finding {entry.finding}; not your code: {entry.cause}; {entry.issue}"
    return f"{who} this cell too: {cited}"


def overflowing(function: Callable[..., Any]) -> tuple[float, ...]:
    """The finite numbers in the code of a function or class that are infinite in float16. Whole numbers
    above 0 are left out: they count and seed."""
    numbers = {
        float(number)
        for code in _codes(function)
        for number in code.co_consts
        if isinstance(number, float) or (type(number) is int and number < 0)
    }
    return tuple(
        number
        for number in sorted(numbers)
        if np.isfinite(number) and np.isinf(round_to(number, NARROW))
    )


def _codes(function: Callable[..., Any]) -> Iterator[CodeType]:
    """The code of a function, or of a class and its bases, and of what they call in the same module."""
    todo: list[Any] = [function]
    seen: set[int] = set()
    while todo:
        thing = inspect.unwrap(todo.pop())
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, partial):
            todo.append(thing.func)
        elif isinstance(thing, MethodType):
            todo += [thing.__func__, type(thing.__self__)]
        elif isinstance(thing, type):
            bases = [base for base in thing.__mro__ if base.__module__ == thing.__module__]
            todo += [value for base in bases for value in vars(base).values() if callable(value)]
        elif isinstance(thing, FunctionType):
            for code in _nested(thing.__code__):
                yield code
                named = (thing.__globals__.get(name) for name in code.co_names)
                todo += [f for f in named if getattr(f, "__module__", "") == thing.__module__]
        elif type(thing).__module__ != "builtins":
            todo.append(type(thing))


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions inside."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _nested(inner)
