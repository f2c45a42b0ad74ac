"""A framework's layer as a row (`Layer`) in a backend's table of implementations, and the implementation
that calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.implementation import FromRow, Implementation, Row
from attention_conformance.backends.kernel import call_text
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.vocabulary import OPERANDS

SEED = "dropout_seed"
"""The argument with the seed of dropout, of calls that take it as an array."""


def output_and_weights(answer: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Returns (output, weights) of a layer's answer, which is a pair or only the output. The weights are
    None if the case does not ask for weights."""
    output, weights = answer if isinstance(answer, tuple | list) else (answer, None)
    return output, weights if inputs.returned != "none" else None


@dataclass(frozen=True, eq=False)
class Layer(Row):
    """A framework's layer as a row.

    What is called:

    - `operator`: see `Implementation`
    - `make(impl, inputs, **flags)`: a new layer; `flags` go to its constructor
    - `parameters`: where the canonical parameters are in the layer, in the form that `called` needs
    - `called(impl, inputs, arguments, **options)`: the PreparedCall of a new layer
    - `differentiable(impl, inputs)`: see `Implementation`

    How the layer is called:

    - `operands`: by operand, the name of the layer's argument
    - `arguments(impl, inputs, **changes)`: all arguments except operands, such as masks. `changes` choose
      other forms of them

    What is tested besides the cases:

    - `wrong`: arguments of the constructor that a layer must refuse
    - `paths(impl, inputs)`: further calls by name that must give the same answer
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
    """The implementation that calls the layer of a row. `made_layers`: layers that several calls share,
    by configuration."""

    def __init__(self, backend: Backend, layer: Layer) -> None:
        self.operator = layer.operator
        self.made_layers: dict[str, Any] = {}
        super().__init__(backend, layer)

    def make(self, inputs: Inputs, **flags: Any) -> Any:
        """Returns a new layer; `flags` go to its constructor."""
        return self.row.make(self, inputs, **flags)

    def arguments(self, inputs: Inputs, **changes: Any) -> dict[str, Any]:
        """Returns the arguments of a call, operands included. `changes` go to `Layer.arguments`."""
        arrays = operand_arrays(self.backend, inputs)
        operands = {argument: arrays[name] for name, argument in self.row.operands.items()}
        return operands | self.row.arguments(self, inputs, **changes)

    def call(
        self,
        inputs: Inputs,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
        **options: Any,
    ) -> PreparedCall:
        """Returns a call of the layer. `changes` go to `Layer.arguments`, `options` to `Layer.called`.
        `without`: names of arguments to leave out."""
        arguments = self.arguments(inputs, **(changes or {}))
        passed = {name: value for name, value in arguments.items() if name not in without}
        return self.row.called(self, inputs, passed, **options)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        return self.row.differentiable(self, inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return self.row.paths(self, inputs)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        return {call_text(way): partial(self._answer, inputs, way) for way in self.row.wrong}

    def _answer(self, inputs: Inputs, flags: Mapping[str, Any]) -> Any:
        """Returns the outputs of a new layer made with `flags`."""
        return self.call(inputs, **flags)()


STEPS = (1.0, 2.0)
"""The factors of the query in the training steps."""


def can_train(inputs: Inputs) -> bool:
    """True if training before the call can be tested: in an evaluation of a norm that stores statistics,
    except in 16 bits."""
    stored = inputs.operator.array_kinds.statistics
    return bool(stored) and not inputs.training and not inputs.dtype.is_half


def with_epsilon(norm: Implementation, inputs: Inputs, epsilon: float) -> PreparedCall:
    """Returns the norm's call with another epsilon, and with the problem that it answers."""
    problem = inputs.replace(epsilon=epsilon)
    return replace(norm.prepare(problem), problem=problem)


def after_training(call: Callable[..., PreparedCall], inputs: Inputs) -> PreparedCall:
    """Returns an evaluation after training on `STEPS`. Each batch contributes 0.01 to the statistics.
    `call(inputs, steps=...)` prepares the norm's call after these steps."""
    return replace(call(inputs, steps=STEPS), problem=inputs_after_training(inputs, (0.01, 0.01)))


def inputs_after_training(
    inputs: Inputs, shares: Sequence[float], unbiased: bool = False
) -> Inputs:
    """Returns the inputs of an evaluation whose statistics are those after a training step on each of
    `STEPS`. Step n sets statistics to `shares[n]` times the batch's plus 1 - `shares[n]` times the old
    ones. `unbiased` divides the batch's variance by n - 1 instead of n."""
    mean, variance = inputs.parameters["mean"], inputs.parameters["variance"]
    token_count = inputs.query.shape[0] * inputs.query.shape[1]
    for factor, share in zip(STEPS, shares, strict=True):
        tokens = factor * inputs.query.astype(np.longdouble)
        batch_variance = tokens.var((0, 1)) * (token_count / (token_count - 1) if unbiased else 1.0)
        mean = (1 - share) * mean + share * tokens.mean((0, 1))
        variance = (1 - share) * variance + share * batch_variance
    statistics = {"mean": np.float64(mean), "variance": np.float64(variance)}
    return inputs.replace(**statistics, averaged=max(STEPS))
