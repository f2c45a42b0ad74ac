"""How layers of Keras are called, on every engine: variables, options, and ways that all layers have.

Arrays are those of the engine. Keras is imported when a call is prepared. In every mask True attends.

On an engine with `jitted_native` (JAX) the values of a layer's variables are arguments of the call, as in
`stateless_call`, and one layer serves all calls of a configuration. On other engines every call has its
own layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._keras.models import Way, attached, attached_again, functional
from attention_conformance.backends.declared import (
    LAYER_FEATURES,
    Declared,
    DeclaredRounding,
    Election,
    Numerics,
)
from attention_conformance.backends.layer import SEED, FrameworkLayer, outputs
from attention_conformance.backends.masks import LayerMasks
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.spec.inputs import Inputs

NO_BIAS = "Keras' layers have no bias of the scores"


INFERENCE_RATE = 0.3
"""The dropout rate of layers in inference, where dropout must have no effect."""

OPTIONS = ("training", "return_attention_scores", "use_causal_mask")
"""The arguments of a call that are no arrays."""

DECLARED = Declared(
    features=LAYER_FEATURES,
    refusals=dict.fromkeys(("bias", "bias-with-mask"), NO_BIAS),
    dropout="elements",
)


def on_engine(
    engine: str,
    declared: Declared,
    numerics: Mapping[str, Numerics],
    elections: Mapping[str, Mapping[str, Election]],
) -> Declared:
    """The declaration on an engine; `numerics` and `elections` are by engine."""
    # keras.ops.add of a vector calls tf.nn.bias_add, whose derivative sums in bfloat16.
    narrow = {"bf16": ("output_bias",)} if engine == "tensorflow" else {}
    return declared.electing(elections.get(engine, {})).but(
        numerics=numerics[engine], rounding=DeclaredRounding(narrow_biases=narrow)
    )


def settings(inputs: Inputs) -> dict[str, Any]:
    """Constructor arguments of all attention layers. As in users' code, default values are not passed."""
    rate = {"dropout": inputs.rate} if inputs.rate else {}
    return {"dtype": inputs.dtype.long_name, "seed": inputs.dropout_seed, **rate}


def options(inputs: Inputs, scores: bool, training: bool | None = None) -> dict[str, Any]:
    """The options of a call; None for the mode of the inputs."""
    if inputs.bias is not None:
        raise ValueError(NO_BIAS)
    asked = {"training": inputs.training if training is None else training}
    flags = {"return_attention_scores": scores, "use_causal_mask": LayerMasks.of(inputs).causal}
    return asked | {name: True for name, flag in flags.items() if flag}


def variables(impl: FrameworkLayer, inputs: Inputs, layer: Any) -> dict[str, Any]:
    """The variables of a layer by canonical names."""
    every: dict[str, Any] = impl.layer.parameters(layer)
    return {n: v for n, v in every.items() if v is not None and n in inputs.parameters}


def assigned(impl: FrameworkLayer, inputs: Inputs, layer: Any) -> Any:
    """The layer, with the inputs' parameters as its variables."""
    for name, variable in variables(impl, inputs, layer).items():
        variable.assign(inputs.parameters[name].reshape(variable.shape))
    return layer


