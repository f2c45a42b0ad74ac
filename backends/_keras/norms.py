"""`keras.layers.LayerNormalization` and `keras.layers.BatchNormalization`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backends._keras.layer import Called
from backends._keras.variables import by_values, with_leaves
from backends.declared import LAYER_FEATURES, Declared
from backends.memory import sequences
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from backends.protocol import Backend, Implementation
from backends.statistics import after_training, can_train, with_epsilon
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs
from suite.spec.operators.batch_norm import BATCH_NORM
from suite.spec.operators.layer_norm import LAYER_NORM

NAMES = {
    "gain": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance",
}  # fmt: skip
"""What Keras calls the canonical parameters of a norm."""


OWN_EPSILON = 1e-3
"""The default of Keras' norms."""


class KerasNorm(Implementation):
    """A norm of Keras over the last axis: one statistic a token, or one a feature. Engines differ as for
    `KerasLayer`."""

    declared = Declared(numerics="exact", features=LAYER_FEATURES)
    kind = ""
    trains = False

    def __init__(self, backend: Backend, engine: str, called: Called | None = None) -> None:
        declared = self.declared
        if engine != "tensorflow":
            # keras.ops maps float64 to float32, and the answer is cast back.
            declared = declared.but(numerics=dict.fromkeys(DTYPES, "exact") | {"f64": "single"})
        super().__init__(backend, declared=declared)
        self.called = called
        self.kept: dict[str, Any] = {}

    def layer(self, inputs: Inputs) -> Any:
        """A fresh layer with the inputs' parameters."""
        import keras

        p, backend = inputs.parameters, self.backend
        # As people write it: what is so by default is not said.
        told: dict[str, Any] = {} if "gain" in p else {"center": False, "scale": False}
        if inputs.epsilon != OWN_EPSILON:
            told["epsilon"] = inputs.epsilon
        layer = getattr(keras.layers, self.kind)(dtype=inputs.dtype.long_name, **told)
        layer.build(inputs.query.shape)
        for name, variable in self.variables(layer, inputs).items():
            variable.assign(backend.array(p[name], inputs.dtype))
        return layer

    def variables(self, layer: Any, inputs: Inputs) -> dict[str, Any]:
        """The variables of a layer by their canonical names."""
        own = {variable.name: variable for variable in layer.variables}
        variables = {ours: own[theirs] for ours, theirs in NAMES.items() if theirs in own}
        return {name: v for name, v in variables.items() if name in inputs.parameters}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        if self.called is not None:
            return self.prepare(inputs)
        layer = self.layer(inputs)
        trained = {
            name: variable
            for name, variable in self.variables(layer, inputs).items()
            if name not in inputs.operator.statistics
        }
        return with_leaves(self.call(inputs, layer), trained)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        found = {"default epsilon": with_epsilon(self, inputs, OWN_EPSILON)}
        if self.called is None:
            found["attached mask"] = self.with_mask(inputs)
        if can_train(inputs):
            found["after training"] = after_training(self.call, inputs)
        return found

    def with_mask(self, inputs: Inputs) -> PreparedCall:
        """The call on tokens to which a mask is attached that hides none; the answer carries it on."""
        plain = self.call(inputs)
        shown = self.backend.array(np.ones(inputs.query.shape[:2], bool), None)

        def run(query: Any) -> tuple[Any, None]:
            from keras.src.backend import get_keras_mask, set_keras_mask

            set_keras_mask(query, shown)
            output, _ = plain.function(query=query)
            if get_keras_mask(output) is None:
                raise RuntimeError(
                    "the mask of the tokens is lost: the layer hands it on to nobody"
                )
            return output, None

        return replace(plain, function=run)

    def call(self, inputs: Inputs, layer: Any = None, steps: Sequence[float] = ()) -> PreparedCall:
        """The call of a layer, by default one with the inputs' parameters, after so many `steps` of
        training, each on a multiple of the query."""
        options = {"training": inputs.training} if self.trains else {}
        constants = (inputs.sizes, inputs.widths, inputs.dtype.name, inputs.case.options, *steps)
        if layer is None and self.called is None:
            layer = self.layer(inputs)
        elif layer is None:
            key = repr(constants)
            if key not in self.kept:
                self.kept[key] = self.layer(inputs)
            layer = self.kept[key]

        def run(query: Any) -> tuple[Any, None]:
            called = self.layer(inputs) if steps and self.called is None else layer
            for factor in steps:
                called(factor * query, training=True)
            return called(query, **options), None

        arrays = {"query": sequences(self.backend, inputs)["query"]}
        if self.called is None:
            return PreparedCall(run, arrays, LAYER_OUTPUTS)
        variables = self.variables(layer, inputs)
        stateless = by_values(self.backend, run, arrays, variables, inputs, constants)
        return self.called(self, stateless, inputs.dtype)


class KerasLayerNorm(KerasNorm):
    """`keras.layers.LayerNormalization`."""

    name = "keras-layer-norm"
    operator = LAYER_NORM
    kind = "LayerNormalization"


class KerasBatchNorm(KerasNorm):
    """`keras.layers.BatchNormalization`."""

    name = "keras-batch-norm"
    operator = BATCH_NORM
    kind = "BatchNormalization"
    trains = True
