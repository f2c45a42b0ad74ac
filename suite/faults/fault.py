"""`Fault`, and the decorator `fault` that adds a kernel to the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from backends.protocol import Implementation

FAULTS: dict[type[Implementation], Fault] = {}
"""The faults of modules imported so far; `suite.faults.all_faults` imports all modules."""

K = TypeVar("K", bound=type[Implementation])


@dataclass(frozen=True)
class Fault:
    """One thing that an implementation can do wrong, and the check that must see it.

    - `kernel`: an implementation with this one fault; its docstring is the sentence
    - `killed_by`: the name of the check that must end in `fail` on one of its cases
    - `like`: the published bug that the fault is an instance of, as numbered in the list of published
      bugs ("E1"), or ""
    """

    kernel: type[Implementation]
    killed_by: str
    like: str = ""

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def sentence(self) -> str:
        """What is wrong, for people, in one line."""
        return (self.kernel.__doc__ or "").strip()


def fault(killed_by: str, like: str = "") -> Callable[[K], K]:
    """Add a kernel or a layer to the catalogue (see `Fault`)."""

    def mark(kernel: K) -> K:
        FAULTS[kernel] = Fault(kernel, killed_by, like)
        return kernel

    return mark
