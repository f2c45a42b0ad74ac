"""The cases that a level stores in vectors, and the probes of its elections."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.declared import OF_BACKENDS, Declared
from attention_conformance.backends.masks import rank4
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.answer import names_of
from attention_conformance.suite.judge.elections import modes
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.elections.questions import PROBES
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS, WORDS
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED
from attention_conformance.suite.vectors.options import Selection
from attention_conformance.suite.vectors.tensors import SUFFIX, encoded, sha256, type_of, typed

StoredCase = Case | ElectionCase

NOT_STORED = {
    "integer-mask": "masks of vectors are boolean",
    "mask-polarity": "True attends in every mask of vectors",
    "returned-weights": "dropout is random",
    "lse-gradient": "no gradients of the log-sum-exp are asked",
    **dict.fromkeys(modes.PROBES, "no mode surrounds the answers of a file"),
}
"""Election questions that vectors leave out, with the reason."""

ALL = Declared(features=frozenset(WORDS) - OF_BACKENDS - {"dropout", REGISTERED})
"""The features that files can ask: all except memory layout, threads, dropout and rules of operators."""


@dataclass(frozen=True)
class StoredProblem:
    """A case in the vectors: `checks` names the checks that judge its answer; `differentiated` is True if
    gradients are asked."""

    case: StoredCase
    checks: tuple[str, ...]
    differentiated: bool
    seed: int

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def file(self) -> str:
        """The file name of the case."""
        return f"{self.id.replace('/', '__')}{SUFFIX}"

    def inputs(self) -> Inputs:
        """The inputs of the case or probe."""
        return self._put()[0]

    def cotangent(self) -> np.ndarray | None:
        """The cotangent of the output; None if no gradients are asked."""
        return self._put()[1]

    def _put(self) -> tuple[Inputs, np.ndarray | None]:
        if isinstance(self.case, ElectionCase):
            return put(self.case)
        cotangent = draw_cotangent(self.case, self.seed) if self.differentiated else None
        return draw(self.case, self.seed), cotangent

    @property
    def flag(self) -> str:
        """The word "causal" if an election asks what the runtime's causal flag means; else "". The file's
        mask does not contain the flag."""
        mask = self.inputs().mask if isinstance(self.case, ElectionCase) else None
        return "causal" if mask is not None and Causal() in mask.parts else ""

    def mask(self) -> np.ndarray | None:
        """The boolean mask of rank 4, with axes that broadcast; None without a mask."""
        inputs = self.inputs()
        array = inputs.mask_array if self.flag else inputs.dense_mask
        return None if array is None else rank4(array)

    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        inputs = self.inputs()
        if isinstance(self.case, ElectionCase) and self.differentiated:
            return ()
        return tuple(inputs.operator.outputs(inputs.case))

    def gradients(self) -> tuple[str, ...]:
        """The names of the arrays whose gradients are asked."""
        if not self.differentiated:
            return ()
        inputs = self.inputs()
        names = names_of(PreparedCall(lambda: None, dict(inputs.arrays)), inputs)
        if isinstance(self.case, ElectionCase):
            return tuple(name for name in names if name in OPERANDS)
        return tuple(names)

    def arrays(self) -> dict[str, np.ndarray]:
        """The input tensors of the case's file, in their stored types."""
        inputs, cotangent, mask = self.inputs(), self.cotangent(), self.mask()
        own, integers = type_of(inputs.dtype), inputs.operator.array_kinds.integers
        arrays = {
            name: typed(values, "I64" if name in integers else type_of(inputs.case.dtype_of(name)))
            for name, values in operands(inputs).items()
        }
        if mask is not None:
            arrays["mask"] = typed(mask, "BOOL")
        if cotangent is not None:
            arrays["cotangent"] = typed(cotangent, own)
        return arrays | {name: typed(np.array(x), "F64") for name, x in numbers(inputs).items()}

    def digest(self) -> str:
        """The SHA-256 of a file with only `arrays`."""
        return sha256(encoded(self.arrays()))


def operands(inputs: Inputs) -> dict[str, np.ndarray]:
    """The arrays of inputs, with a bias of rank 4."""
    return {n: rank4(a) if n == "bias" else a for n, a in inputs.arrays.items()}


def numbers(inputs: Inputs) -> dict[str, float]:
    """The scalar inputs of a call: the scale (also if it is the default) and the numbers of features."""
    arguments = {}
    if inputs.operator.option("scale") is not None:
        arguments["scale"] = inputs.effective_scale
    given = {name: inputs.case.option(name) for name in FEATURES}
    return arguments | {name: x for name, x in given.items() if isinstance(x, float)}


def problems_of(selection: Selection) -> list[StoredProblem]:
    """The problems of a selection, each once, in the order of the checks: cases, then elections."""
    checks: dict[str, list[str]] = {}
    cases: dict[str, StoredCase] = {}
    differentiated = set()
    for check in all_checks().values():
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
    """Carries the inputs that a probe asks an implementation, and whether it asks for gradients."""

    def __init__(self, inputs: Inputs, differentiated: bool) -> None:
        super().__init__(inputs.case.id)
        self.inputs, self.differentiated = inputs, differentiated


class ProbeRecorder(Implementation):
    """An implementation that raises CapturedProbe with the inputs of a probe."""

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
    """The inputs of an election's probe, and its cotangent; None if the probe asks for no gradients."""
    probe = Probe(ProbeRecorder(case.operator), case.dtype)
    try:
        PROBES[case.question.name](probe)
    except CapturedProbe as heard:
        return heard.inputs, probe.cotangent(heard.inputs) if heard.differentiated else None
    raise AssertionError(f"{case.id} asks nothing")


def operators(names: Collection[str]) -> list[Operator]:
    """The operators with these names, in the order of the suite."""
    return [operator for name, operator in OPERATORS.items() if name in names]