def by_name(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with arrays or symbols by argument names."""
    return layer(**arrays, **options)


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: Mapping[str, Any],
    *,
    layer: Any = None,
    through: Way | None = None,
    steps: Sequence[float] = (),
    apply: Callable[..., Any] = by_name,
    **flags: Any,
) -> PreparedCall:
    """A call of `layer`, by default of a new one.

    - `through`: a way of `backends._keras.models`
    - `steps`: the number of training steps before, each on a multiple of the query
    - `apply(layer, arrays, options)` calls the layer
    """
    given = {name: value for name, value in arguments.items() if name in OPTIONS}
    arrays = {name: array for name, array in arguments.items() if name not in OPTIONS}
    constants = (
        inputs.sizes, inputs.widths, inputs.dtype.name, inputs.case.options, flags, given, through,
        *arrays, *steps,
    )  # fmt: skip
    jitted = getattr(impl.backend, "jitted_native", None)
    if layer is None and jitted is None:
        layer = impl.make(inputs, **flags)
    elif layer is None:
        key = repr(constants)
        if key not in impl.made_layers:
            impl.made_layers[key] = impl.make(inputs, **flags)
        layer = impl.made_layers[key]

    def plain(**arrays: Any) -> Any:
        used = impl.make(inputs) if steps and jitted is None else layer
        for factor in steps:
            used(factor * arrays["query"], training=True)
        return apply(used, arrays, given)

    function = plain if through is None else through(impl, inputs, layer, plain)

    def run(**arrays: Any) -> tuple[Any, Any]:
        return outputs(function(**arrays), inputs)

    if jitted is not None:
        return jitted(impl, by_values(impl, inputs, run, arrays, layer, constants), inputs.dtype)
    layer_parameters = tuple(variable.value for variable in variables(impl, inputs, layer).values())
    return PreparedCall(run, arrays, LAYER_OUTPUTS, layer_parameters=layer_parameters)


def by_values(
    impl: FrameworkLayer,
    inputs: Inputs,
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    layer: Any,
    constants: tuple[Any, ...],
) -> PreparedCall:
    """The call as a function of the arrays, and of the values of the layer's variables."""
    import keras

    mapped = variables(impl, inputs, layer)
    array, states = (
        impl.backend.array,
        [v for v in layer.variables if v.name == "seed_generator_state"],
    )
    values = {
        n: array(inputs.parameters[n].reshape(v.shape), inputs.dtype) for n, v in mapped.items()
    }
    if states:
        mapped[SEED] = states[-1]
        values[SEED] = array(np.array([inputs.dropout_seed, 0], np.uint32), None)

    def run(**arguments: Any) -> Any:
        state = [(variable, arguments.pop(name)) for name, variable in mapped.items()]
        with keras.StatelessScope(state_mapping=state):
            return function(**arguments)

    return PreparedCall(run, {**arrays, **values}, LAYER_OUTPUTS, constants=constants)


def differentiable(impl: FrameworkLayer, inputs: Inputs) -> PreparedCall:
    """The call with the layer's own variables as arguments, for gradients.

    The layer still reads its variables, not the arguments. The call raises ValueError for a statistic
    that is trainable, and for another variable that is not.
    """
    if hasattr(impl.backend, "jitted_native"):
        return impl.prepare(inputs)
    layer, statistics = impl.make(inputs), inputs.operator.array_kinds.statistics
    mine, plain = variables(impl, inputs, layer), impl.call(inputs, layer=layer)
    leaves = {name: v.value for name, v in mine.items() if name not in statistics}
    learned = [name for name in mine if name in statistics and mine[name].trainable]
    fixed = [name for name in leaves if not mine[name].trainable]

    def run(**arguments: Any) -> Any:
        if learned:
            raise ValueError(f"{', '.join(learned)}: an optimizer would change these statistics")
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: not trainable, expected trainable variables")
        return plain.function(**{n: a for n, a in arguments.items() if n not in leaves})

    return PreparedCall(run, plain.arguments | leaves, LAYER_OUTPUTS)


def paths(impl: FrameworkLayer, inputs: Inputs, scored: bool = False) -> dict[str, PreparedCall]:
    """Calls in a functional model and with attached masks; `scored`: and of a layer with dropout in
    inference."""
    ways: dict[str, dict[str, Any]] = {"function": {"through": functional}}
    if scored and not inputs.rate:
        quiet = {"given": {"training": False}, "dropout": INFERENCE_RATE}
        ways["dropout>0 in inference"] = quiet
    calls = {name: impl.call(inputs, **way) for name, way in ways.items()}
    if LayerMasks.of(inputs).valid is not None:
        # A mask attached to the query's own tensor would be the query's mask, too.
        apart = inputs.replace(self_attention=False)
        calls["attached mask"] = impl.call(apart, through=attached)
        calls["attached mask, second call"] = impl.call(apart, through=attached_again)
    return calls


def asking(impl: FrameworkLayer, problem: Inputs, **how: Any) -> PreparedCall:
    """The call for another problem."""
    return replace(impl.call(problem, **how), problem=problem)
