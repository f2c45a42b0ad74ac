"""A kernel as a row: the textbook with a stage changed, and the fault that a diagnosis must name.

A row names a deviation of the catalogue, whose sentence is expected. A row that no deviation describes
has words of its own. In the files of rows `owner/repository#number` names the public report of the same
mistake.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from attention_conformance.suite.deviations import all_faults
from tests.diagnosed.expected import Fault, Kernel
from tests.diagnosed.textbook import Change

FILES = {"torch": "of_torch.py", "jax": "of_jax.py", "tf": "of_keras.py"}
"""The file with the kernels of a backend."""


@dataclass(frozen=True)
class Row:
    """A kernel: its faults, the backends that have it, and the stages that differ.

    `takes` and `lacks` are parameters beside those of the framework's attention.
    """

    name: str
    faults: tuple[Fault, ...]
    backends: tuple[str, ...]
    takes: tuple[str, ...]
    lacks: tuple[str, ...]
    changes: Mapping[str, Change]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(
            Kernel(f"{FILES[each]}:{self.name}", self.faults, each) for each in self.backends
        )


@functools.cache
def sentences() -> dict[str, str]:
    """The sentence of each deviation of the catalogue."""
    return {one.name: one.sentence for one in all_faults()}


def named(deviation: str, measured: str = "") -> Fault:
    """What a right diagnosis says of a deviation: its sentence, or what matches `measured`."""
    sentence = re.escape(sentences()[deviation])
    return Fault(("|".join(filter(None, [sentence, measured])),))


def row(
    name: str, expected: str | Fault, measured: str = "", *, takes: str = "", lacks: str = "",
    of: str = "torch", **changes: Change,
) -> Row:  # fmt: skip
    """A row with one fault, for the backends `of`."""
    known = named(expected, measured) if isinstance(expected, str) else expected
    return Row(name, (known,), (*of.split(),), (*takes.split(),), (*lacks.split(),), changes)


def right(name: str, *, takes: str = "", of: str = "torch", **changes: Change) -> Row:
    """A row without a fault."""
    return Row(name, (), (*of.split(),), (*takes.split(),), (), changes)


def pair(name: str, one: Row, two: Row) -> Row:
    """A row with the faults of two others, which change different stages."""
    both = one.changes.keys() & two.changes.keys()
    assert not both, f"{name}: expected different stages, got {', '.join(both)} in both"
    changes = {**one.changes, **two.changes}
    return Row(name, one.faults + two.faults, ("torch",), one.takes + two.takes, (), changes)
