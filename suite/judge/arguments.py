"""Arguments: a call must leave them, and the memory around them, as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attention_conformance.backends.protocol import Backend, PreparedCall
from attention_conformance.suite.judge.verdict import Deviation


def arrays_of(backend: Backend, prepared: PreparedCall) -> dict[str, Any]:
    """The arguments of a call that are arrays of the framework, by name."""
    return {name: a for name, a in prepared.arguments.items() if backend.is_array(a)}


def watched(backend: Backend, arrays: Mapping[str, Any]) -> Callable[[], list[str]]:
    """A function that names those of the framework's `arrays` whose values have changed since."""
    before = {name: backend.to_numpy(array).tobytes() for name, array in arrays.items()}

    def changed() -> list[str]:
        return [n for n, array in arrays.items() if backend.to_numpy(array).tobytes() != before[n]]

    return changed


@contextmanager
def unchanged(backend: Backend, arrays: Mapping[str, Any], by: str) -> Iterator[None]:
    """A context that changes none of the framework's `arrays`. Raises Deviation "mutated-input" with the
    array's name; `by` begins the message."""
    changed = watched(backend, arrays)
    yield
    if names := changed():
        raise Deviation("mutated-input", f"{by} changed {names[0]}")


@contextmanager
def keeping_arguments(backend: Backend, prepared: PreparedCall, by: str) -> Iterator[None]:
    """A context that changes no argument of a call (see `unchanged`)."""
    arrays = arrays_of(backend, prepared)
    with unchanged(backend, {f"its argument {name}": a for name, a in arrays.items()}, by):
        yield
