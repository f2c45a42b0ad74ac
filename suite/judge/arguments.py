"""Arguments: a call must not change them, or the memory around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attention_conformance.backends.protocol import Backend, PreparedCall
from attention_conformance.suite.judge.verdict import WrongAnswer


def arrays_of(backend: Backend, prepared: PreparedCall) -> dict[str, Any]:
    """Returns the arguments of a call that are arrays of the framework, by name."""
    return {name: a for name, a in prepared.arguments.items() if backend.is_array(a)}


def change_detector(backend: Backend, arrays: Mapping[str, Any]) -> Callable[[], list[str]]:
    """Returns a function. Called later, this function returns the names of the arrays whose bytes have
    changed since now."""
    before = {name: backend.to_numpy(array).tobytes() for name, array in arrays.items()}

    def changed_names() -> list[str]:
        return [n for n, array in arrays.items() if backend.to_numpy(array).tobytes() != before[n]]

    return changed_names


@contextmanager
def require_unchanged(backend: Backend, arrays: Mapping[str, Any], by: str) -> Iterator[None]:
    """A context that raises WrongAnswer "mutated-input" at its end if one of the framework's `arrays` has
    changed. The message begins with `by`, and names the array."""
    changed = change_detector(backend, arrays)
    yield
    if names := changed():
        raise WrongAnswer("mutated-input", f"{by} changed {names[0]}")


@contextmanager
def require_unchanged_arguments(
    backend: Backend, prepared: PreparedCall, by: str
) -> Iterator[None]:
    """A context that raises WrongAnswer "mutated-input" at its end if an argument of a call has changed.
    The message begins with `by`."""
    arrays = arrays_of(backend, prepared)
    with require_unchanged(backend, {f"its argument {name}": a for name, a in arrays.items()}, by):
        yield
