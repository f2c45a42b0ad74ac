"""Steps: functions that may replace the verdict of a check on a cell (see `suite.judge.judge.Policy`).

- `overflow`: a failure of a user function in float16 names the numbers in its code that are infinite in
  float16.
- `expected`: a failure that the manifest expects is `known`. If the cell fails in another way or passes,
  that is a failure.
- `inherited`: a failure of a user function is `known` if its framework has the same failure.
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

MOST_ERROR = 2.0
"""A user function inherits a failure if its error is at most this many times the error of the framework's
own implementation. Two ways to call one operation differ a little: in TensorFlow, whose scale of
float64 passes through float32, by a factor of 1.5."""


def overflow(cell: Cell, verdict: Verdict) -> Verdict:
    """Returns the verdict of a user function. If it is a failure in float16 that an infinity can explain,
    the message also says which numbers in the function's code are infinite in float16, and suggests to
    claim only the other dtypes.

    Code that hides scores by adding (1 - mask) * -1e9 is right in float32 and bfloat16. In float16 -1e9
    is -inf, and fully masked rows are NaN. If the product is made in float16, 0 times -inf is NaN, too.
    """
    is_narrow = cell.dtype is NARROW or f" {NARROW.name}" in verdict.message
    is_explained = verdict.kind in OVERFLOW_KINDS or OVERFLOW_ERROR in verdict.message
    if verdict.status != "fail" or not (is_explained and is_narrow):
        return verdict
    numbers = [
        f"{n:g} is {round_to(n, NARROW):g}".replace("e+0", "e").replace("e+", "e")
        for n in overflowing(cell.implementation.judged)
    ]
    if not numbers:
        return verdict
    other_dtypes = ",".join(n for n in cell.implementation.declared.dtypes if n != NARROW.name)
    claim = f"claim dtypes={other_dtypes}? " if other_dtypes else ""
    where = f"{NARROW.long_name} ends at {NARROW.max:g}, and there the code's {', '.join(numbers)}"
    return replace(verdict, message=f"{claim}{where}: {verdict.message}")


def expected(manifest: Manifest, cell: Cell, verdict: Verdict) -> Verdict:
    """Returns the verdict after a manifest is applied: `known` if an entry expects this failure; a
    failure if an entry expects another failure. If two entries match the cell, the verdict is "error"."""
    name = cell.implementation.name
    try:
        return manifest.apply(verdict, name, cell.check.name, cell.case.id)
    except ExpectationError as error:
        return _manifest_error(verdict, error)


def inherited(loaded: LoadedBackend, policy: Policy, cell: Cell, verdict: Verdict) -> Verdict:
    """Returns the verdict of a user function. It becomes `known` if one of the framework's own
    implementations (natives) fails in the same way.

    A function that calls the framework's own attention, or one of its operations, fails where the
    framework fails. The record names the finding. Three conditions hold for such a cell:

    1. An entry of the framework's manifest cites a finding. The entry expects that a native fails the
       same check in the same case, with the kind and the message of the function's failure.
    2. That native does fail so, judged now by `policy`.
    3. The function's error is at most `MOST_ERROR` times the native's. If no error is measured, the
       function's message contains the native's message.
    """
    if verdict.status != "fail":
        return verdict
    for native in _alike_natives(cell, loaded.natives):
        try:
            entry = loaded.manifest.find(native.name, cell.check.name, cell.case.id)
        except ExpectationError as error:
            return _manifest_error(verdict, error)
        if entry is None or not entry.finding or not entry.matches_failure(verdict):
            continue
        native_verdict = judge(Cell(cell.check, cell.case, native, cell.seed), policy)
        if entry.matches_failure(native_verdict) and _errors_are_alike(verdict, native_verdict):
            message = f"{verdict.message} [{_inherited_note(native, entry)}]"
            return replace(verdict, status="known", message=message, inherited=entry.finding)
    return verdict


def _manifest_error(verdict: Verdict, error: ExpectationError) -> Verdict:
    return replace(verdict, status="error", kind="harness", message=str(error))


def _alike_natives(cell: Cell, natives: Sequence[Implementation]) -> Iterator[Implementation]:
    """Yields the framework's implementations of the cell's operator that are called through the same
    compiler as the user function, or eagerly as it is."""
    function = cell.implementation
    forms = compiled_forms(function.backend, [*natives]) if function.mode == "compiled" else []
    for native in (*natives, *forms):
        if native.operator is function.operator and _compiler(native) == _compiler(function):
            yield native


def _compiler(implementation: Implementation) -> str:
    """Returns the name of the compiler of a compiled form; "" for an eager implementation."""
    return implementation.name.partition(THROUGH)[2]


def _errors_are_alike(verdict: Verdict, native_verdict: Verdict) -> bool:
    """True if the error of a failure is at most `MOST_ERROR` times the error of the native's failure, or
    if its message contains the native's message."""
    if native_verdict.message in verdict.message:  # messages about user functions may be longer
        return True
    error, limit = _error_of(verdict), _error_of(native_verdict)
    return error is not None and limit is not None and error <= MOST_ERROR * limit


def _error_of(verdict: Verdict) -> float | None:
    """Returns the error ratio of an answer if it is above 1, else the measured `rms`; None if
    unmeasured."""
    measured = verdict.measured
    exceeds_bound = measured.error_ratio is not None and measured.error_ratio > 1
    return measured.error_ratio if exceeds_bound else measured.rms


def _inherited_note(native: Implementation, entry: Expectation) -> str:
    name = native.backend.name
    subject = (
        f"{name}'s own operations, written out ({native.name}), fail"
        if native.textbook
        else f"{name}'s own {native.name} fails"
    )
    cause = f"finding {entry.finding}; not your code: {entry.cause}; {entry.issue}"
    return f"{subject} this cell too: {cause}"


def overflowing(function: Callable[..., Any]) -> tuple[float, ...]:
    """Returns, sorted, the finite numbers in the code of a function or class that are infinite in
    float16. Integers above 0 are left out: they are counts and seeds."""
    numbers = {
        float(number)
        for code in _code_objects(function)
        for number in code.co_consts
        if isinstance(number, float) or (type(number) is int and number < 0)
    }
    return tuple(
        number
        for number in sorted(numbers)
        if np.isfinite(number) and np.isinf(round_to(number, NARROW))
    )


def _code_objects(function: Callable[..., Any]) -> Iterator[CodeType]:
    """Yields the code objects of a function or class, and of all functions and classes of the same module
    that it uses."""
    queue: list[Any] = [function]
    visited: set[int] = set()
    while queue:
        value = inspect.unwrap(queue.pop())
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, partial):
            queue.append(value.func)
        elif isinstance(value, MethodType):
            queue += [value.__func__, type(value.__self__)]
        elif isinstance(value, type):
            bases = [base for base in value.__mro__ if base.__module__ == value.__module__]
            queue += [f for base in bases for f in vars(base).values() if callable(f)]
        elif isinstance(value, FunctionType):
            for code in _with_inner_code(value.__code__):
                yield code
                used = (value.__globals__.get(name) for name in code.co_names)
                queue += [f for f in used if getattr(f, "__module__", "") == value.__module__]
        elif type(value).__module__ != "builtins":
            queue.append(type(value))


def _with_inner_code(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object, and the code objects of functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner_code(inner)
