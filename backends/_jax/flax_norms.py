"""Flax Linen's norms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.flax_layers import EPSILON
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.statistics import after_training, can_train, with_epsilon
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

NAMES = {"params": {"scale": "gain", "bias": "offset"}}
"""Canonical parameters of a norm by Flax's names, for each collection of variables."""


class FlaxNorm(Implementation):
    """A norm of Flax Linen; its parameters and statistics are variables."""

    backend: JaxEngine

    names: Mapping[str, Mapping[str, str]] = NAMES
    own_epsilon: float
    """Flax's default epsilon."""

    @abstractmethod
    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        """The module; `settings` are those that both norms have."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        slow: dict[str, Any] = {"use_fast_variance": False}
        calls = {
            "use_fast_variance=False": self.call(inputs, **slow),
            "dtype=None": self.call(inputs, dtype=None),
            "default epsilon": with_epsilon(self, inputs, self.own_epsilon),
        }
        if self.hides(inputs):
            calls["mask"] = self.call(inputs, masked=True)
            other = self.call(inputs, masked=True, mask_dtype="int32", **slow)
            calls["mask of whole numbers, use_fast_variance=False"] = other
        if inputs.dtype.is_half and "gain" in inputs.parameters:
            calls["parameters in float32"] = self.call(inputs, wide_parameters=True)
        if can_train(inputs):
            calls["after training"] = after_training(self.call, inputs)
        return calls

    def hides(self, inputs: Inputs) -> bool:
        """Whether a mask can exclude elements from the statistics."""
        return True

    @abstractmethod
    def more(self, query: Any, own: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        """Query and parameters with additional elements, and the mask that excludes these."""

    def call(
        self,
        inputs: Inputs,
        masked: bool = False,
        steps: Sequence[float] = (),
        mask_dtype: str = "bool",
        wide_parameters: bool = False,
        **flags: Any,
    ) -> PreparedCall:
        """A call with more settings.

        - `masked`: with additional elements that a mask excludes
        - `steps`: the number of training steps before, each on a multiple of the query
        - `wide_parameters`: parameters are float32, as in most models
        """
        import flax.linen as linen

        backend, training = self.backend, inputs.training
        stored = DTYPES["f32"] if wide_parameters else inputs.dtype
        number, own_number = (backend.numpy.dtype(d.long_name) for d in (inputs.dtype, stored))
        affine = "gain" in inputs.parameters
        settings = {
            "dtype": number,
            "param_dtype": own_number,
            "use_scale": affine,
            "use_bias": affine,
            **flags,
        }
        if inputs.epsilon != self.own_epsilon:
            settings["epsilon"] = inputs.epsilon
        module, trains = (self.module(linen, settings, flag) for flag in (training, True))
        changed = ["batch_stats"] if training else False

        def call(query: Any, **own: Any) -> tuple[Any, None]:
            samples, rows, width = query.shape
            hidden = {}
            if masked:
                query, own, mask = self.more(query, own)
                hidden["mask"] = mask.astype(mask_dtype)
            variables = {
                kind: {theirs: own[ours] for theirs, ours in names.items() if ours in own}
                for kind, names in self.names.items()
            }
            for factor in steps:
                _, changes = trains.apply(variables, factor * query, mutable=["batch_stats"])
                variables |= changes
            answer = module.apply(variables, query, **hidden, mutable=changed)
            return (answer[0] if training else answer)[:samples, :rows, :width], None

        parameters = {n: backend.array(a, stored) for n, a in inputs.parameters.items()}
        arguments = {"query": sequences(backend, inputs)["query"], **parameters}
        constants = (settings, training, masked, mask_dtype, *steps)
        return backend.jitted(
            self, PreparedCall(call, arguments, LAYER_OUTPUTS, constants=constants)
        )


class LinenLayerNorm(FlaxNorm):
    """`flax.linen.LayerNorm` over the last axis."""

    name = "flax-layer-norm"
    operator = LAYER_NORM
    own_epsilon = EPSILON
    declared = Declared(numerics="exact", features=LAYER_FEATURES)

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.LayerNorm(**settings)

    def more(self, query: Any, own: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        numpy = self.backend.numpy
        shown = numpy.arange(query.shape[-1] + 1) < query.shape[-1]
        wider = {name: numpy.pad(array, (0, 1)) for name, array in own.items()}
        return numpy.pad(query, ((0, 0), (0, 0), (0, 1)), constant_values=7.0), wider, shown


class LinenBatchNorm(FlaxNorm):
    """`flax.linen.BatchNorm` over all axes except the last."""

    name = "flax-batch-norm"
    operator = BATCH_NORM
    own_epsilon = 1e-5
    declared = Declared(
        # In evaluation with 16-bit parameters every step is in 16 bits.
        numerics={"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"},
        features=LAYER_FEATURES,
    )
    names = {**NAMES, "batch_stats": {"mean": "mean", "var": "variance"}}

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.BatchNorm(use_running_average=not training, **settings)

    def hides(self, inputs: Inputs) -> bool:
        return inputs.training

    def more(self, query: Any, own: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        numpy = self.backend.numpy
        shown = numpy.arange(query.shape[1] + 1)[:, None] < query.shape[1]
        return numpy.pad(query, ((0, 0), (0, 1), (0, 0)), constant_values=7.0), own, shown
