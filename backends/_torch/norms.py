"""PyTorch's norms: `torch.nn.LayerNorm` and `torch.nn.BatchNorm1d`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from attention_conformance.backends._torch import modules
from attention_conformance.backends._torch.modules import called, differentiable, with_state
from attention_conformance.backends.declared import LAYER_FEATURES, Declared, DeclaredRounding
from attention_conformance.backends.layer import (
    STEPS,
    FrameworkLayer,
    Layer,
    can_train,
    inputs_after_training,
    with_epsilon,
)
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

NAMES = {
    "gain": "weight", "offset": "bias", "mean": "running_mean", "variance": "running_var",
}  # fmt: skip
"""By canonical parameter: torch's name."""

OWN_EPSILON = 1e-5
"""The default epsilon of torch's norms."""


def state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Returns canonical parameters by the module's names."""
    return {NAMES[name]: array for name, array in p.items()}


def norm(kind: Any, affine: str, impl: FrameworkLayer, inputs: Inputs, /, **flags: Any) -> Any:
    """Returns a norm of class `kind` with the inputs' parameters. `affine` is its argument for gain and
    offset."""
    p = inputs.parameters
    # As in users' code: default values are not passed.
    arguments: dict[str, Any] = {} if "gain" in p else {affine: False}
    if inputs.epsilon != OWN_EPSILON:
        arguments["eps"] = inputs.epsilon
    layer = kind(inputs.widths.query, **modules.settings(impl, inputs), **(arguments | flags))
    named = {n: a for n, a in state(p, np.concatenate).items() if n in layer.state_dict()}
    return with_state(impl, inputs, layer, named, strict=False)


def layer_norm(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `torch.nn.LayerNorm` over the last axis."""
    import torch

    return norm(torch.nn.LayerNorm, "elementwise_affine", impl, inputs, **flags)


@cache
def batch_norm_of_last_axis() -> Any:
    """Returns a subclass of `torch.nn.BatchNorm1d` for tokens (B, L, E). Torch's class takes (B, E,
    L)."""
    import torch

    class LastAxisBatchNorm(torch.nn.BatchNorm1d):
        def forward(self, input: Any) -> Any:
            return super().forward(input.transpose(1, 2)).transpose(1, 2)

    return LastAxisBatchNorm


def batch_norm(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `torch.nn.BatchNorm1d` over the features in the last axis."""
    return norm(batch_norm_of_last_axis(), "affine", impl, inputs, **flags)


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls with the default epsilon, and after training."""
    calls = {"default epsilon": with_epsilon(impl, inputs, OWN_EPSILON)}
    if can_train(inputs):
        calls["after training"] = after_training(impl, inputs)
    return calls


def after_training(impl: FrameworkLayer, inputs: Inputs) -> PreparedCall:
    """Returns an evaluation after training steps, with evaluations in between, which must not change
    statistics. torch divides the running variance by n - 1."""

    def call(input: Any) -> tuple[Any, None]:
        layer = impl.make(inputs)
        for factor in STEPS:
            layer.train()(factor * input)
            layer.eval()(input)
        return layer(input), None

    problem = inputs_after_training(inputs, (0.1, 0.1), unbiased=True)
    return replace(impl.prepare(inputs), function=call, layer_parameters=(), problem=problem)


LAYER_NORM_ROUNDING = DeclaredRounding(
    # With parameters in 16 bits native_layer_norm returns mean and root in 16 bits.
    narrow_statistics=("bf16", "f16"),
    # Its derivative adds row after row to gradients in 16 bits.
    narrow_biases=dict.fromkeys(("bf16", "f16"), ("gain", "offset")),
)

LAYER = Layer(
    "nn-layer-norm",
    LAYER_NORM,
    layer_norm,
    called,
    state,
    Declared(numerics="exact", features=LAYER_FEATURES, rounding=LAYER_NORM_ROUNDING),
    differentiable=differentiable,
    operands={"query": "input"},
    paths=paths,
)

BATCH = LAYER.but(
    name="nn-batch-norm",
    operator=BATCH_NORM,
    make=batch_norm,
    declared=Declared(
        # With parameters in 16 bits the batch's mean and variance are stored in 16 bits, too.
        numerics={"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"},
        features=LAYER_FEATURES,
    ),
)
