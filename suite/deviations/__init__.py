"""The catalogue of faults: each a sentence, a kernel that has it, and the check that must kill it.

A module holds the faults of one subject; `kernels` holds the right kernels that they change. A run
without failures imports none of them.

    pytest suite --backend=attention_conformance.suite.deviations:mutants
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from attention_conformance.suite.spec.modules import modules_of

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend
    from attention_conformance.suite.deviations.deviation import Deviation


@lru_cache(maxsize=1)
def all_faults() -> tuple[Deviation, ...]:
    """Returns all deviations of the catalogue, in the order of modules and definitions. Imports no
    framework."""
    from attention_conformance.suite.deviations.deviation import CATALOGUE

    modules_of(__name__)
    return tuple(CATALOGUE.values())


def mutants(device: str = "cpu") -> Backend:
    """Returns a backend with one implementation for each fault of the catalogue."""
    from attention_conformance.suite.deviations.backend import KernelBackend

    return KernelBackend("mutants", tuple(fault.kernel for fault in all_faults()), device)
