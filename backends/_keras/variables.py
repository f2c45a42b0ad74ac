"""Variables of a layer: its own (for tapes and autograd), or arguments of a call as in `stateless_call`
(for engines whose programs depend only on arguments)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.inputs import Inputs

SEED = "dropout_seed"
"""The argument with the state of a layer's random generator."""

INITIAL = {
    "gain": 1.0, "offset": 0.0, "mean": 0.0, "variance": 1.0, "scale": 1.0, "concat_weight": 1.0,
    "query_bias": 0.0, "key_bias": 0.0, "value_bias": 0.0, "output_bias": 0.0,
}  # fmt: skip
"""Initial values of variables by canonical names; other variables are random."""


def initial(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The initial values of those parameters that are not random."""
    return {n: np.full_like(a, INITIAL[n]) for n, a in parameters.items() if n in INITIAL}


def kept(layers: dict[str, Any], constants: tuple[Any, ...], layer: Callable[[], Any]) -> Any:
    """The shared layer of a configuration (`constants`), made on first use."""
    key = repr(constants)
    if key not in layers:
        layers[key] = layer()
    return layers[key]


def random_state(layer: Any) -> dict[str, Any]:
    """The state of a layer's random generator; empty without dropout."""
    states = [v for v in layer.variables if v.name == "seed_generator_state"]
    return dict.fromkeys([SEED], states[-1]) if states else {}


def with_leaves(prepared: PreparedCall, variables: Mapping[str, Any]) -> PreparedCall:
    """The call with the layer's own variables as arguments, for gradients.

    The layer still reads its variables, not the arguments. The call raises ValueError for a variable that
    is not trainable.
    """

    def run(**arguments: Any) -> Any:
        return prepared.function(**{n: a for n, a in arguments.items() if n not in variables})

    fixed = [name for name, variable in variables.items() if not variable.trainable]
    if fixed:
        raise ValueError(f"{', '.join(fixed)}: not trainable, expected trainable variables")
    leaves = {name: variable.value for name, variable in variables.items()}
    return PreparedCall(run, prepared.arguments | leaves, LAYER_OUTPUTS)


def by_values(
    backend: Backend,
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    variables: Mapping[str, Any],
    inputs: Inputs,
    constants: tuple[Any, ...],
) -> PreparedCall:
    """The call as a function of the arrays and of the values of the named variables."""
    import keras

    def run(**arguments: Any) -> Any:
        state = [(variable, arguments.pop(name)) for name, variable in variables.items()]
        with keras.StatelessScope(state_mapping=state):
            return function(**arguments)

    arguments = dict(arrays)
    for name, variable in variables.items():
        if name == SEED:
            arguments[name] = backend.array(np.array([inputs.dropout_seed, 0], np.uint32), None)
        else:
            values = inputs.parameters[name].reshape(variable.shape)
            arguments[name] = backend.array(values, inputs.dtype)
    return PreparedCall(run, arguments, LAYER_OUTPUTS, constants=constants)
