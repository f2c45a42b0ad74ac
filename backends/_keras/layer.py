"""Calls of Keras' layers on every engine: variables, options, and paths that all layers have.

Arrays are the engine's. Keras is imported when a call is prepared. In every mask True attends.

On an engine with `jitted_native` (JAX) the values of a layer's variables are arguments of the call, as in
`stateless_call`, and all calls of a configuration share one layer. On other engines every call has its
own layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._keras.models import Way, in_model, with_masks, with_masks_twice
from attention_conformance.backends.declared import (
    LAYER_FEATURES,
    Declared,
    DeclaredRounding,
    Election,
    Numerics,
)
from attention_conformance.backends.layer import SEED, FrameworkLayer, output_and_weights
from attention_conformance.backends.masks import split_native
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
    """Returns the declaration on an engine. `numerics` and `elections` are by engine."""
    # keras.ops.add of a vector calls tf.nn.bias_add, whose derivative sums in bfloat16.
    narrow = {"bf16": ("output_bias",)} if engine == "tensorflow" else {}
    return declared.electing(elections.get(engine, {})).but(
        numerics=numerics[engine], rounding=DeclaredRounding(narrow_biases=narrow)
    )


def settings(inputs: Inputs) -> dict[str, Any]:
    """Returns the constructor arguments that every attention layer takes, for these inputs. As in users'
    code, default values are not passed."""
    rate = {"dropout": inputs.rate} if inputs.rate else {}
    return {"dtype": inputs.dtype.long_name, "seed": inputs.dropout_seed, **rate}


def options(inputs: Inputs, scores: bool, training: bool | None = None) -> dict[str, Any]:
    """Returns the options of a call. `scores`: scores are returned; `training`: by default as in the
    inputs. Raises ValueError if the inputs have a bias."""
    if inputs.bias is not None:
        raise ValueError(NO_BIAS)
    values = {"training": inputs.training if training is None else training}
    causal = split_native(inputs, causal=True).causal
    flags = {"return_attention_scores": scores, "use_causal_mask": causal}
    return values | {name: True for name, flag in flags.items() if flag}


def variables(impl: FrameworkLayer, inputs: Inputs, layer: Any) -> dict[str, Any]:
    """Returns the layer's variables for the inputs' parameters, by canonical names."""
    variables_by_name: dict[str, Any] = impl.row.parameters(layer)
    return {n: v for n, v in variables_by_name.items() if v is not None and n in inputs.parameters}


def assigned(impl: FrameworkLayer, inputs: Inputs, layer: Any) -> Any:
    """Returns the layer, after its variables are set to the inputs' parameters."""
    for name, variable in variables(impl, inputs, layer).items():
        variable.assign(inputs.parameters[name].reshape(variable.shape))
    return layer


