"""Shared code of Keras' attention layers: calls and paths, for every engine.

Arrays are those of the engine. Keras is imported when a call is prepared. In every mask True attends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.variables import (
    INITIAL,
    by_values,
    initial,
    kept,
    random_state,
    with_leaves,
)
from attention_conformance.backends.declared import (
    LAYER_FEATURES,
    Declared,
    DeclaredRounding,
    Election,
)
from attention_conformance.backends.masks import LayerMasks
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs

Called = Callable[[Implementation, PreparedCall, DType], PreparedCall]
"""Transforms a call that depends only on its arguments, as by `jax.jit`, for a dtype."""

NO_BIAS = "Keras' layers have no bias of the scores"

Numerics = str | Mapping[str, str]
"""A numerics class, or a class for each short dtype name."""

INFERENCE_RATE = 0.3
"""The dropout rate of layers in inference, where dropout must have no effect."""


class KerasLayer(Implementation):
    """A layer of Keras, with declarations by engine.

    On engines with `called`, values of variables are arguments, so one layer serves all calls of a
    configuration. On other engines every call has its own layer.
    """

    declared = Declared(
        features=LAYER_FEATURES,
        refusals=dict.fromkeys(("bias", "bias-with-mask"), NO_BIAS),
        dropout="elements",
    )
    numerics: Mapping[str, Numerics] = {}
    """Numerics classes by engine."""
    elections: Mapping[str, Mapping[str, Election]] = {}
    """Elections of engines that differ from `declared`, by engine."""
    says_scores = False
    """Whether models state the right shape of scores (finding keras-scores-shape)."""

    def __init__(self, backend: Backend, engine: str, called: Called | None = None) -> None:
        declared = self.declared.electing(self.elections.get(engine, {})).but(
            numerics=self.numerics.get(engine, "eager"),
            # keras.ops.add of a vector calls tf.nn.bias_add, whose derivative sums in bfloat16.
            rounding=DeclaredRounding(
                narrow_biases={"bf16": ("output_bias",)} if engine == "tensorflow" else {}
            ),
        )
        super().__init__(backend, declared=declared)
        self.called = called
        self.kept: dict[str, Any] = {}

    @abstractmethod
    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        """A layer before build(); `flags` go to its constructor."""

    @abstractmethod
    def build(self, layer: Any, inputs: Inputs) -> None:
        """Make the layer's variables."""

    @abstractmethod
    def variables(self, layer: Any) -> dict[str, Any]:
        """The variables of a layer by canonical names; Keras has the canonical shapes."""

    @abstractmethod
    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """The mask arguments; valid keys are `value_mask`. A causal mask is a flag, and not included."""

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Call the layer with arrays or symbols by argument names."""
        return layer(**arrays, **options)

    def asks_scores(self, inputs: Inputs) -> bool:
        """Whether `return_attention_scores` is set."""
        return inputs.returned != "none"

    def layer(self, inputs: Inputs, restored: bool = False, **flags: Any) -> Any:
        """A new layer with the inputs' parameters; `flags` go to its constructor. With `restored` the
        layer is made from the configuration of another layer."""
        layer = self.unbuilt(inputs, **flags)
        layer = models.restored(layer) if restored else layer
        self.build(layer, inputs)
        return self.assigned(layer, inputs)

    def unbuilt(self, inputs: Inputs, **flags: Any) -> Any:
        """A new layer without variables; `flags` go to its constructor."""
        common = {"dtype": inputs.dtype.long_name, "seed": inputs.dropout_seed}
        rate = {"dropout": inputs.rate} if inputs.rate else {}
        return self.bare(inputs, **{**common, **rate, **flags})

    def assigned(self, layer: Any, inputs: Inputs, drawn_alone: bool = False) -> Any:
        """Set the layer's variables to the inputs' parameters; with `drawn_alone` only those with random
        initial values."""
        for name, variable in self.variables(layer).items():
            if not (drawn_alone and name in INITIAL):
                variable.assign(inputs.parameters[name])
        return layer

    def as_made(self, inputs: Inputs) -> PreparedCall:
        """A call of a layer with its initial biases and scales."""
        layer = self.unbuilt(inputs)
        self.build(layer, inputs)
        call = self.call(inputs, layer=self.assigned(layer, inputs, drawn_alone=True))
        return replace(call, problem=inputs.replace(**initial(inputs.parameters)))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        if self.called is not None:
            return self.prepare(inputs)
        layer = self.layer(inputs)
        return with_leaves(self.call(inputs, layer=layer), self.variables(layer))

    def call(
        self,
        inputs: Inputs,
        *,
        layer: Any = None,
        flags: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        without: tuple[str, ...] = (),
        scores: bool | None = None,
        training: bool | None = None,
        through: str = "",
        restored: bool = False,
    ) -> PreparedCall:
        """A call of the layer with flags; None for this implementation's own value.

        - `layer`: the layer to call, else a new one; `flags` go to its constructor
        - `masks` replaces the mask arguments; `without` names arguments to leave out
        - `through`: the way of the call
          - "function": a functional model; "predict": its predict_on_batch
          - "attached": a mask attached to the value; "attached again": the second of two such calls
          - "attached residual": the mask that is left on the sum of a layer's input and output
          - "gate": a gate that reads the queries; "hidden": a mask of queries
          - a name in `models.UNBUILT`: the layer makes its variables when it is called
        """
        if inputs.bias is not None:
            raise ValueError(NO_BIAS)
        attached = through.startswith("attached")
        # A mask attached to the query's own tensor would be the query's mask, too.
        arrays = sequences(
            self.backend, inputs.replace(self_attention=False) if attached else inputs
        )
        arrays |= self.masks(inputs) if masks is None else masks
        arrays = {name: array for name, array in arrays.items() if name not in without}
        names = {name: name for name in arrays}
        if through in ("function", "predict"):
            arrays, names = models.distinct(arrays)
        own = dict(flags or {})
        returns_scores = self.asks_scores(inputs) if scores is None else scores
        options = {"training": inputs.training if training is None else training}
        # As in users' code: default values are not passed.
        if returns_scores:
            options["return_attention_scores"] = True
        if LayerMasks.of(inputs).causal:
            options["use_causal_mask"] = True
        # A functional model depends on which arguments are one array: their names are constants, too.
        constants = (
            inputs.sizes, inputs.widths, inputs.dtype.name, inputs.case.options, own, options, through,
            restored, *names.items(),
        )  # fmt: skip
        # predict compiles by itself, with the layer's own variables.
        called = None if through == "predict" else self.called
        if through in models.UNBUILT:
            layer = self.unbuilt(inputs, **own)
        elif layer is None and called is None:
            layer = self.layer(inputs, restored, **own)
        elif layer is None:
            layer = kept(self.kept, constants, lambda: self.layer(inputs, restored, **own))

        def plain(**arrays: Any) -> Any:
            return self.apply(layer, arrays, options)

        function: Callable[..., Any] = plain
        if attached:
            function = models.attached(plain, through)
        elif through in models.UNBUILT:
            function = models.UNBUILT[through](layer, options)
            function(**arrays)
            self.assigned(layer, inputs)
        elif through == "gate":
            function = models.ungated(layer, plain)
        elif through == "hidden":
            function = models.shown(plain)
        elif through:
            function = models.functional(
                self.backend, plain, names, inputs, through, self.says_scores
            )
        wanted = inputs.returned != "none"

        def run(**arrays: Any) -> tuple[Any, Any]:
            answer = function(**arrays)
            output, weights = answer if returns_scores else (answer, None)
            return output, weights if wanted else None

        if called is None:
            held = tuple(variable.value for variable in self.variables(layer).values())
            return PreparedCall(run, arrays, LAYER_OUTPUTS, held=held)
        variables = self.variables(layer) | random_state(layer)
        stateless = by_values(self.backend, run, arrays, variables, inputs, constants)
        return called(self, stateless, inputs.dtype)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {name: self.call(inputs, **ways) for name, ways in self.ways(inputs).items()}
        if self.called is None and initial(inputs.parameters):
            calls["as it is made"] = self.as_made(inputs)
        return calls

    def ways(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """The arguments of `call` for every path."""
        ways: dict[str, dict[str, Any]] = {
            "function": {"through": "function"},
            "predict": {"through": "predict"},
            "from its config": {"restored": True},
        }
        if inputs.dtype.is_half and self.called is None:
            ways["mixed policy"] = {"flags": {"dtype": f"mixed_{inputs.dtype.long_name}"}}
        if not inputs.rate:
            ways["training"] = {"training": not inputs.training}
        if inputs.self_attention:
            ways["key omitted"] = {"without": ("key",)}
            ways["function, key omitted"] = {"without": ("key",), "through": "function"}
        if LayerMasks.of(inputs).valid is not None:
            ways["attached mask"] = {"through": "attached"}
            ways["attached mask, second call"] = {"through": "attached again"}
            if inputs.self_attention:
                ways["attached mask, residual"] = {"through": "attached residual"}
        return ways


def without_dropout(inputs: Inputs) -> dict[str, dict[str, Any]]:
    """Paths of a layer with dropout, in inference."""
    if inputs.rate:
        return {}
    quiet: dict[str, Any] = {"flags": {"dropout": INFERENCE_RATE}, "training": False}
    ways = {"dropout>0 in inference": quiet}
    if inputs.returned == "none":
        ways["dropout>0 in inference, no scores"] = quiet | {"scores": False}
    return ways
