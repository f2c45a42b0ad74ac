"""The faults of the catalogue as implementations, and their answers to the inputs of outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import isabstract
from typing import Any
from zlib import crc32

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.deviations.deviation import Deviation, changed_kernel
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Outcome, answer_arrays
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.operator import Operator

_ANSWERS: Cache[Arrays | None] = Cache(8192)
"""Answers of faults, by fault and inputs."""


@dataclass(frozen=True, eq=False)
class Fault:
    """A deviation of the catalogue, with its kernel as an implementation."""

    deviation: Deviation
    kernel: Implementation

    @property
    def name(self) -> str:
        return self.deviation.name

    @cached_property
    def right_kernel(self) -> Implementation | None:
        """The kernel without the fault: the class above the first class that defines a function. None if
        that class is abstract: then the fault is in a declaration."""
        classes = type(self.kernel).__mro__
        index = next(n for n, cls in enumerate(classes) if any(map(callable, vars(cls).values())))
        right = classes[index + 1]
        return None if isabstract(right) else right(self.kernel.backend)


@lru_cache(maxsize=1)
def catalogue_faults() -> tuple[Fault, ...]:
    deviations = all_faults()
    kernels = KernelBackend("catalogue", tuple(d.kernel for d in deviations)).implementations()
    return tuple(map(Fault, deviations, kernels))


def measured_kernel(name: str, **changes: Any) -> Implementation:
    """Returns a kernel of plain attention with a measured fault: `changes` as in `changed_kernel`. `name`
    identifies the fault."""
    # Imported here: a run without failures imports no kernel.
    from attention_conformance.suite.deviations.kernels.attention import Kernel

    kernel = changed_kernel(f"measured-{crc32(name.encode()):08x}", Kernel, **changes)
    return KernelBackend("measured", (kernel,)).implementations()[0]


def faults_of(operator: Operator) -> list[Fault]:
    """Returns the faults of an operator."""
    return [f for f in catalogue_faults() if f.kernel.operator is operator]


def answer_of(kernel: Implementation | None, outcome: Outcome) -> Arrays | None:
    """Returns a kernel's outputs for the inputs of an outcome by name, with gradients if the outcome has
    them. None if the kernel is None, lacks a feature, or its call fails. Answers are cached."""
    if kernel is None or kernel.unsupported(outcome.cell.case) is not None:
        return None
    cell = Cell(outcome.cell.check, outcome.cell.case, kernel, outcome.cell.seed)
    cell.inputs = outcome.fault_inputs
    with_gradients = outcome.has_gradients and kernel.missing(cell.check.needs) is None
    if with_gradients:
        cell.cotangent = outcome.cell.cotangent
    key = (kernel.name, cell.inputs.digest, cell.inputs.form, with_gradients)
    return _ANSWERS.get(key, lambda: answer_arrays(cell, with_gradients))


def shows_fault(fault: Fault, outcome: Outcome) -> bool:
    """True if a fault's kernel and its right kernel answer differently. A wrong answer of both, such as
    overflow of scores stored in 16 bits, is not the fault."""
    answer, right_answer = answer_of(fault.kernel, outcome), answer_of(fault.right_kernel, outcome)
    if answer is None or right_answer is None:
        return True
    return not all(
        np.array_equal(answer[n], x, equal_nan=True) for n, x in right_answer.items() if n in answer
    )
