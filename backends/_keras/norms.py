"""Rows of `keras.layers.LayerNormalization` and `keras.layers.BatchNormalization`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras.layer import assigned, called, differentiable
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.layer import (
    FrameworkLayer,
    Layer,
    after_training,
    can_train,
    with_epsilon,
)
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

NAMES = {
    "gain": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance",
}  # fmt: skip
"""By canonical parameter of a norm: Keras' name."""

DEFAULT_EPSILON = 1e-3
"""The default epsilon of Keras' norms."""


def norm(kind: str, impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a norm of `keras.layers`, built, with the inputs' parameters. `kind`: the name of its
    class, "LayerNormalization" or "BatchNormalization"; `flags`: further arguments of the class."""
    import keras

    # As in users' code: default values are not passed.
    unscaled = {} if "gain" in inputs.parameters else {"center": False, "scale": False}
    epsilon = {} if inputs.epsilon == DEFAULT_EPSILON else {"epsilon": inputs.epsilon}
    settings = {"dtype": inputs.dtype.long_name, **unscaled, **epsilon, **flags}
    layer = getattr(keras.layers, kind)(**settings)
    layer.build(inputs.query.shape)
    return assigned(impl, inputs, layer)


def variables(layer: Any) -> dict[str, Any]:
    """Returns the variables of a layer by canonical names; None for those that it lacks."""
    by_keras_name = {variable.name: variable for variable in layer.variables}
    return {name: by_keras_name.get(keras_name) for name, keras_name in NAMES.items()}


def call_layer(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with the array `query` (B, L, E) and the keyword arguments `options`. Returns its
    output."""
    return layer(arrays["query"], **options)


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls of norms with the default epsilon, with a mask, and after training."""
    calls = {"default epsilon": with_epsilon(impl, inputs, DEFAULT_EPSILON)}
    if not hasattr(impl.backend, "jitted_native"):
        calls["attached mask"] = with_attached_mask(impl, inputs)
    if can_train(inputs):
        calls["after training"] = after_training(impl.call, inputs)
    return calls


def with_attached_mask(impl: FrameworkLayer, inputs: Inputs) -> PreparedCall:
    """Returns the call with an attached mask that masks no token. The answer must carry the mask."""
    plain_call = impl.call(inputs)
    mask = impl.backend.array(np.ones(inputs.query.shape[:2], bool), None)

    def run(query: Any) -> tuple[Any, None]:
        from keras.src.backend import get_keras_mask, set_keras_mask

        set_keras_mask(query, mask)
        output, _ = plain_call.function(query=query)
        if get_keras_mask(output) is None:
            raise RuntimeError("the layer does not pass on the mask of the tokens")
        return output, None

    return replace(plain_call, function=run)


def norms(engine: str) -> Iterator[Layer]:
    """Yields the rows on an engine."""
    # keras.ops casts float64 to float32, and the answer back, except on TensorFlow.
    float64_class = "exact" if engine == "tensorflow" else "single"
    numerics = dict.fromkeys(DTYPES, "exact") | {"f64": float64_class}
    layer_norm = Layer(
        "keras-layer-norm", LAYER_NORM, partial(norm, "LayerNormalization"),
        partial(called, apply=call_layer), variables,
        Declared(numerics=numerics, features=LAYER_FEATURES),
        differentiable=differentiable, operands={"query": "query"}, paths=paths,
        wrong=({"axis": 1.5},),
    )  # fmt: skip
    yield layer_norm
    yield layer_norm.but(
        name="keras-batch-norm",
        operator=BATCH_NORM,
        make=partial(norm, "BatchNormalization"),
        arguments=lambda impl, inputs: {"training": inputs.training},
        wrong=(),
    )