def by_name(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Returns the layer's answer for arrays or symbols, passed by the names of arguments."""
    return layer(**arrays, **options)


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: Mapping[str, Any],
    *,
    layer: Any = None,
    way: Way | None = None,
    steps: Sequence[float] = (),
    apply: Callable[..., Any] = by_name,
    **flags: Any,
) -> PreparedCall:
    """Returns a call of `layer`, by default of a new one made with `flags`.

    - `way`: a way of `backends._keras.models`
    - `steps`: for each training step before the call, the factor of the query
    - `apply(layer, arrays, options)` calls the layer
    """
    options = {name: value for name, value in arguments.items() if name in OPTIONS}
    arrays = {name: array for name, array in arguments.items() if name not in OPTIONS}
    constants = (
        inputs.sizes, inputs.widths, inputs.dtype.name, inputs.case.options, flags, options, way,
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

    def plain_call(**arrays: Any) -> Any:
        called_layer = impl.make(inputs) if steps and jitted is None else layer
        for factor in steps:
            called_layer(factor * arrays["query"], training=True)
        return apply(called_layer, arrays, options)

    function = plain_call if way is None else way(impl, inputs, layer, plain_call)

    def run(**arrays: Any) -> tuple[Any, Any]:
        return output_and_weights(function(**arrays), inputs)

    if jitted is not None:
        call = call_with_values(impl, inputs, run, arrays, layer, constants)
        return jitted(impl, call, inputs.dtype)
    layer_parameters = tuple(variable.value for variable in variables(impl, inputs, layer).values())
    return PreparedCall(run, arrays, LAYER_OUTPUTS, layer_parameters=layer_parameters)


def call_with_values(
    impl: FrameworkLayer,
    inputs: Inputs,
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    layer: Any,
    constants: tuple[Any, ...],
) -> PreparedCall:
    """Returns the call as a function of the arrays, and of the values of the layer's variables."""
    import keras

    layer_variables, array = variables(impl, inputs, layer), impl.backend.array
    seed_states = [v for v in layer.variables if v.name == "seed_generator_state"]
    values = {
        name: array(inputs.parameters[name].reshape(variable.shape), inputs.dtype)
        for name, variable in layer_variables.items()
    }
    if seed_states:
        layer_variables[SEED] = seed_states[-1]
        values[SEED] = array(np.array([inputs.dropout_seed, 0], np.uint32), None)

    def run(**arguments: Any) -> Any:
        state = [(variable, arguments.pop(name)) for name, variable in layer_variables.items()]
        with keras.StatelessScope(state_mapping=state):
            return function(**arguments)

    return PreparedCall(run, {**arrays, **values}, LAYER_OUTPUTS, constants=constants)


def differentiable(impl: FrameworkLayer, inputs: Inputs) -> PreparedCall:
    """Returns the call with the layer's own variables as arguments, for gradients.

    The layer still reads its variables, not the arguments. The call raises ValueError if a statistic is
    trainable, or if another variable is not.
    """
    if hasattr(impl.backend, "jitted_native"):
        return impl.prepare(inputs)
    layer, statistics = impl.make(inputs), inputs.operator.array_kinds.statistics
    layer_variables, call = variables(impl, inputs, layer), impl.call(inputs, layer=layer)
    values = {name: v.value for name, v in layer_variables.items() if name not in statistics}
    trainable_statistics = ", ".join(
        n for n in layer_variables if n in statistics and layer_variables[n].trainable
    )
    constant_variables = ", ".join(name for name in values if not layer_variables[name].trainable)

    def run(**arguments: Any) -> Any:
        if trainable_statistics:
            raise ValueError(f"{trainable_statistics}: an optimizer would change these statistics")
        if constant_variables:
            raise ValueError(f"{constant_variables}: not trainable, expected trainable variables")
        return call.function(**{n: a for n, a in arguments.items() if n not in values})

    return PreparedCall(run, call.arguments | values, LAYER_OUTPUTS)


def paths(
    impl: FrameworkLayer, inputs: Inputs, tests_inference: bool = False
) -> dict[str, PreparedCall]:
    """Returns calls in a functional model and with attached masks. `tests_inference`: also a call in
    inference of a layer with a dropout rate."""
    ways: dict[str, dict[str, Any]] = {"function": {"way": in_model}}
    if tests_inference and not inputs.rate:
        inference = {"training": False}
        ways["dropout>0 in inference"] = {"changes": inference, "dropout": INFERENCE_RATE}
    calls = {name: impl.call(inputs, **way) for name, way in ways.items()}
    if split_native(inputs, lengths=True).paddings:
        # A mask attached to the query's own tensor would be the query's mask, too.
        separate = inputs.replace(self_attention=False)
        calls["attached mask"] = impl.call(separate, way=with_masks)
        calls["attached mask, second call"] = impl.call(separate, way=with_masks_twice)
    return calls


def call_with_problem(impl: FrameworkLayer, problem: Inputs, **changes: Any) -> PreparedCall:
    """Returns the call for `problem`, by which its answer is also judged."""
    return replace(impl.call(problem, **changes), problem=problem)
