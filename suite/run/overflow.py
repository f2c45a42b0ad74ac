"""Overflow: numbers in a person's code that float16 does not hold.

Code that hides scores by adding (1 - mask) * -1e9 is right in float32 and bfloat16. In float16 -1e9 is
-inf: rows without keys are NaN, and where the product is made in float16, so is 0 times -inf. A failure
that such a number can explain names the number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from suite.judge.cell import Cell
from suite.judge.verdict import Verdict
from suite.spec.dtypes import DTYPES, round_to

NARROW = DTYPES["f16"]

KINDS = ("non-finite", "election")
"""The kinds of failures that an infinity in place of a number can explain."""


def with_overflow(cell: Cell, verdict: Verdict) -> Verdict:
    """The verdict of a person's function. A failure that speaks of float16 says which numbers of the
    function's code are infinite there."""
    of_narrow = cell.dtype is NARROW or f" {NARROW.name}" in verdict.message
    if verdict.status != "fail" or verdict.kind not in KINDS or not of_narrow:
        return verdict
    numbers = [
        f"{n:g} is {round_to(n, NARROW):g}".replace("e+0", "e").replace("e+", "e")
        for n in overflowing(cell.implementation.judged)
    ]
    if not numbers:
        return verdict
    where = f"in {NARROW.long_name}, whose largest number is {NARROW.max:g}"
    return replace(verdict, message=f"{verdict.message}; {where}, the code's {', '.join(numbers)}")


def overflowing(function: Callable[..., Any]) -> tuple[float, ...]:
    """The finite numbers in a function's or a class' code that are infinite in float16, but whole numbers
    above 0, which count and seed."""
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
