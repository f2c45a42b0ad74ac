"""Flax Linen's norms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from backends._jax.engine import JaxEngine
from backends.declared import LAYER_FEATURES, Declared
from backends.memory import sequences
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from backends.protocol import Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.batch_norm import BATCH_NORM
from suite.spec.operators.layer_norm import EPSILON, LAYER_NORM

NAMES = {"params": {"scale": "gain", "bias": "offset"}}
"""What Flax calls the canonical parameters of a norm, by collection of variables."""


class FlaxNorm(Implementation):
    """A norm of Flax Linen, statistics and all as variables."""

    backend: JaxEngine

    names: Mapping[str, Mapping[str, str]] = NAMES

    @abstractmethod
    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        """The module with the settings that both norms have."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import flax.linen as linen

        backend, training = self.backend, inputs.training
        number = backend.numpy.dtype(inputs.dtype.long_name)
        affine = "gain" in inputs.parameters
        settings = {
            "epsilon": EPSILON, "dtype": number, "param_dtype": number, "use_scale": affine,
            "use_bias": affine,
        }  # fmt: skip
        module = self.module(linen, settings, training)
        changed = ["batch_stats"] if training else False

        def call(query: Any, **own: Any) -> tuple[Any, None]:
            variables = {
                kind: {theirs: own[ours] for theirs, ours in names.items() if ours in own}
                for kind, names in self.names.items()
            }
            answer = module.apply(variables, query, mutable=changed)
            return (answer[0] if training else answer), None

        parameters = {n: backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
        arguments = {"query": sequences(backend, inputs)["query"], **parameters}
        constants = (settings, training)
        return backend.jitted(
            self, PreparedCall(call, arguments, LAYER_OUTPUTS, constants=constants)
        )


class LinenLayerNorm(FlaxNorm):
    """`flax.linen.LayerNorm` over the last axis."""

    name = "flax-layer-norm"
    operator = LAYER_NORM
    declared = Declared(numerics="exact", features=LAYER_FEATURES)

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.LayerNorm(**settings)


class LinenBatchNorm(FlaxNorm):
    """`flax.linen.BatchNorm` over all axes but the last."""

    name = "flax-batch-norm"
    operator = BATCH_NORM
    declared = Declared(
        # In evaluation parameters of 16 bits make every step one of 16 bits.
        numerics={"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"},
        features=LAYER_FEATURES,
    )
    names = {**NAMES, "batch_stats": {"mean": "mean", "var": "variance"}}

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.BatchNorm(use_running_average=not training, **settings)
