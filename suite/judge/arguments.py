"""Arguments: a call must leave them, and the memory around them, as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from backends.protocol import Backend, PreparedCall
from suite.judge.verdict import Deviation


@contextmanager
def unchanged(backend: Backend, arrays: Mapping[str, Any], by: str) -> Iterator[None]:
    """A context that changes none of the framework's `arrays`. Raises Deviation "mutated-input" with the
    array's name; `by` begins the message."""
    before = {name: backend.to_numpy(array).tobytes() for name, array in arrays.items()}
    yield
    for name, array in arrays.items():
        if backend.to_numpy(array).tobytes() != before[name]:
            raise Deviation("mutated-input", f"{by} changed {name}")


@contextmanager
def keeping_arguments(backend: Backend, prepared: PreparedCall, by: str) -> Iterator[None]:
    """A context that changes no argument of a call (see `unchanged`)."""
    arguments = prepared.arguments.items()
    arrays = {f"its argument {name}": a for name, a in arguments if backend.is_array(a)}
    with unchanged(backend, arrays, by):
        yield
