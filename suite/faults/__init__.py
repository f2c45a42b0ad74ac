"""The catalogue of faults: each a sentence, a kernel that has it, and the check that must kill it.

A module holds the faults of one subject; `kernels` holds the right kernels that they change. A run
without failures imports none of them.

    pytest suite --backend=suite.faults:mutants
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.protocol import Backend
    from suite.faults.fault import Fault


@lru_cache(maxsize=1)
def all_faults() -> tuple[Fault, ...]:
    """Every fault, in the order of modules and of definition. Imports no framework."""
    from suite.faults.fault import FAULTS

    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(
        FAULTS[value]
        for module in modules
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__ and value in FAULTS
    )


def mutants(device: str = "cpu") -> Backend:
    """A backend whose implementations have one fault of the catalogue each."""
    from suite.faults.backend import KernelBackend

    return KernelBackend("mutants", tuple(fault.kernel for fault in all_faults()), device)
