"""Keras' attention layers, shared by the adapters of every engine Keras runs on.

Arrays are the engine's own, made by the adapter; Keras is imported when a list of layers is asked for.
In every mask True attends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from backends.base import Backend, Implementation, Prepared
from backends.layers import Layer, LayerMasks, full, operands
from suite.spec.layers import EPSILON, STATISTICS, LayerInputs

TENSORFLOW = {"f64": "eager", "f32": "eager", "bf16": "eager", "f16": "working"}
"""On CPU TensorFlow sums batched float16 products and float16 softmaxes in float16."""

SCORES_NUMERICS: Mapping[str, str | Mapping[str, str]] = {
    # 1 / sqrt(D), a Python number, passes through float32.
    "tensorflow": TENSORFLOW | {"f64": "single"},
    "torch": "eager",
    "jax": "stepwise",
}
"""Of the layers that return scores."""

SCORES_ELECTIONS: Mapping[str, str | Mapping[str, str]] = {
    # The softmax sets hidden weights to zero.
    "fully-masked-row": "zeros",
    "padded-sample": "zeros",
    "fully-masked-row-gradient": "nothing",
    "causal-alignment": "top-left",
    "causal-with-mask": "intersect",
    "mask-polarity": "attends",
    "nan-in-masked-key": "blocked",
    "nan-in-masked-value": "leaks",
    "returned-weights": "before-dropout",
}

TORCH_EMPTY = {"f64": "uniform", "f32": "uniform", "bf16": "uniform", "f16": "unmasked"}
"""The mask becomes a bias of -0.7 max, which in float16, -45853, does not absorb float32 scores."""

UNMASKED = {"f64": "unmasked", "f32": "uniform", "bf16": "uniform", "f16": "uniform"}
"""1e9 is subtracted from hidden scores, 65504 in float16: float64 scores are not absorbed."""

PAIRS = "takes valid keys and a causal flag, no mask of pairs"

INFERENCE_RATE = 0.3
"""Dropout of a layer that is called in inference, where it must not matter."""


def layers(backend: Backend) -> list[Implementation]:
    """Every attention layer of Keras, on the engine of `backend`."""
    import keras

    engine = keras.backend.backend()
    kinds = (
        MultiHead, MultiHeadScores, GroupQuery, GroupQueryScores, Additive, Dot, Concat,
        KerasLayerNorm, KerasBatchNorm,
    )  # fmt: skip
    return [kind(backend, engine) for kind in kinds]


class KerasLayer(Layer):
    """A layer of Keras; what differs between its engines is declared by engine."""

    dropout = "elements"
    numerics_by_engine: Mapping[str, str | Mapping[str, str]] = {}
    elections_by_engine: Mapping[str, Mapping[str, str | Mapping[str, str]]] = {}

    def __init__(self, backend: Backend, engine: str) -> None:
        self.numerics = self.numerics_by_engine.get(engine, "eager")
        self.elections = {**self.elections, **self.elections_by_engine.get(engine, {})}
        super().__init__(backend)
        if engine == "tensorflow" and backend.device == "cpu":
            # keras.ops.add of a vector is tf.nn.bias_add, whose derivative sums in bfloat16.
            self.narrow_biases = {"bf16": ("output_bias",)}

    def made(self, inputs: LayerInputs, **flags: Any) -> Any:
        """A fresh layer with the inputs' parameters; `flags` go to its constructor."""
        raise NotImplementedError

    def variables(self, layer: Any) -> dict[str, Any]:
        """The variables of a layer by their canonical names, in whose shapes Keras keeps them."""
        raise NotImplementedError

    def masks(self, inputs: LayerInputs) -> dict[str, Any]:
        """The mask arguments, valid keys as `value_mask`; a causal mask is a flag and not among them."""
        raise NotImplementedError

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """The layer called with arrays, or with symbols for them, by the names of its arguments."""
        return layer(**arrays, **options)

    def asks_scores(self, inputs: LayerInputs) -> bool:
        """Whether `return_attention_scores` is set."""
        return inputs.returned != "none"

    def prepare(self, inputs: LayerInputs) -> Prepared:
        return self.call(inputs)

    def call(
        self,
        inputs: LayerInputs,
        *,
        flags: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        without: tuple[str, ...] = (),
        scores: bool | None = None,
        training: bool | None = None,
        through: str = "",
    ) -> Prepared:
        """The call by any of the layer's flags; None leaves what this implementation stands for.

        `flags` go to the constructor, `masks` stand for the mask arguments, `without` names arguments
        left out. `through` "function" is a functional model, "predict" its predict_on_batch, "attached"
        a mask attached to the value, "attached again" the second of two calls with such a value,
        "attached residual" the mask that is left on the sum of a layer's input and output.
        """
        if inputs.bias is not None:
            raise ValueError("layers of Keras take no bias of the scores")
        layer = self.made(inputs, **(flags or {}))
        attached = through.startswith("attached")
        # A mask attached to the query's own tensor would be the query's mask, too.
        arrays = operands(self.backend, replace(inputs, own=False) if attached else inputs)
        arrays |= self.masks(inputs) if masks is None else masks
        arrays = {name: array for name, array in arrays.items() if name not in without}
        asked = self.asks_scores(inputs) if scores is None else scores
        options = {
            "return_attention_scores": asked,
            "training": inputs.training if training is None else training,
        }
        if LayerMasks.of(inputs).causal:
            options["use_causal_mask"] = True

        def plain(**given: Any) -> Any:
            return self.apply(layer, given, options)

        function: Callable[..., Any] = plain
        if attached:
            function = _attached(plain, arrays.pop("value_mask"), through)
        elif through:
            arrays, function = _functional(
                self.backend, plain, arrays, inputs, through == "predict"
            )

        def run(**given: Any) -> tuple[Any, Any]:
            answer = function(**given)
            output, weights = answer if asked else (answer, None)
            return output, weights if inputs.returned != "none" else None

        run.layer = layer  # type: ignore[attr-defined]
        return Prepared(run, arrays)

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        made = self.prepare(inputs)
        return by_variables(made, self.variables(made.function.layer))  # type: ignore[attr-defined]

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        return {name: self.call(inputs, **given) for name, given in self.flags(inputs).items()}

    def flags(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        """What `call` is given for every path."""
        found: dict[str, dict[str, Any]] = {
            "function": {"through": "function"},
            "predict": {"through": "predict"},
        }
        if not inputs.rate:
            found["training"] = {"training": not inputs.training}
        if inputs.own:
            found["key omitted"] = {"without": ("key",)}
        if LayerMasks.of(inputs).valid is not None:
            found["attached mask"] = {"through": "attached"}
            found["attached mask, second call"] = {"through": "attached again"}
            if inputs.own:
                found["attached mask, residual"] = {"through": "attached residual"}
        return found


def by_variables(made: Prepared, own: Mapping[str, Any]) -> Prepared:
    """The call of a layer with its own variables as arguments: tapes and autograd differentiate by these
    themselves, JAX by the values that a `keras.StatelessScope` (as `stateless_call` has one) gives them.
    """
    import keras

    by_values = keras.backend.backend() == "jax"

    def run(**given: Any) -> tuple[Any, Any]:
        handed = [(variable, given.pop(name)) for name, variable in own.items()]
        if not by_values:
            return made.function(**given)
        with keras.StatelessScope(state_mapping=handed):
            return made.function(**given)

    return Prepared(run, made.arguments | {name: v.value for name, v in own.items()})


def _attached(plain: Callable[..., Any], mask: Any, through: str) -> Callable[..., Any]:
    def call(**arrays: Any) -> Any:
        import keras
        from keras.src.backend import get_keras_mask, set_keras_mask

        value = arrays["value"]
        set_keras_mask(value, mask)
        if through == "attached again":
            plain(**arrays)
        if through == "attached residual":
            # The mask that the sum of a layer's input and output carries to the next layer.
            output = plain(query=value, value=value, **{n: value for n in ("key",) if n in arrays})
            output = output[0] if isinstance(output, tuple) else output
            set_keras_mask(value, get_keras_mask(keras.layers.Add()([output, value])))
        return plain(**arrays)

    return call


def _functional(
    backend: Backend,
    plain: Callable[..., Any],
    arrays: Mapping[str, Any],
    inputs: LayerInputs,
    predict: bool,
) -> tuple[dict[str, Any], Callable[..., Any]]:
    """The arrays, each once, and the call of a model that takes them."""
    first: dict[int, str] = {}
    for name, array in arrays.items():
        first.setdefault(id(array), name)
    name_of = {name: first[id(array)] for name, array in arrays.items()}
    distinct = {name: arrays[name] for name in first.values()}
    sorts = {n: (tuple(a.shape[1:]), backend.dtype_name(a)) for n, a in distinct.items()}

    def call(**given: Any) -> Any:
        import keras

        symbols = {name: keras.Input(shape, dtype=dtype) for name, (shape, dtype) in sorts.items()}
        answer = plain(**{name: symbols[one] for name, one in name_of.items()})
        model = keras.Model(symbols, answer)
        if not predict:
            return model(given)
        answer = model.predict_on_batch(given)
        if isinstance(answer, (list, tuple)):
            return tuple(backend.array(x, inputs.dtype) for x in answer)
        return backend.array(answer, inputs.dtype)

    return distinct, call


class MultiHead(KerasLayer):
    """`keras.layers.MultiHeadAttention` without scores: keras.ops.dot_product_attention inside."""

    name = "keras-mha"
    numerics_by_engine: Mapping[str, str | Mapping[str, str]] = {
        "tensorflow": TENSORFLOW | {"f64": "single"},
        # keras.ops.dot_product_attention casts float64 to float32.
        "torch": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
        # jax.nn.dot_product_attention has its softmax in float32.
        "jax": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
    }
    elections: Mapping[str, str | Mapping[str, str]] = {
        "fully-masked-row": "uniform",
        "padded-sample": "uniform",
        "fully-masked-row-gradient": "values",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    }
    elections_by_engine: Mapping[str, Mapping[str, str | Mapping[str, str]]] = {
        "torch": {
            "fully-masked-row": TORCH_EMPTY,
            "padded-sample": TORCH_EMPTY,
            "fully-masked-row-gradient": dict.fromkeys(("f64", "f32", "bf16"), "scores"),
            "nan-in-masked-key": "leaks",
        },
    }
    lacks = {
        "grouped-heads": "keras.layers.MultiHeadAttention has as many key/value heads as query heads",
        "bias": "keras.layers.MultiHeadAttention takes no bias of the scores",
        "bias-with-mask": "keras.layers.MultiHeadAttention takes no bias of the scores",
        "single": "takes a batch",
        "average": "keras returns the scores of every head",
        "weights": "asked for scores it takes another path: keras-mha-scores",
    }
    variants: Mapping[str, Mapping[str, Any]] = {
        # flash_attention=True raises on every engine on CPU.
        "flash_attention=False": {"flash_attention": False},
        "attention_axes=1": {"attention_axes": 1},
        "attention_axes=-2": {"attention_axes": -2},
    }
    """Arguments of the constructor that must not change the answer."""

    def asks_scores(self, inputs: LayerInputs) -> bool:
        return False

    def bare(self, inputs: LayerInputs, **flags: Any) -> Any:
        """A layer without parameters."""
        import keras

        s = inputs.sizes
        return keras.layers.MultiHeadAttention(
            s.H, s.D, value_dim=s.Dv, output_shape=inputs.widths.output, **flags
        )

    def made(self, inputs: LayerInputs, **flags: Any) -> Any:
        p = inputs.parameters
        layer = self.bare(inputs, **_common(inputs), use_bias="query_bias" in p, **flags)
        layer.build(*(x.shape for x in (inputs.query, inputs.value, inputs.key)))
        for name, variable in self.variables(layer).items():
            variable.assign(p[name])
        return layer

    def variables(self, layer: Any) -> dict[str, Any]:
        dense = {n: getattr(layer, f"_{n}_dense") for n in ("query", "key", "value", "output")}
        parts = [(n, d, what) for n, d in dense.items() for what in ("kernel", "bias")]
        found = {f"{n}_{what}": getattr(d, what) for n, d, what in parts}
        return {name: variable for name, variable in found.items() if variable is not None}

    def masks(self, inputs: LayerInputs) -> dict[str, Any]:
        """value_mask (B, Lk) and attention_mask (B, Lq, Lk), or (B, H, Lq, Lk) where heads differ."""
        valid, rest = LayerMasks.of(inputs).valid, _written_out(inputs)
        given = {"value_mask": valid, "attention_mask": rest}
        return {n: self.backend.array(mask, None) for n, mask in given.items() if mask is not None}

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        found = dict(super().paths(inputs))
        given = LayerMasks.of(inputs)
        if given.causal or given.valid is not None:
            found["dense mask"] = self.call(inputs.with_dense())
        return found

    def flags(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        found = super().flags(inputs)
        found |= {name: {"flags": given} for name, given in self.variants.items()}
        masks, rest = self.masks(inputs), _written_out(inputs)
        if "value_mask" in masks:
            others = {name: mask for name, mask in masks.items() if name != "value_mask"}
            found["key_mask"] = {"masks": {**others, "key_mask": masks["value_mask"]}}
        if rest is not None:
            numbers = self.backend.array(rest.astype(np.int32), None)
            found["integer mask"] = {"masks": {**masks, "attention_mask": numbers}}
            if rest.ndim == 3 and (rest == rest[:1]).all():
                shared = self.backend.array(np.ascontiguousarray(rest[0]), None)
                found["mask without a batch"] = {"masks": {**masks, "attention_mask": shared}}
        return found


class MultiHeadScores(MultiHead):
    """The same with return_attention_scores=True: einsum, softmax, einsum."""

    name = "keras-mha-scores"
    numerics_by_engine = SCORES_NUMERICS
    elections = SCORES_ELECTIONS
    elections_by_engine = {}
    lacks = {n: why for n, why in MultiHead.lacks.items() if n != "weights"}

    def asks_scores(self, inputs: LayerInputs) -> bool:
        return True

    def flags(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        return super().flags(inputs) | _dropping(inputs)


class GroupQuery(MultiHead):
    """`keras.layers.GroupQueryAttention` without scores: keras.ops.dot_product_attention inside."""

    name = "keras-gqa"
    lacks = {
        "value-size": "keras.layers.GroupQueryAttention has one head_dim",
        "output-width": "keras.layers.GroupQueryAttention projects back to the query's width",
        "bias": "keras.layers.GroupQueryAttention takes no bias of the scores",
        "bias-with-mask": "keras.layers.GroupQueryAttention takes no bias of the scores",
        "single": "takes a batch",
        "average": "keras returns the scores of every head",
        "weights": "asked for scores it takes another path: keras-gqa-scores",
    }
    variants = {"flash_attention=False": {"flash_attention": False}}

    def bare(self, inputs: LayerInputs, **flags: Any) -> Any:
        import keras

        s = inputs.sizes
        return keras.layers.GroupQueryAttention(s.D, s.H, s.Hkv, **flags)


class GroupQueryScores(GroupQuery):
    """The same with return_attention_scores=True: einsum, softmax, einsum."""

    name = "keras-gqa-scores"
    numerics_by_engine = SCORES_NUMERICS
    elections = SCORES_ELECTIONS
    elections_by_engine = {}
    lacks = {n: why for n, why in GroupQuery.lacks.items() if n != "weights"}

    def asks_scores(self, inputs: LayerInputs) -> bool:
        return True

    def flags(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        return super().flags(inputs) | _dropping(inputs)


class SingleHead(KerasLayer):
    """`keras.layers.Attention` and its subclass: one head, no projections, a mask of keys and a flag."""

    names: Mapping[str, str] = {"scale": "scale", "concat_weight": "concat_score_weight"}
    """What Keras calls the canonical parameters."""
    numerics_by_engine: Mapping[str, str | Mapping[str, str]] = {
        "tensorflow": TENSORFLOW,
        # keras.ops.matmul gives float32 for float64.
        "torch": {"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        "jax": "stepwise",
    }
    elections: Mapping[str, str | Mapping[str, str]] = {
        "padded-sample": UNMASKED,
        # What is subtracted from hidden scores is a constant.
        "padded-sample-gradient": dict.fromkeys(("f32", "bf16"), "scores"),
        "returned-weights": "after-dropout",
    }
    elections_by_engine: Mapping[str, Mapping[str, str | Mapping[str, str]]] = {
        # A torch dtype is not equal to "float16": there, too, 1e9 is subtracted, which gives -inf.
        "torch": {"padded-sample": UNMASKED | {"f16": "nan"}},
    }
    lacks = {
        "single": "takes queries with an axis of their own",
        "mask": PAIRS,
        "window": PAIRS,
    }

    def bare(self, inputs: LayerInputs, **flags: Any) -> Any:
        """A layer without parameters."""
        raise NotImplementedError

    def made(self, inputs: LayerInputs, **flags: Any) -> Any:
        layer = self.bare(inputs, **_common(inputs), **flags)
        layer.build([x.shape for x in (inputs.query, inputs.value, inputs.key)])
        for name, variable in self.variables(layer).items():
            variable.assign(inputs.parameters[name])
        return layer

    def variables(self, layer: Any) -> dict[str, Any]:
        found = {ours: getattr(layer, theirs, None) for ours, theirs in self.names.items()}
        return {name: variable for name, variable in found.items() if variable is not None}

    def masks(self, inputs: LayerInputs) -> dict[str, Any]:
        given = LayerMasks.of(inputs)
        if given.rest is not None:
            raise ValueError(PAIRS)
        return {} if given.valid is None else {"value_mask": self.backend.array(given.valid, None)}

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        names = [name for name in ("query", "value", "key") if name in arrays]
        mask = [None, arrays["value_mask"]] if "value_mask" in arrays else None
        return layer([arrays[name] for name in names], mask=mask, **options)

    def flags(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        found = super().flags(inputs) | _dropping(inputs)
        if inputs.returned == "none":
            found["return_attention_scores"] = {"scores": True}
        return found


TANH_NUMERICS = {
    **SingleHead.numerics_by_engine,
    # keras.ops.tanh gives float32 for float64.
    "jax": {"f64": "single", "f32": "stepwise", "bf16": "stepwise", "f16": "stepwise"},
}
"""Of the layers whose scores have a tanh."""


class Additive(SingleHead):
    """`keras.layers.AdditiveAttention`: queries and keys are added as they are."""

    name = "keras-additive"
    numerics_by_engine = TANH_NUMERICS
    elections_by_engine = {**SingleHead.elections_by_engine, "jax": {"padded-sample": "uniform"}}
    operator = "additive"
    names = {"score_vector": "scale"}
    lacks = SingleHead.lacks | {"projection": "adds queries and keys as they are"}

    def bare(self, inputs: LayerInputs, **flags: Any) -> Any:
        import keras

        return keras.layers.AdditiveAttention("score_vector" in inputs.parameters, **flags)


class Dot(SingleHead):
    """`keras.layers.Attention` with its default score, the dot product."""

    name = "keras-attention"
    operator = "dot"
    elections_by_engine: Mapping[str, Mapping[str, str | Mapping[str, str]]] = {
        "torch": {"padded-sample": {**UNMASKED, "f64": "uniform", "f16": "nan"}},
    }
    mode_of_score = "dot"

    def bare(self, inputs: LayerInputs, **flags: Any) -> Any:
        import keras

        return keras.layers.Attention("scale" in inputs.parameters, self.mode_of_score, **flags)


class Concat(Dot):
    """`keras.layers.Attention` with score_mode="concat"."""

    name = "keras-attention-concat"
    numerics_by_engine = TANH_NUMERICS
    elections_by_engine = SingleHead.elections_by_engine
    operator = "concat"
    mode_of_score = "concat"


def _common(inputs: LayerInputs) -> dict[str, Any]:
    common = {"dtype": inputs.dtype.long_name, "seed": inputs.dropout_seed}
    return common | ({"dropout": inputs.rate} if inputs.rate else {})


def _written_out(inputs: LayerInputs) -> np.ndarray | None:
    """The mask that no flag expresses, (B, Lq, Lk), or (B, H, Lq, Lk) where heads differ."""
    rest = LayerMasks.of(inputs).rest
    if rest is None:
        return None
    apart = rest.ndim == 4 and rest.shape[1] != 1
    return np.ascontiguousarray(full(rest, inputs, apart))


def _dropping(inputs: LayerInputs) -> dict[str, dict[str, Any]]:
    """Paths of a layer that has dropout, in inference."""
    if inputs.rate:
        return {}
    quiet: dict[str, Any] = {"flags": {"dropout": INFERENCE_RATE}, "training": False}
    found = {"dropout>0 in inference": quiet}
    if inputs.returned == "none":
        found["dropout>0 in inference, no scores"] = quiet | {"scores": False}
    return found


class KerasNorm(Layer):
    """A norm of Keras over the last axis: one statistic a token, or one a feature."""

    numerics: str | Mapping[str, str] = "exact"
    kind = ""

    def __init__(self, backend: Backend, engine: str) -> None:
        super().__init__(backend)
        if engine != "tensorflow":
            # keras.ops maps float64 to float32, and the answer is cast back.
            self.numerics = dict.fromkeys(self.dtypes, "exact") | {"f64": "single"}

    def prepare(self, inputs: LayerInputs) -> Prepared:
        import keras

        p, backend = inputs.parameters, self.backend
        layer = getattr(keras.layers, self.kind)(
            axis=-1, epsilon=EPSILON, center="gain" in p, scale="gain" in p,
            dtype=inputs.dtype.long_name,
        )  # fmt: skip
        layer.build(inputs.query.shape)
        for name, variable in self.variables(layer, inputs).items():
            variable.assign(backend.array(p[name], inputs.dtype))
        options = {"training": inputs.training} if inputs.operator == "batch-norm" else {}
        arrays = operands(backend, inputs)

        def run(query: Any) -> tuple[Any, None]:
            return layer(query, **options), None

        run.layer = layer  # type: ignore[attr-defined]
        return Prepared(run, {"query": arrays["query"]})

    def variables(self, layer: Any, inputs: LayerInputs) -> dict[str, Any]:
        """The variables of a layer by their canonical names."""
        own = {variable.name: variable for variable in layer.variables}
        found = {ours: own[theirs] for ours, theirs in NORM_NAMES.items() if theirs in own}
        return {name: variable for name, variable in found.items() if name in inputs.parameters}

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        made = self.prepare(inputs)
        own = self.variables(made.function.layer, inputs)  # type: ignore[attr-defined]
        return by_variables(made, {n: v for n, v in own.items() if n not in STATISTICS})


NORM_NAMES = {
    "gain": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance",
}  # fmt: skip
"""What Keras calls the canonical parameters of a norm."""


class KerasLayerNorm(KerasNorm):
    """`keras.layers.LayerNormalization`."""

    name = "keras-layer-norm"
    operator = "layer-norm"
    kind = "LayerNormalization"


class KerasBatchNorm(KerasNorm):
    """`keras.layers.BatchNormalization`."""

    name = "keras-batch-norm"
    operator = "batch-norm"
    kind = "BatchNormalization"
