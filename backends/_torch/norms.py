"""PyTorch's norms: `torch.nn.LayerNorm` and `torch.nn.BatchNorm1d`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import LAYER_FEATURES, Declared, DeclaredRounding
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.statistics import STEPS, can_train, trained, with_epsilon
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM


class TorchNorm(Implementation):
    """A norm of torch: a module whose weight and bias are gain and offset."""

    names: Mapping[str, str] = {"weight": "gain", "bias": "offset"}
    """Canonical parameters by torch's names."""

    @abstractmethod
    def module(self, inputs: Inputs, **flags: Any) -> Any:
        """A module in float32 with its initial parameters; `flags` go to its constructor."""

    def turned(self, x: Any) -> Any:
        """Convert (B, L, E) to the module's axis order, or back."""
        return x

    def build(self, inputs: Inputs, **flags: Any) -> Any:
        """A new layer with the inputs' parameters; `flags` go to its constructor."""
        make = partial(self.module, inputs, **flags)
        layer = self.backend.memory.made(make, inputs.dtype).train(inputs.training)
        p = inputs.parameters
        state = {n: self.backend.array(p[g], inputs.dtype) for n, g in self.names.items() if g in p}
        layer.load_state_dict(state, strict=False)
        return layer

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def call(self, inputs: Inputs, evaluated: bool = False, **flags: Any) -> PreparedCall:
        """A call of a new layer; with `evaluated` in eval() even for inputs in training. `flags` go
        to its constructor."""
        layer, query = self.build(inputs, **flags), sequences(self.backend, inputs)["query"]
        layer.train(inputs.training and not evaluated)

        def call(query: Any) -> tuple[Any, None]:
            return self.turned(layer(self.turned(query))), None

        return PreparedCall(call, {"query": query}, LAYER_OUTPUTS)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        import torch

        plain, layer = self.prepare(inputs), self.build(inputs)
        names = {ours: theirs for theirs, ours in self.names.items()}
        state = dict(layer.named_parameters())
        parameters = {
            ours: state[theirs].detach() for ours, theirs in names.items() if theirs in state
        }

        def call(query: Any, **own: Any) -> tuple[Any, None]:
            named = {names[ours]: array for ours, array in own.items()}
            output = torch.func.functional_call(layer, named, (self.turned(query),))
            return self.turned(output), None

        return PreparedCall(call, plain.arguments | parameters, LAYER_OUTPUTS)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {"default epsilon": with_epsilon(self, inputs, OWN_EPSILON)}


def without(norm: TorchNorm, inputs: Inputs, *names: str, **flags: Any) -> PreparedCall:
    """A call of a norm without the parameters `names`, which the constructor's `flags` remove. A gain is
    then 1, an offset 0."""
    own = {n: np.full_like(inputs.parameters[n], float(n == "gain")) for n in names}
    return replace(norm.call(inputs, **flags), problem=inputs.replace(**own))


OWN_EPSILON = 1e-5
"""The default of torch's norms."""


def told(inputs: Inputs) -> dict[str, Any]:
    """The argument eps; empty if the value is torch's default."""
    return {} if inputs.epsilon == OWN_EPSILON else {"eps": inputs.epsilon}


LAYER_NORM_ROUNDING = DeclaredRounding(
    # With parameters in 16 bits native_layer_norm returns mean and root in 16 bits.
    narrow_statistics=("bf16", "f16"),
    # Its derivative adds row after row to gradients in 16 bits.
    narrow_biases=dict.fromkeys(("bf16", "f16"), ("gain", "offset")),
)


class TorchLayerNorm(TorchNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    name = "nn-layer-norm"
    operator = LAYER_NORM
    declared = Declared(
        numerics="exact",
        features=LAYER_FEATURES,
        rounding=LAYER_NORM_ROUNDING,
    )

    def module(self, inputs: Inputs, **flags: Any) -> Any:
        import torch

        # As in users' code: default values are not passed.
        plain = {} if "gain" in inputs.parameters else {"elementwise_affine": False}
        return torch.nn.LayerNorm(inputs.widths.query, **told(inputs), **plain, **flags)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = dict(super().paths(inputs))
        if "offset" in inputs.parameters:
            calls["bias=False"] = without(self, inputs, "offset", bias=False)
        if inputs.widths.query % 2 == 0:
            calls["two axes"] = self.of_two_axes(inputs)
        return calls

    def of_two_axes(self, inputs: Inputs) -> PreparedCall:
        """The norm over features in two axes."""
        import torch

        plain, shape = self.prepare(inputs), (2, inputs.widths.query // 2)
        own = {n: a.detach().reshape(shape) for n, a in self.build(inputs).named_parameters()}
        affine = bool(own)
        make = partial(torch.nn.LayerNorm, shape, **told(inputs), elementwise_affine=affine)
        layer = self.backend.memory.made(make, inputs.dtype)
        layer.load_state_dict(own)

        def call(query: Any) -> tuple[Any, None]:
            return layer(query.unflatten(-1, shape)).flatten(-2), None

        return replace(plain, function=call)


class TorchBatchNorm(TorchNorm):
    """`torch.nn.BatchNorm1d`, with features in the second axis."""

    name = "nn-batch-norm"
    operator = BATCH_NORM
    declared = Declared(
        # With parameters in 16 bits the batch's mean and variance are stored in 16 bits, too.
        numerics={"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"},
        features=LAYER_FEATURES,
    )
    names = {**TorchNorm.names, "running_mean": "mean", "running_var": "variance"}

    def module(self, inputs: Inputs, **flags: Any) -> Any:
        import torch

        plain = {} if "gain" in inputs.parameters else {"affine": False}
        return torch.nn.BatchNorm1d(inputs.widths.query, **{**told(inputs), **plain, **flags})

    def turned(self, x: Any) -> Any:
        return x.transpose(1, 2)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = dict(super().paths(inputs))
        if "gain" in inputs.parameters:
            calls["affine=False"] = without(self, inputs, "gain", "offset", affine=False)
        if inputs.training:
            forgetful = {"track_running_stats": False}
            calls["track_running_stats=False"] = self.call(inputs, **forgetful)
            # Without running statistics evaluation uses the statistics of the batch.
            calls["track_running_stats=False, eval()"] = self.call(inputs, True, **forgetful)
        if not can_train(inputs):
            return calls
        return {
            **calls,
            "after training": self.trained(inputs, 0.1, (0.1, 0.1)),
            "after training, momentum=None": self.trained(inputs, None, (1.0, 0.5)),
        }

    def trained(
        self, inputs: Inputs, momentum: float | None, shares: Sequence[float]
    ) -> PreparedCall:
        """Evaluation after training steps with evaluations in between, which must not change statistics.
        torch divides the running variance by n - 1."""

        def call(query: Any) -> tuple[Any, None]:
            layer = self.build(inputs)
            if momentum is None:
                layer.momentum = None
            for factor in STEPS:
                layer.train()(self.turned(factor * query))
                layer.eval()(self.turned(query))
            return self.turned(layer(self.turned(query))), None

        problem = trained(inputs, shares, unbiased=True)
        return PreparedCall(call, self.prepare(inputs).arguments, LAYER_OUTPUTS, problem=problem)
