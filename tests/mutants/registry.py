"""The list of mutants, filled by the decorator `mutant` as the modules of faults are imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from backends.protocol import Implementation

K = TypeVar("K", bound=type[Implementation])

MUTANTS: list[type[Implementation]] = []
"""Every mutant, in the order in which it is written."""


def mutant(killed_by: str, like: str = "") -> Callable[[K], K]:
    """Mark a kernel or a layer as a mutant: its docstring names the one fault, `killed_by` the check
    that must kill it, `like` the published bug that it is an instance of (the numbers of the list of
    published bugs, "E1").
    """

    def mark(kernel: K) -> K:
        kernel.fault = (kernel.__doc__ or "").strip()
        kernel.killed_by = killed_by
        kernel.like = like
        MUTANTS.append(kernel)
        return kernel

    return mark
