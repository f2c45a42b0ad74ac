"""The claim `forbid`: a user's function that calls one of these functions raises ForbiddenCall.

- An operator of the framework is recognised by its name, whoever calls it
  (`Engine.recorded_operators`), in threads of the function, too, from the call after the one that starts
  them.
- Any other function is replaced, in every module that has it, by a function that notes its calls.
- A function cannot stop that: what would is replaced by what raises ForbiddenCall
  (`Engine.guard_recording`).

A compiled program calls no Python. So what a function called once for arguments of some shapes and dtypes
counts for every call with such arguments.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from re import Pattern
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attention_conformance.backends.declared import UsageError
from attention_conformance.backends.prepared import ForbiddenCall

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend

_RUNNING: dict[int, tuple[int, set[str]]] = {}
"""Each running call of a watched function: its thread, and the names of functions that note their calls
and were called meanwhile."""

_STARTS = ("_thread.start_new_thread", "_thread.start_joinable_thread")
"""The functions that start threads; the second one from Python 3.13 on."""

_BEFORE: set[int] = set()
"""The threads that ran before the functions began to note their calls."""

_NOTED: set[str] = set()
"""The names of functions that note their calls."""


def watched(
    backend: Backend, function: Callable[..., Any], names: Iterable[str]
) -> Callable[..., Any]:
    """The function, changed to raise ForbiddenCall if it calls one of the functions `names`. Raises
    UsageError."""
    operators = listen(backend, names)
    if not operators:
        return function
    called_by_signature: dict[str, set[str]] = {}
    has_threads = bool({*sys._current_frames()} - _BEFORE)

    def make(called: set[str], action: Callable[[], Any]) -> Any:
        """The value of `action`, a call or its derivative; adds forbidden calls to `called`."""
        nonlocal has_threads
        noted: set[str] = set()
        _RUNNING[id(noted)] = get_ident(), noted
        try:
            output, ran = backend.recorded_operators(action, has_threads)
        finally:
            del _RUNNING[id(noted)]
            has_threads |= not noted.isdisjoint(_STARTS)
        called |= {name for name in noted if name in operators}
        called |= {name for name, op in operators.items() if op and any(map(op.fullmatch, ran))}
        if called:
            raise ForbiddenCall(
                f"the function calls {', '.join(sorted(called))}, which is forbidden"
            )
        return output

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if backend.is_tracing():
            return function(*arguments, **keywords)
        called = called_by_signature.setdefault(_signature(arguments, keywords), set())
        output = make(called, partial(function, *arguments, **keywords))
        backend.derive_by(output, partial(make, called))
        return output

    return call


def listen(backend: Backend, names: Iterable[str]) -> dict[str, Pattern[str] | None]:
    """Let the functions `names` note their calls, from now on. Returns the patterns of those that are
    operators. Raises UsageError.

    Modules that are imported later have the functions that note. Code that took one before, in a closure
    or a container, calls it unheard.
    """
    operators: dict[str, Pattern[str] | None] = {}
    for name in names:
        try:
            function = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"forbid: there is no function {name!r}: {error}") from error
        operators[name] = backend.operator_pattern(function)
        if operators[name] is None and name not in _NOTED:
            if isinstance(function, type) or not callable(function):
                raise UsageError(f"forbid: {name} is no function; name a function or a method")
            for place in (name, *backend.private_ways(name)):
                _make_noting(name, place)
    if operators:
        backend.guard_recording()
    if operators and not _BEFORE:
        _BEFORE.update(sys._current_frames())
        for name in _STARTS:
            with suppress(AttributeError):
                _make_noting(name, name)
    return operators


def _make_noting(name: str, place: str) -> None:
    """Let the function at a place note its calls as calls of `name`."""
    _NOTED.add(name)
    replace(place, _with_note(name, pkgutil.resolve_name(place)))


def _with_note(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which adds `name` to the running calls of `_RUNNING` when it is called."""

    @wraps(function)
    def noting(*arguments: Any, **keywords: Any) -> Any:
        for thread, noted in [*_RUNNING.values()]:
            if name not in _STARTS or thread == get_ident():
                noted.add(name)
        return function(*arguments, **keywords)

    return noting


def replace(name: str, new: Callable[..., Any]) -> None:
    """Replace the function with the dotted `name` by `new`, in every module that has it."""
    replaced, (place, _, attribute) = pkgutil.resolve_name(name), name.rpartition(".")
    setattr(pkgutil.resolve_name(place), attribute, new)
    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType):
            for key in [key for key, value in vars(module).items() if value is replaced]:
                setattr(module, key, new)


def _signature(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """A text that is the same for arguments with the same names, shapes, dtypes and constants."""
    every = [*enumerate(arguments), *sorted(keywords.items())]
    return repr([(n, getattr(x, "shape", x), str(getattr(x, "dtype", ""))) for n, x in every])
