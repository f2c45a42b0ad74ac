"""The claim `forbid`: a user's function raises ForbiddenCall if it calls one of the forbidden functions.

- Operators of the framework are recognised by name, whoever calls them (`Engine.recorded_operators`). In
  threads that the function starts they are recognised from its next call on.
- Any other function is replaced, in each module that has it, by one that notes its calls.
- User code cannot stop the recording: functions that would stop it raise ForbiddenCall
  (`Engine.guard_recording`).

A compiled program calls no Python. So a forbidden call is remembered for all later calls with arguments
of the same shapes and dtypes.
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
"""Running calls of watched functions, by id: the thread of the call, and the names of noting functions
called so far."""

_THREAD_STARTERS = ("_thread.start_new_thread", "_thread.start_joinable_thread")
"""The functions that start threads; the second one from Python 3.13 on."""

_EARLIER_THREADS: set[int] = set()
"""The ids of threads that ran before the first function was made to note its calls."""

_NOTING_FUNCTIONS: set[str] = set()
"""The names of functions that note their calls."""


def watched(
    backend: Backend, function: Callable[..., Any], names: Iterable[str]
) -> Callable[..., Any]:
    """Returns the function, changed to raise ForbiddenCall if it calls one of the functions `names`.
    Returns it unchanged without names. Raises UsageError as `note_calls`."""
    operators = note_calls(backend, names)
    if not operators:
        return function
    called_by_signature: dict[str, set[str]] = {}
    has_threads = bool({*sys._current_frames()} - _EARLIER_THREADS)

    def run_recorded(forbidden_calls: set[str], action: Callable[[], Any]) -> Any:
        """Returns the value of `action`, a call of the function or of its derivative. Adds the forbidden
        functions that it called to `forbidden_calls`, and raises ForbiddenCall if there are any."""
        nonlocal has_threads
        noted: set[str] = set()
        _RUNNING[id(noted)] = get_ident(), noted
        try:
            output, ran = backend.recorded_operators(action, has_threads)
        finally:
            del _RUNNING[id(noted)]
            has_threads |= not noted.isdisjoint(_THREAD_STARTERS)
        forbidden_calls |= {name for name in noted if name in operators}
        forbidden_calls |= {
            name for name, op in operators.items() if op and any(map(op.fullmatch, ran))
        }
        if forbidden_calls:
            raise ForbiddenCall(
                f"the function calls {', '.join(sorted(forbidden_calls))}, which is forbidden"
            )
        return output

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if backend.is_tracing():
            return function(*arguments, **keywords)
        forbidden_calls = called_by_signature.setdefault(_signature(arguments, keywords), set())
        output = run_recorded(forbidden_calls, partial(function, *arguments, **keywords))
        backend.derive_by(output, partial(run_recorded, forbidden_calls))
        return output

    return call


def note_calls(backend: Backend, names: Iterable[str]) -> dict[str, Pattern[str] | None]:
    """Make the functions `names` note their calls from now on. Returns by name the pattern of its
    operator, or None for a function that is no operator. Raises UsageError for a name that is no
    function.

    Modules that are imported later get the noting functions. Calls of a reference that code took earlier,
    in a closure or a container, are not noted.
    """
    operators: dict[str, Pattern[str] | None] = {}
    for name in names:
        try:
            function = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"forbid: there is no function {name!r}: {error}") from error
        operators[name] = backend.operator_pattern(function)
        if operators[name] is None and name not in _NOTING_FUNCTIONS:
            if isinstance(function, type) or not callable(function):
                raise UsageError(f"forbid: {name} is no function; name a function or a method")
            for place in (name, *backend.private_ways(name)):
                _make_noting(name, place)
    if operators:
        backend.guard_recording()
    if operators and not _EARLIER_THREADS:
        _EARLIER_THREADS.update(sys._current_frames())
        for name in _THREAD_STARTERS:
            with suppress(AttributeError):
                _make_noting(name, name)
    return operators


def _make_noting(name: str, place: str) -> None:
    """Replace the function at the dotted name `place` by one that notes its calls as calls of `name`."""
    _NOTING_FUNCTIONS.add(name)
    replace_function(place, _with_note(name, pkgutil.resolve_name(place)))


def _with_note(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, changed to add `name` to each running call (`_RUNNING`) when it is called."""

    @wraps(function)
    def noting(*arguments: Any, **keywords: Any) -> Any:
        for thread, noted in [*_RUNNING.values()]:
            if name not in _THREAD_STARTERS or thread == get_ident():
                noted.add(name)
        return function(*arguments, **keywords)

    return noting


def replace_function(name: str, new: Callable[..., Any]) -> None:
    """Replace the function with the dotted `name` by `new`, in every module that has it."""
    replaced, (place, _, attribute) = pkgutil.resolve_name(name), name.rpartition(".")
    setattr(pkgutil.resolve_name(place), attribute, new)
    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType):
            for key in [key for key, value in vars(module).items() if value is replaced]:
                setattr(module, key, new)


def _signature(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Returns a text that is equal for arguments with equal names, shapes, dtypes and constants."""
    every = [*enumerate(arguments), *sorted(keywords.items())]
    return repr([(n, getattr(x, "shape", x), str(getattr(x, "dtype", ""))) for n, x in every])
