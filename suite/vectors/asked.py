"""What a level asks of a runtime: its cases, and the probes that tell what it elects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from backends._numpy import NumpyBackend
from backends.declared import OF_BACKENDS, Declared
from backends.masks import rank4
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.checks import all_checks
from suite.judge.answer import names_of
from suite.judge.elections.probe import Probe
from suite.judge.elections.questions import PROBES
from suite.spec.case import Case
from suite.spec.elections import ElectionCase
from suite.spec.features import FEATURES, WORDS
from suite.spec.inputs import Inputs, draw, draw_cotangent, dtype_of
from suite.spec.masks import Causal
from suite.spec.operator import Operator
from suite.spec.operators import OPERATORS
from suite.spec.vocabulary import OPERANDS
from suite.vectors.options import Selection
from suite.vectors.tensors import SUFFIX, encoded, sha256, type_of, typed

StoredCase = Case | ElectionCase

NOT_STORED = {
    "integer-mask": "masks of vectors are boolean",
    "mask-polarity": "True attends in every mask of vectors",
    "returned-weights": "dropout is random",
    "lse-gradient": "no gradients of the log-sum-exp are asked",
}
"""Election questions that files do not put, with the reason."""

ALL = Declared(features=frozenset(WORDS) - OF_BACKENDS - {"dropout"})
"""What can be asked of files: everything but what is a matter of memory, threads or chance."""


@dataclass(frozen=True)
class StoredProblem:
    """One case of the files: the names of the checks that judge its answer, and whether it is
    differentiated."""

    case: StoredCase
    checks: tuple[str, ...]
    differentiated: bool
    seed: int

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.id.replace('/', '__')}{SUFFIX}"

    def inputs(self) -> Inputs:
        """The values that it asks with."""
        return self._put()[0]

    def cotangent(self) -> np.ndarray | None:
        """What its output is differentiated with; None where it is not."""
        return self._put()[1]

    def _put(self) -> tuple[Inputs, np.ndarray | None]:
        if isinstance(self.case, ElectionCase):
            return put(self.case)
        cotangent = draw_cotangent(self.case, self.seed) if self.differentiated else None
        return draw(self.case, self.seed), cotangent

    @property
    def flag(self) -> str:
        """What is asked by a flag of the runtime's own, which the mask of the file does not hold:
        "causal" in questions of what that flag means, else ""."""
        mask = self.inputs().mask if isinstance(self.case, ElectionCase) else None
        return "causal" if mask is not None and Causal() in mask.parts else ""

    def mask(self) -> np.ndarray | None:
        """The mask as it is asked: boolean with four axes, each of its own size or 1; None for none."""
        inputs = self.inputs()
        array = inputs.mask_array if self.flag else inputs.dense_mask
        return None if array is None else rank4(array)

    def outputs(self) -> tuple[str, ...]:
        """The names of what comes back."""
        inputs = self.inputs()
        if isinstance(self.case, ElectionCase) and self.differentiated:
            return ()
        return tuple(inputs.operator.outputs(inputs.case))

    def gradients(self) -> tuple[str, ...]:
        """The names of the arrays that it is differentiated by."""
        if not self.differentiated:
            return ()
        inputs = self.inputs()
        names = names_of(PreparedCall(lambda: None, dict(inputs.arrays)), inputs)
        if isinstance(self.case, ElectionCase):
            return tuple(name for name in names if name in OPERANDS)
        return tuple(names)

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors of its file that a runtime computes with, in the types they are stored in."""
        inputs, cotangent, mask = self.inputs(), self.cotangent(), self.mask()
        own, integers = type_of(inputs.dtype), inputs.operator.array_kinds.integers
        arrays = {
            name: typed(values, "I64" if name in integers else type_of(dtype_of(name, inputs.case)))
            for name, values in operands(inputs).items()
        }
        if mask is not None:
            arrays["mask"] = typed(mask, "BOOL")
        if cotangent is not None:
            arrays["cotangent"] = typed(cotangent, own)
        return arrays | {name: typed(np.array(x), "F64") for name, x in numbers(inputs).items()}

    def digest(self) -> str:
        """The SHA-256 of `arrays` as a file: what the case asks, to the last bit."""
        return sha256(encoded(self.arrays()))


def operands(inputs: Inputs) -> dict[str, np.ndarray]:
    """The arrays of inputs as they are stored: a bias has four axes, each of its own size or 1."""
    return {n: rank4(a) if n == "bias" else a for n, a in inputs.arrays.items()}


def numbers(inputs: Inputs) -> dict[str, float]:
    """The numbers that a call is given: the scale, written out where it is the default, and those of
    features."""
    arguments = {}
    if inputs.operator.option("scale") is not None:
        arguments["scale"] = inputs.effective_scale
    given = {name: inputs.case.option(name) for name in FEATURES}
    return arguments | {name: x for name, x in given.items() if isinstance(x, float)}


def problems_of(selection: Selection) -> list[StoredProblem]:
    """What a selection asks, each case once: cases, then elections, in the order of the checks."""
    checks: dict[str, list[str]] = {}
    cases: dict[str, StoredCase] = {}
    differentiated = set()
    for check in all_checks():
        for case in check.cases(selection.level) if check.single_answer else ():
            if not isinstance(case, StoredCase) or not selection.takes(case) or not _is_put(case):
                continue
            cases.setdefault(case.id, case)
            checks.setdefault(case.id, []).append(check.name)
            if "gradient" in (*check.needs, *case.needs):
                differentiated.add(case.id)
    problems = [
        StoredProblem(case, tuple(checks[name]), name in differentiated, selection.seed)
        for name, case in cases.items()
    ]
    return sorted(problems, key=lambda one: isinstance(one.case, ElectionCase))


def _is_put(case: StoredCase) -> bool:
    return not isinstance(case, ElectionCase) or case.question.name not in NOT_STORED


class CapturedProbe(Exception):
    """What a probe puts to an implementation."""

    def __init__(self, inputs: Inputs, differentiated: bool) -> None:
        super().__init__(inputs.case.id)
        self.inputs, self.differentiated = inputs, differentiated


class ProbeRecorder(Implementation):
    """Hears what it is asked, and answers nothing."""

    name = "listener"
    declared = ALL

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        super().__init__(NumpyBackend())

    def prepare(self, inputs: Inputs) -> PreparedCall:
        raise CapturedProbe(inputs, False)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        raise CapturedProbe(inputs, True)


@lru_cache(maxsize=512)
def put(case: ElectionCase) -> tuple[Inputs, np.ndarray | None]:
    """What the probe of a question puts: its inputs, and its cotangent where it asks for gradients."""
    probe = Probe(ProbeRecorder(case.operator), case.dtype)
    try:
        PROBES[case.question.name](probe)
    except CapturedProbe as heard:
        return heard.inputs, probe.cotangent(heard.inputs) if heard.differentiated else None
    raise AssertionError(f"{case.id} asks nothing")


def operators(names: Collection[str]) -> list[Operator]:
    """The operators with these names, in the order of the suite."""
    return [operator for name, operator in OPERATORS.items() if name in names]
