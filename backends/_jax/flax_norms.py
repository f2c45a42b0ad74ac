"""Rows of Flax Linen's norms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from attention_conformance.backends._jax.flax_modules import EPSILON
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.layer import (
    FrameworkLayer,
    Layer,
    after_training,
    can_train,
    with_epsilon,
)
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

BATCH_EPSILON = 1e-5
"""The default epsilon of Flax's batch norm."""


def variable_collections(parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns canonical parameters as collections of variables by Flax's names."""
    params = {
        flax_name: parameters[name]
        for flax_name, name in (("scale", "gain"), ("bias", "offset"))
        if name in parameters
    }
    if "mean" not in parameters:
        return {"params": params}
    statistics = {"mean": parameters["mean"], "var": parameters["variance"]}
    return {"params": params, "batch_stats": statistics}


def norm(
    kind: str, impl: FrameworkLayer, inputs: Inputs, training: bool | None = None, **flags: Any
) -> Any:
    """Returns a module of `flax.linen`. As in users' code, a default epsilon is not passed."""
    from flax import linen

    dtype, affine = impl.backend.numpy.dtype(inputs.dtype.long_name), "gain" in inputs.parameters
    settings = {"dtype": dtype, "param_dtype": dtype, "use_scale": affine, "use_bias": affine}
    if kind == "BatchNorm":
        settings["use_running_average"] = not (inputs.training if training is None else training)
    if inputs.epsilon != (BATCH_EPSILON if kind == "BatchNorm" else EPSILON):
        settings["epsilon"] = inputs.epsilon
    return getattr(linen, kind)(**(settings | flags))


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: dict[str, Any],
    *,
    steps: Sequence[float] = (),
    storage_dtype: str = "",
    **flags: Any,
) -> PreparedCall:
    """Returns the call through `jax.jit`.

    - `steps`: for each training step before the call, the factor of the query
    - `storage_dtype`: the dtype of the parameters, by default that of the inputs
    """
    backend, training = impl.backend, inputs.training
    dtype = DTYPES[storage_dtype] if storage_dtype else inputs.dtype
    flags |= {"param_dtype": dtype.long_name} if storage_dtype else {}
    module, trainer = (impl.make(inputs, training=flag, **flags) for flag in (training, True))
    mutable = ["batch_stats"] if training else False

    def call(query: Any, **parameters: Any) -> tuple[Any, None]:
        variables = impl.row.parameters(parameters)
        for factor in steps:
            variables |= trainer.apply(variables, factor * query, mutable=["batch_stats"])[1]
        answer = module.apply(variables, query, mutable=mutable)
        return answer[0] if training else answer, None

    parameters = {name: backend.array(a, dtype) for name, a in inputs.parameters.items()}
    constants = (repr(module), training, storage_dtype, *steps)
    return backend.jitted(
        impl, PreparedCall(call, arguments | parameters, LAYER_OUTPUTS, constants=constants)
    )


def paths(epsilon: float, impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls with the default `epsilon`, with parameters in float32, and after training."""
    calls = {"default epsilon": with_epsilon(impl, inputs, epsilon)}
    if inputs.dtype.is_half and "gain" in inputs.parameters:
        calls["parameters in float32"] = impl.call(inputs, storage_dtype="f32")
    if can_train(inputs):
        calls["after training"] = after_training(impl.call, inputs)
    return calls


LINEN_LAYER_NORM = Layer(
    "flax-layer-norm",
    LAYER_NORM,
    partial(norm, "LayerNorm"),
    called,
    variable_collections,
    Declared(numerics="exact", features=LAYER_FEATURES),
    operands={"query": "query"},
    paths=partial(paths, EPSILON),
)

LINEN_BATCH_NORM = LINEN_LAYER_NORM.but(
    name="flax-batch-norm",
    operator=BATCH_NORM,
    make=partial(norm, "BatchNorm"),
    declared=Declared(
        # In evaluation with 16-bit parameters every step is in 16 bits.
        numerics={"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"},
        features=LAYER_FEATURES,
    ),
    paths=partial(paths, BATCH_EPSILON),
)
