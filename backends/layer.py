"""A framework's layer as a row (`Layer`), and the implementation that calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.implementation import FromRow, Implementation, Row
from attention_conformance.backends.kernel import call_text
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.vocabulary import OPERANDS

SEED = "dropout_seed"
"""The argument with the seed of dropout, of calls that take it as an array."""


def outputs(answer: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Output and weights of a layer's answer, a pair or the output. Weights not asked for are None."""
    output, weights = answer if isinstance(answer, tuple | list) else (answer, None)
    return output, weights if inputs.returned != "none" else None


@dataclass(frozen=True, eq=False)
class Layer(Row):
    """A framework's layer as a row.

    What is called:

    - `operator`: see `Implementation`
    - `make(impl, inputs, **flags)`: a new layer; `flags` go to its constructor
    - `parameters`: where the canonical parameters are in the layer, in the form that `called` needs
    - `called(impl, inputs, arguments, **how)`: the call of a new layer, changed by `how`
    - `differentiable(impl, inputs)`: see `Implementation`

    How the layer is called:

    - `operands`: the arguments of the operands that the layer takes
    - `arguments(impl, inputs, **given)`: the arguments besides operands, such as masks, changed by
      `given`

    What is tested besides the cases:

    - `wrong`: arguments of the constructor that a layer must refuse
    - `paths(impl, inputs)`: see `Implementation`
    """

    name: str
    operator: Operator
    make: Callable[..., Any]
    called: Callable[..., PreparedCall]
    parameters: Any = None
    declared: Declared = field(default_factory=Declared)
    differentiable: Callable[[FrameworkLayer, Inputs], PreparedCall] = lambda impl, inputs: (
        impl.prepare(inputs)
    )
    operands: Mapping[str, str] = field(default_factory=lambda: {n: n for n in OPERANDS})
    arguments: Callable[..., dict[str, Any]] = lambda impl, inputs: {}
    paths: Callable[[FrameworkLayer, Inputs], Mapping[str, PreparedCall]] = lambda impl, inputs: {}


class FrameworkLayer(FromRow):
    """The implementation that calls the layer of a row. `made_layers`: shared layers, by
    configuration."""

    def __init__(self, backend: Backend, layer: Layer) -> None:
        self.operator = layer.operator
        self.made_layers: dict[str, Any] = {}
        super().__init__(backend, layer)

    def make(self, inputs: Inputs, **flags: Any) -> Any:
        """A new layer; `flags` go to its constructor."""
        return self.row.make(self, inputs, **flags)

    def arguments(self, inputs: Inputs, **given: Any) -> dict[str, Any]:
        """The arguments of a call; `given` changes those besides operands."""
        arrays = sequences(self.backend, inputs)
        operands = {argument: arrays[name] for name, argument in self.row.operands.items()}
        return operands | self.row.arguments(self, inputs, **given)

    def call(
        self,
        inputs: Inputs,
        given: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
        **how: Any,
    ) -> PreparedCall:
        """A call of the layer, changed by `how` (see `Layer`). `without`: arguments to leave out."""
        arguments = self.arguments(inputs, **(given or {}))
        passed = {name: value for name, value in arguments.items() if name not in without}
        return self.row.called(self, inputs, passed, **how)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        return self.row.differentiable(self, inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return self.row.paths(self, inputs)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        return {call_text(way): partial(self._answer, inputs, way) for way in self.row.wrong}

    def _answer(self, inputs: Inputs, flags: Mapping[str, Any]) -> Any:
        """The outputs of a layer that is made with these flags."""
        return self.call(inputs, **flags)()


STEPS = (1.0, 2.0)
"""The factor of the query in each step of training."""


def can_train(inputs: Inputs) -> bool:
    """True for an evaluation of a norm that stores statistics, in which training shows: not in 16
    bits."""
    stored = inputs.operator.array_kinds.statistics
    return bool(stored) and not inputs.training and not inputs.dtype.is_half


def with_epsilon(norm: Implementation, inputs: Inputs, epsilon: float) -> PreparedCall:
    """The norm's call with another epsilon."""
    problem = inputs.replace(epsilon=epsilon)
    return replace(norm.prepare(problem), problem=problem)


def after_training(call: Callable[..., PreparedCall], inputs: Inputs) -> PreparedCall:
    """The call of an evaluation after training on `STEPS`; each batch contributes 0.01 to the statistics.
    `call(inputs, steps=...)` prepares the norm's call after these steps."""
    return replace(call(inputs, steps=STEPS), problem=trained(inputs, (0.01, 0.01)))


def trained(inputs: Inputs, shares: Sequence[float], unbiased: bool = False) -> Inputs:
    """The inputs of an evaluation after a step of training on each of `STEPS`. New statistics are a
    weighted mean of the batch's (weights `shares`) and the old. `unbiased` divides the batch's variance
    by n - 1."""
    mean, variance = inputs.parameters["mean"], inputs.parameters["variance"]
    count = inputs.query.shape[0] * inputs.query.shape[1]
    for factor, share in zip(STEPS, shares, strict=True):
        tokens = factor * inputs.query.astype(np.longdouble)
        batch_variance = tokens.var((0, 1)) * (count / (count - 1) if unbiased else 1.0)
        mean = (1 - share) * mean + share * tokens.mean((0, 1))
        variance = (1 - share) * variance + share * batch_variance
    statistics = {"mean": np.float64(mean), "variance": np.float64(variance)}
    return inputs.replace(**statistics, averaged=max(STEPS))
