"""Rows of Flax Linen's norms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from attention_conformance.backends._jax.flax_modules import EPSILON
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.statistics import after_training, can_train, with_epsilon
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

BATCH_EPSILON = 1e-5
"""The default epsilon of Flax's batch norm."""


def collections(p: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Canonical parameters as collections of variables by Flax's names."""
    params = {
        theirs: p[ours] for theirs, ours in (("scale", "gain"), ("bias", "offset")) if ours in p
    }
    if "mean" not in p:
        return {"params": params}
    return {"params": params, "batch_stats": {"mean": p["mean"], "var": p["variance"]}}


def norm(
    kind: str, own: FrameworkLayer, inputs: Inputs, training: bool | None = None, **flags: Any
) -> Any:
    """A module of `flax.linen`. As in users' code, a default epsilon is not passed."""
    from flax import linen

    dtype, affine = own.backend.numpy.dtype(inputs.dtype.long_name), "gain" in inputs.parameters
    told = {"dtype": dtype, "param_dtype": dtype, "use_scale": affine, "use_bias": affine}
    if kind == "BatchNorm":
        told["use_running_average"] = not (inputs.training if training is None else training)
    if inputs.epsilon != (BATCH_EPSILON if kind == "BatchNorm" else EPSILON):
        told["epsilon"] = inputs.epsilon
    return getattr(linen, kind)(**(told | flags))


def called(
    own: FrameworkLayer,
    inputs: Inputs,
    arguments: dict[str, Any],
    *,
    masked: bool = False,
    steps: Sequence[float] = (),
    stored: str = "",
    **flags: Any,
) -> PreparedCall:
    """The call through `jax.jit`.

    - `masked`: with additional elements that a mask excludes
    - `steps`: the number of training steps before, each on a multiple of the query
    - `stored`: the dtype of the parameters, by default that of the inputs
    """
    backend, training = own.backend, inputs.training
    dtype = DTYPES[stored] if stored else inputs.dtype
    flags |= {"param_dtype": dtype.long_name} if stored else {}
    module, trains = (own.make(inputs, training=flag, **flags) for flag in (training, True))
    changed = ["batch_stats"] if training else False

    def call(query: Any, **mine: Any) -> tuple[Any, None]:
        samples, rows, width = query.shape
        hidden = {}
        if masked:
            query, mine, hidden["mask"] = wider(own, query, mine)
        variables = own.layer.parameters(mine)
        for factor in steps:
            variables |= trains.apply(variables, factor * query, mutable=["batch_stats"])[1]
        answer = module.apply(variables, query, **hidden, mutable=changed)
        return (answer[0] if training else answer)[:samples, :rows, :width], None

    parameters = {name: backend.array(a, dtype) for name, a in inputs.parameters.items()}
    constants = (repr(module), training, masked, stored, *steps)
    return backend.jitted(
        own, PreparedCall(call, arguments | parameters, LAYER_OUTPUTS, constants=constants)
    )


def wider(
    own: FrameworkLayer, query: Any, parameters: dict[str, Any]
) -> tuple[Any, dict[str, Any], Any]:
    """Query and parameters with one more feature (layer norm) or token (batch norm), and the mask that
    excludes it."""
    numpy, features = own.backend.numpy, own.operator is LAYER_NORM
    axis = 2 if features else 1
    size = query.shape[axis]
    pads = [(0, int(n == axis)) for n in range(3)]
    shown = numpy.arange(size + 1) < size
    if not features:
        return numpy.pad(query, pads, constant_values=7.0), parameters, shown[:, None]
    more = {name: numpy.pad(array, (0, 1)) for name, array in parameters.items()}
    return numpy.pad(query, pads, constant_values=7.0), more, shown


def paths(epsilon: float, own: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Calls with other settings, with a mask, and after training; `epsilon` is the default."""
    calls = {
        "use_fast_variance=False": own.call(inputs, use_fast_variance=False),
        "default epsilon": with_epsilon(own, inputs, epsilon),
    }
    if own.operator is LAYER_NORM or inputs.training:
        calls["mask"] = own.call(inputs, masked=True)
    if inputs.dtype.is_half and "gain" in inputs.parameters:
        calls["parameters in float32"] = own.call(inputs, stored="f32")
    if can_train(inputs):
        calls["after training"] = after_training(own.call, inputs)
    return calls


LINEN_LAYER_NORM = Layer(
    "flax-layer-norm",
    LAYER_NORM,
    partial(norm, "LayerNorm"),
    called,
    collections,
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
