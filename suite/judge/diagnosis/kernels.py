"""The faults of the catalogue as implementations, and what they answer in the cells of another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from inspect import isabstract

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.deviations.deviation import Deviation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.look import Arrays, Look, observed
from attention_conformance.suite.spec.cache import Cache

_ANSWERS: Cache[Arrays | None] = Cache(8192)
"""Answers of faults, by fault and inputs."""


@dataclass(frozen=True, eq=False)
class Kernelled:
    """A fault with its implementation."""

    fault: Deviation
    kernel: Implementation
    called: str = ""

    @property
    def name(self) -> str:
        return self.called or self.fault.name

    @cached_property
    def right(self) -> Implementation | None:
        """The kernel without the fault: the class behind the first one that changes a step. None if the
        fault lies in what a right kernel declares."""
        kinds = type(self.kernel).__mro__
        place = next(n for n, kind in enumerate(kinds) if any(map(callable, vars(kind).values())))
        right = kinds[place + 1]
        return None if isabstract(right) else right(self.kernel.backend)


@lru_cache(maxsize=1)
def kernelled() -> tuple[Kernelled, ...]:
    faults = all_faults()
    kernels = KernelBackend("catalogue", tuple(fault.kernel for fault in faults)).implementations()
    return tuple(map(Kernelled, faults, kernels))


def faults_of(implementation: Implementation) -> list[Kernelled]:
    """The faults of the implementation's operator."""
    return [one for one in kernelled() if one.kernel.operator is implementation.operator]


def answered(kernel: Implementation | None, look: Look) -> Arrays | None:
    """The answer of a kernel to the inputs of a look; None if the kernel lacks what the case needs, or
    gives no answer."""
    if kernel is None or kernel.unsupported(look.cell.case) is not None:
        return None
    cell = Cell(look.cell.check, look.cell.case, kernel, look.cell.seed)
    cell.inputs = look.presented
    gradients = look.differentiates and kernel.missing(cell.check.needs) is None
    if gradients:
        cell.cotangent = look.cell.cotangent
    key = (kernel.name, cell.inputs.digest, cell.inputs.form, gradients)
    return _ANSWERS.get(key, lambda: observed(cell, gradients))


def changes(one: Kernelled, look: Look) -> bool:
    """True if a fault answers otherwise than its right kernel: what both do, as to overflow where scores
    are stored in 16 bits, is not the fault."""
    answer, right = answered(one.kernel, look), answered(one.right, look)
    if answer is None or right is None:
        return True
    return not all(
        np.array_equal(answer[n], x, equal_nan=True) for n, x in right.items() if n in answer
    )


def paired(first: Kernelled, second: Kernelled) -> Kernelled | None:
    """A kernel with two faults; None if both change the same step."""
    one, other = type(first.kernel), type(second.kernel)
    steps = [{name for name in vars(of) if not name.startswith("__")} for of in (one, other)]
    if (steps[0] & steps[1]) - {"name", "declared", "killed_by"}:
        return None
    try:
        kind = type(f"{one.__name__}And{other.__name__}", (one, other), {})
    except TypeError:
        return None
    sentence = f"{first.fault.sentence} {second.fault.sentence}"
    hint = "; ".join(filter(None, (first.fault.hint, second.fault.hint)))
    kind.__doc__ = sentence
    name = f"{first.name} + {second.name}"
    fault = replace(first.fault, name=name, sentence=sentence, hint=hint, kernel=kind)
    return Kernelled(fault, kind(first.kernel.backend), name)
