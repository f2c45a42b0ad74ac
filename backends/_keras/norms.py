"""`keras.layers.LayerNormalization` and `keras.layers.BatchNormalization`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.layer import Called
from attention_conformance.backends._keras.variables import by_values, initial, kept, with_leaves
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.statistics import after_training, can_train, with_epsilon
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM

NAMES = {
    "gain": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance",
}  # fmt: skip
"""Canonical parameters of a norm and their names in Keras."""


OWN_EPSILON, FUNCTION_EPSILON = 1e-3, 1e-7
"""The default epsilon of Keras' norms, and of its function."""


def _counted(learned: Sequence[str], **arguments: Any) -> Any:
    """Raise ValueError for a layer whose statistics an optimizer would train."""
    raise ValueError(f"{', '.join(learned)}: an optimizer would change these statistics")


class KerasNorm(Implementation):
    """A norm of Keras, with statistics per token or per feature. Engines differ as in `KerasLayer`."""

    declared = Declared(numerics="exact", features=LAYER_FEATURES)
    kind = ""
    trains = False
    keeps_tokens = False
    """Whether a layer of mixed precision keeps the dtype of tokens."""
    turn: str
    """The name of the path with another shape of tokens (B, L, E)."""

    def __init__(self, backend: Backend, engine: str, called: Called | None = None) -> None:
        declared = self.declared
        if engine != "tensorflow":
            # keras.ops casts float64 to float32, and the answer back.
            declared = declared.but(numerics=dict.fromkeys(DTYPES, "exact") | {"f64": "single"})
        super().__init__(backend, declared=declared)
        self.called = called
        self.kept: dict[str, Any] = {}

    def layer(self, inputs: Inputs, through: str = "", **flags: Any) -> Any:
        """A new layer with the inputs' parameters; `flags` go to its constructor."""
        import keras

        p = inputs.parameters
        # As in users' code: default values are not passed.
        told: dict[str, Any] = {} if "gain" in p else {"center": False, "scale": False}
        if inputs.epsilon != OWN_EPSILON:
            told["epsilon"] = inputs.epsilon
        told |= {"dtype": inputs.dtype.long_name, **flags}
        layer = getattr(keras.layers, self.kind)(**told)
        if through == "config":
            layer = models.restored(layer)
        query = self.turned(inputs.query) if through == self.turn else inputs.query
        layer.build(tuple(query.shape))
        if through == "made":
            return layer
        for name, variable in self.variables(layer, inputs).items():
            variable.assign(p[name].reshape(variable.shape))
        return layer

    def variables(self, layer: Any, inputs: Inputs) -> dict[str, Any]:
        """The variables of a layer by canonical names."""
        own = {variable.name: variable for variable in layer.variables}
        variables = {ours: own[theirs] for ours, theirs in NAMES.items() if theirs in own}
        return {name: v for name, v in variables.items() if name in inputs.parameters}

    @abstractmethod
    def turned(self, x: Any) -> Any:
        """Tokens (B, L, E) in another shape."""

    @abstractmethod
    def back(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The tokens back in the shape (B, L, E)."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        if self.called is not None:
            return self.prepare(inputs)
        layer, statistics = self.layer(inputs), inputs.operator.array_kinds.statistics
        own = self.variables(layer, inputs)
        learned = [name for name in statistics if name in own and own[name].trainable]
        if learned:
            return replace(self.call(inputs), function=partial(_counted, learned), constants=None)
        trained = {name: variable for name, variable in own.items() if name not in statistics}
        return with_leaves(self.call(inputs, layer), trained)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {
            "default epsilon": with_epsilon(self, inputs, OWN_EPSILON),
            "from its config": self.call(inputs, through="config"),
            "in a model": self.call(inputs, through="function"),
        }
        for name, flag in (("offset", "center"), ("gain", "scale")):
            if name in inputs.parameters:
                flags = {flag: False}
                plain = np.full_like(inputs.parameters[name], float(name == "gain"))
                problem = inputs.replace(**{name: plain})
                calls[f"{flag}=False"] = replace(self.call(problem, flags=flags), problem=problem)
        if self.called is None:
            problem = inputs.replace(**initial(inputs.parameters))
            calls["as it is made"] = replace(self.call(inputs, through="made"), problem=problem)
            calls["attached mask"] = self.with_mask(inputs)
            if inputs.dtype.is_half:
                calls["mixed policy"] = self.mixed(inputs)
        if can_train(inputs):
            calls["after training"] = after_training(self.call, inputs)
        return calls

    def mixed(self, inputs: Inputs) -> PreparedCall:
        """A call of a layer of mixed precision, with float32 parameters that need more than 16 bits.

        If the layer keeps the dtype of tokens, these also need more than 16 bits.
        """
        factor = 1 + 0.9 * inputs.dtype.unit_roundoff
        names = [*inputs.parameters, *(["query"] if self.keeps_tokens else [])]
        own = {n: np.float64(np.float32(factor * inputs.arrays[n])) for n in names}
        problem, flags = inputs.replace(**own), {"dtype": f"mixed_{inputs.dtype.long_name}"}
        plain = self.call(problem, flags=flags)
        if not self.keeps_tokens:
            return replace(plain, problem=problem)
        tokens = {"query": self.backend.array(problem.query, DTYPES["f32"])}
        return replace(plain, arguments=plain.arguments | tokens, problem=problem)

    def with_mask(self, inputs: Inputs) -> PreparedCall:
        """The call with an attached mask that hides no token; the answer must carry the mask."""
        plain = self.call(inputs)
        shown = self.backend.array(np.ones(inputs.query.shape[:2], bool), None)

        def run(query: Any) -> tuple[Any, None]:
            from keras.src.backend import get_keras_mask, set_keras_mask

            set_keras_mask(query, shown)
            output, _ = plain.function(query=query)
            if get_keras_mask(output) is None:
                raise RuntimeError("the layer does not pass on the mask of the tokens")
            return output, None

        return replace(plain, function=run)

    def call(
        self,
        inputs: Inputs,
        layer: Any = None,
        steps: Sequence[float] = (),
        through: str = "",
        flags: Mapping[str, Any] | None = None,
    ) -> PreparedCall:
        """A call of a layer, by default of a new one with the inputs' parameters.

        - `steps`: the number of training steps before, each on a multiple of the query
        - `flags` go to the constructor
        - `through`: "config" (a layer from another layer's configuration), "made" (initial variables),
          "function" (a functional model), or `turn` (tokens of another shape)
        """
        own = dict(flags or {})
        options = {"training": inputs.training} if self.trains else {}
        constants = (
            inputs.sizes, inputs.widths, inputs.dtype.name, inputs.case.options, own, through, *steps,
        )  # fmt: skip
        if layer is None and self.called is None:
            layer = self.layer(inputs, through, **own)
        elif layer is None:
            layer = kept(self.kept, constants, lambda: self.layer(inputs, through, **own))

        def plain(query: Any) -> Any:
            return layer(query, **options)

        def turned(query: Any) -> Any:
            return self.back(plain(self.turned(query)), query.shape)

        function: Callable[..., Any] = plain
        if through == "function":
            names = {"query": "query"}
            function = models.functional(self.backend, plain, names, inputs, through)
        elif through == self.turn:
            function = turned

        def run(query: Any) -> tuple[Any, None]:
            if not steps:
                return function(query=query), None
            called = self.layer(inputs) if self.called is None else layer
            for factor in steps:
                called(factor * query, training=True)
            return called(query, **options), None

        arrays = {"query": sequences(self.backend, inputs)["query"]}
        if self.called is None:
            return PreparedCall(run, arrays, LAYER_OUTPUTS)
        variables = self.variables(layer, inputs)
        stateless = by_values(self.backend, run, arrays, variables, inputs, constants)
        return self.called(self, stateless, inputs.dtype)


class KerasLayerNorm(KerasNorm):
    """`keras.layers.LayerNormalization`, and the function `keras.ops.layer_normalization`."""

    name = "keras-layer-norm"
    operator = LAYER_NORM
    kind = "LayerNormalization"
    keeps_tokens = True
    turn = "two axes"

    def turned(self, x: Any) -> Any:
        from keras import ops

        samples, length, width = x.shape
        apart = ops.reshape(x, (samples, length, 2, width // 2))
        return ops.swapaxes(apart, 1, 2)

    def back(self, x: Any, shape: tuple[int, ...]) -> Any:
        from keras import ops

        return ops.reshape(ops.swapaxes(x, 1, 2), shape)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {
            **super().paths(inputs),
            "axis=[-1]": self.call(inputs, flags={"axis": [-1]}),
            "keras.ops": self.function(inputs),
        }
        if inputs.widths.query % 2 == 0:
            flags = {"axis": (3, 1)}
            calls[self.turn] = self.call(inputs, through=self.turn, flags=flags)
            calls[f"keras.ops, {self.turn}, in a model"] = self.function(inputs, [1, 3])
        return calls | self.rms_scaled(inputs)

    def rms_scaled(self, inputs: Inputs) -> dict[str, PreparedCall]:
        """Calls with the deprecated `rms_scaling`, which divides by the deviation and keeps the mean.

        They equal a layer norm for tokens of mean 0, and for tokens that permute the features of one
        token, with an offset that restores the mean.
        """
        if "offset" not in inputs.parameters:
            return {}
        width, flags = inputs.widths.query, dict[str, Any](rms_scaling=True)
        half, rest = inputs.query[..., : width // 2], inputs.query[..., : width % 2]
        level = inputs.replace(
            query=np.concatenate([half, 0.0 * rest, -half], -1),
            offset=np.zeros_like(inputs.parameters["offset"]),
        )
        token = inputs.query.reshape(-1)[:width]
        count = inputs.query.size // max(width, 1)
        turns = np.add.outer(np.arange(count), np.arange(width)) % width

        def in_turn(epsilon: float) -> Inputs:
            mean = token.mean() / np.sqrt(token.var() + epsilon) if count else 0.0
            return inputs.replace(
                query=token[turns].reshape(inputs.query.shape),
                offset=mean * inputs.parameters["gain"],
            )

        layer = in_turn(inputs.epsilon)
        return {
            "rms_scaling": replace(self.call(layer, flags=flags), problem=layer),
            "keras.ops, rms_scaling": self.function(in_turn(FUNCTION_EPSILON), **flags),
            "keras.ops, rms_scaling, mean 0": self.function(level, **flags),
        }

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import keras

        layer = keras.layers.LayerNormalization(axis=len(inputs.query.shape))
        return {
            "an axis that is no whole number": lambda: keras.layers.LayerNormalization(axis=1.5),
            "tokens without the axis": lambda: layer.compute_output_shape(inputs.query.shape),
        }

    def function(self, inputs: Inputs, axes: list[int] | None = None, **flags: Any) -> PreparedCall:
        """A call of the function with `flags`; with `axes` in a functional model, for tokens of another
        shape."""

        def run(query: Any, gain: Any = None, offset: Any = None) -> tuple[Any, None]:
            import keras

            normalized = keras.ops.layer_normalization
            if axes is None:
                return normalized(query, gain, offset, **flags), None
            x = self.turned(query)
            shape = [x.shape[axis] for axis in axes]
            own = [a if a is None else keras.ops.reshape(a, shape) for a in (gain, offset)]
            symbol = keras.Input(tuple(x.shape[1:]), dtype=inputs.dtype.long_name)
            model = keras.Model(symbol, normalized(symbol, *own, axis=axes))
            return self.back(model(x), query.shape), None

        own = {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
        arrays = {"query": sequences(self.backend, inputs)["query"], **own}
        problem = inputs.replace(epsilon=FUNCTION_EPSILON)
        constants = ("function", axes, *flags, inputs.dtype.name)
        plain = PreparedCall(run, arrays, LAYER_OUTPUTS, constants=constants, problem=problem)
        return plain if self.called is None else self.called(self, plain, inputs.dtype)


class KerasBatchNorm(KerasNorm):
    """`keras.layers.BatchNormalization`."""

    name = "keras-batch-norm"
    operator = BATCH_NORM
    kind = "BatchNormalization"
    trains = True
    turn = "axis=1"

    def turned(self, x: Any) -> Any:
        from keras import ops

        return ops.swapaxes(x, 1, 2)

    def back(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.turned(x)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        layer, query = self.layer(inputs), self.backend.array(inputs.query, inputs.dtype)
        return {"a mask with all axes": lambda: layer(query, mask=query)}

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        features = self.call(inputs, through=self.turn, flags={"axis": 1})
        return {**super().paths(inputs), self.turn: features}
