"""What adapters of layers share: the base class, masks in the forms layers take, textbook layers.

A layer's call returns the pair (output, weights or None) in the framework's own arrays. Textbook layers
are written once, in the operations that frameworks have in common (`Operations`); each adapter says how
they are spelled.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.base import Backend, Implementation, Prepared, dense_of, split_native
from suite.spec.layers import EPSILON, LayerCase, LayerInputs, draw_layer


class Layer(Implementation):
    """One way in which a framework computes a layer.

    `dropout` says how dropout falls on the weights: "" (there is none), "elements" (each weight alone) or
    "shared" (one pattern for all samples and heads); `whole_dropout` whether a rate of 1 is taken;
    `narrow_biases`, per short dtype name, the canonical biases (and gains) whose gradients are sums in
    that dtype; `narrow_reductions` the dtypes in which all sums over broadcast axes are such, and
    `narrow_statistics` those in which a norm keeps mean and root for its backward pass.
    """

    operator = "multi-head"
    dropout = ""
    whole_dropout = True
    narrow_biases: Mapping[str, tuple[str, ...]] = {}
    narrow_reductions: tuple[str, ...] = ()
    narrow_statistics: tuple[str, ...] = ()

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        if not self.dropout:
            self.lacks = {"dropout": "has no dropout", **self.lacks}

    @abstractmethod
    def prepare(self, inputs: LayerInputs) -> Prepared:
        """A fresh layer with the inputs' parameters, and its call, which returns (output, weights)."""

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        """The call to differentiate: where it can be, it takes canonical parameters as arguments, too."""
        return self.prepare(inputs)

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        """The same problem by other flags that must not change the answer, by the flags' names."""
        return {}


@dataclass(frozen=True)
class LayerMasks:
    """A mask divided into what layers take: a causal flag, valid keys (B, Lk), the rest as a boolean
    array that broadcasts to (B, H, Lq, Lk). True attends; None where there is nothing."""

    causal: bool
    valid: np.ndarray | None
    rest: np.ndarray | None

    @classmethod
    def of(cls, inputs: LayerInputs, causal: bool = True, lengths: bool = True) -> LayerMasks:
        """`causal` and `lengths` say which the layer takes apart from the rest."""
        native, rest = split_native(inputs, causal=causal, lengths=lengths)  # type: ignore[arg-type]
        valid = None
        if "lengths" in native:
            counts = native["lengths"].lengths(inputs.sizes, inputs.seed)
            valid = np.arange(inputs.sizes.Lk) < counts[:, None]
        return cls("causal" in native, valid, dense_of(inputs, rest))  # type: ignore[arg-type]


def full(array: np.ndarray, inputs: LayerInputs, heads: bool = True) -> np.ndarray:
    """A mask or bias written out as (B, H, Lq, Lk), or (B, Lq, Lk) where it knows no heads.

    Raises ValueError where it differs between heads and may not.
    """
    s = inputs.sizes
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if heads:
        return np.broadcast_to(array, (s.B, s.H, s.Lq, s.Lk))
    if array.shape[1] != 1:
        raise ValueError("a mask that differs between heads where heads have one mask")
    return np.broadcast_to(array[:, 0], (s.B, s.Lq, s.Lk))


def operands(backend: Backend, inputs: LayerInputs) -> dict[str, Any]:
    """query, key and value as the framework's arrays; one array thrice where they are the layer's own.

    An axis that `inputs.single` leaves out is left out.
    """

    def made(values: np.ndarray) -> Any:
        return backend.array(np.ascontiguousarray(values), inputs.dtype)

    alone = inputs.single and inputs.operator == "multi-head"
    lead: Any = 0 if alone else slice(None)
    query = inputs.query[:, 0] if inputs.single and not alone else inputs.query[lead]
    q = made(query)
    if inputs.own:
        return {"query": q, "key": q, "value": q}
    return {"query": q, "key": made(inputs.key[lead]), "value": made(inputs.value[lead])}


@dataclass(frozen=True)
class Operations:
    """The operations textbook layers are written in, as one framework spells them.

    softmax over the last axis; fill(scores, hidden, number) where `hidden`; concat(arrays, axis);
    transpose(array, axes); the rest as named. `@`, `+`, `*`, `/` and slices are the framework's own.
    """

    softmax: Callable[[Any], Any]
    fill: Callable[[Any, Any, float], Any]
    tanh: Callable[[Any], Any]
    total: Callable[[Any, int], Any]
    mean: Callable[[Any, int], Any]
    root: Callable[[Any], Any]
    concat: Callable[[Sequence[Any], int], Any]
    transpose: Callable[[Any, tuple[int, ...]], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    repeat: Callable[[Any, int, int], Any]
    overflowing_fill: str
    """What filling float16 scores with -1e9 makes of a row without keys: "raises" or "nan"."""


class Textbook(Layer):
    """A textbook layer; hidden scores are set to `fill` before the softmax."""

    fill = -np.inf
    heads_apart = False
    elections: Mapping[str, str | Mapping[str, str]] = {
        "fully-masked-row": "nan",
        "padded-sample": "nan",
        "minus-inf-row": "nan",
        "fully-masked-row-gradient": "nan",
        "padded-sample-gradient": "nan",
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    }

    def __init__(
        self, backend: Backend, ops: Operations, numerics: str | Mapping[str, str]
    ) -> None:
        super().__init__(backend)
        self.ops, self.numerics = ops, numerics
        self.lacks = {
            "native-causal": "textbook code has no causal flag",
            "splits-width": "textbook code is given parameters, not a width to split",
            **self.lacks,
        }

    def prepare(self, inputs: LayerInputs) -> Prepared:
        backend = self.backend
        masks = LayerMasks.of(inputs, causal=False, lengths=False)
        arrays: dict[str, Any] = operands(backend, inputs)
        weights = {n: backend.array(a, inputs.dtype) for n, a in self.laid_out(inputs).items()}
        arrays |= weights
        if masks.rest is not None:
            mask = masks.rest
            if inputs.form != "raw":
                mask = full(mask, inputs) if self.heads_apart else full(mask, inputs)[:, 0]
            hidden = self.pairs("hidden", ~mask, inputs)
            arrays |= {name: backend.array(array, None) for name, array in hidden.items()}
        if inputs.bias is not None:
            added = self.pairs("bias", full(inputs.bias, inputs), inputs)
            arrays |= {name: backend.array(array, inputs.dtype) for name, array in added.items()}
        returned = inputs.returned

        def call(query, key, value, hidden=None, bias=None, **parameters):  # type: ignore[no-untyped-def]
            output, made = self.compute(query, key, value, hidden, bias, parameters, inputs)
            if returned == "none":
                made = None
            return output, made

        return Prepared(call, arrays)

    def laid_out(self, inputs: LayerInputs) -> dict[str, np.ndarray]:
        """The canonical parameters as this layer keeps them."""
        return dict(inputs.parameters)

    def pairs(self, name: str, array: np.ndarray, inputs: LayerInputs) -> dict[str, np.ndarray]:
        """A mask or bias, (B, H, Lq, Lk) or (B, Lq, Lk), as this layer keeps it."""
        return {name: array}

    @abstractmethod
    def compute(
        self, query: Any, key: Any, value: Any, hidden: Any, bias: Any,
        parameters: dict[str, Any], inputs: LayerInputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The layer: (output, weights)."""

    def softmax(self, scores: Any, hidden: Any) -> Any:
        """softmax of scores of which the hidden ones are set to `fill`."""
        if hidden is not None:
            scores = self.ops.fill(scores, hidden, self.fill)
        return self.ops.softmax(scores)

    def number(self, value: float, inputs: LayerInputs) -> Any:
        """A number in the layer's dtype: a Python float that meets a tensor may pass through float32."""
        return self.backend.array(np.asarray(value), inputs.dtype)


class PackedHeads(Textbook):
    """One projection for all heads, split by a reshape and a transpose, merged the same way back."""

    name = "packed-heads"
    heads_apart = True

    def laid_out(self, inputs: LayerInputs) -> dict[str, np.ndarray]:
        made = {}
        for name, array in inputs.parameters.items():
            if name == "output_kernel":
                array = array.reshape(-1, array.shape[-1])  # (H Dv, Eo)
            elif name.endswith("kernel"):
                array = array.reshape(array.shape[0], -1)  # (E, H D)
            elif name != "output_bias":
                array = array.reshape(-1)
            made[name] = array
        return made

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        ops, s = self.ops, inputs.sizes
        alone = inputs.single

        def heads(x: Any, name: str, count: int) -> Any:
            y = x @ parameters[f"{name}_kernel"]
            if f"{name}_bias" in parameters:
                y = y + parameters[f"{name}_bias"]
            y = ops.reshape(y, (s.B, -1, count, y.shape[-1] // count))
            return ops.transpose(y, (0, 2, 1, 3))  # (B, H, L, D)

        q, k, v = heads(query, "query", s.H), heads(key, "key", s.Hkv), heads(value, "value", s.Hkv)
        if s.H != s.Hkv:
            k, v = ops.repeat(k, s.H // s.Hkv, 1), ops.repeat(v, s.H // s.Hkv, 1)
        scores = q @ ops.transpose(k, (0, 1, 3, 2)) * self.number(s.D**-0.5, inputs)
        if bias is not None:
            scores = scores + bias
        weights = self.softmax(scores, hidden)  # (B, H, Lq, Lk)
        merged = ops.transpose(weights @ v, (0, 2, 1, 3))
        shape: tuple[int, ...] = (s.Lq, s.H * s.Dv) if alone else (s.B, s.Lq, s.H * s.Dv)
        output = ops.reshape(merged, shape) @ parameters["output_kernel"]
        if "output_bias" in parameters:
            output = output + parameters["output_bias"]
        if inputs.returned == "average":
            weights = ops.mean(weights, 1)
        return output, weights[0] if alone else weights


class PerHead(Textbook):
    """A list of projections, one for each head, whose outputs are concatenated.

    What belongs to head h is handed over on its own, as "query_kernel.h".
    """

    name = "per-head"
    heads_apart = True
    lacks = {"raw-mask": "takes a mask for every head"}

    def laid_out(self, inputs: LayerInputs) -> dict[str, np.ndarray]:
        made = {}
        for name, array in inputs.parameters.items():
            if name == "output_kernel":
                made[name] = array.reshape(-1, array.shape[-1])  # (H Dv, Eo)
            elif name == "output_bias":
                made[name] = array
            else:
                apart = array.swapaxes(0, 1) if name.endswith("kernel") else array
                made |= {f"{name}.{h}": np.ascontiguousarray(x) for h, x in enumerate(apart)}
        return made

    def pairs(self, name: str, array: np.ndarray, inputs: LayerInputs) -> dict[str, np.ndarray]:
        apart = array[0] if inputs.single else array.swapaxes(0, 1)
        return {f"{name}.{h}": np.ascontiguousarray(x) for h, x in enumerate(apart)}

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        ops, s = self.ops, inputs.sizes
        factor = self.number(s.D**-0.5, inputs)
        outputs, all_weights = [], []
        for h in range(s.H):
            g = h // (s.H // s.Hkv)
            q = self.projected(query, parameters, "query", h)  # (B, Lq, D) or (Lq, D)
            k = self.projected(key, parameters, "key", g)
            v = self.projected(value, parameters, "value", g)
            swapped = (0, 2, 1) if len(k.shape) == 3 else (1, 0)
            scores = q @ ops.transpose(k, swapped) * factor
            if f"bias.{h}" in parameters:
                scores = scores + parameters[f"bias.{h}"]
            weights = self.softmax(scores, parameters.get(f"hidden.{h}"))
            outputs.append(weights @ v)
            all_weights.append(weights)
        output = ops.concat(outputs, -1) @ parameters["output_kernel"]
        if "output_bias" in parameters:
            output = output + parameters["output_bias"]
        axis = len(output.shape) - 2
        stacked = ops.concat(
            [ops.reshape(w, (*w.shape[:axis], 1, *w.shape[axis:])) for w in all_weights], axis
        )
        if inputs.returned == "average":
            return output, ops.mean(stacked, axis)
        return output, stacked

    def projected(self, x: Any, parameters: dict[str, Any], name: str, head: int) -> Any:
        y = x @ parameters[f"{name}_kernel.{head}"]
        bias = parameters.get(f"{name}_bias.{head}")
        return y if bias is None else y + bias


class SingleSample(PerHead):
    """The form most tutorials start from: one sample (L, width), a loop over the heads, concat."""

    name = "single-sample"
    lacks = {
        "batch": "takes one sample without a batch axis",
        "raw-mask": "takes a mask for every head",
    }

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        if len(query.shape) != 2:
            raise ValueError(f"takes one sample (L, width), got {tuple(query.shape)}")
        return super().compute(query, key, value, hidden, bias, parameters, inputs)


class SelfAttention(Textbook):
    """A self-attention layer: three projections with biases, scaled scores, (output, weights)."""

    name = "self-attention"
    operator = "self-attention"
    lacks = {"cross": "projects one input thrice"}

    def laid_out(self, inputs: LayerInputs) -> dict[str, np.ndarray]:
        return {
            n: a.reshape(a.shape[0], -1) if n.endswith("kernel") else a.reshape(-1)
            for n, a in inputs.parameters.items()
        }

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        def projected(name: str) -> Any:
            y = query @ parameters[f"{name}_kernel"]
            return y + parameters[f"{name}_bias"] if f"{name}_bias" in parameters else y

        q, k, v = projected("query"), projected("key"), projected("value")
        scores = q @ self.ops.transpose(k, (0, 2, 1)) * self.number(inputs.sizes.D**-0.5, inputs)
        weights = self.softmax(scores, hidden)
        return weights @ v, weights


class Additive(Textbook):
    """Additive (Bahdanau) attention for many queries (B, Lq, q) or a decoder's one (B, q)."""

    name = "bahdanau"
    operator = "additive"

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        ops, s = self.ops, inputs.sizes
        if inputs.single:
            query = ops.reshape(query, (s.B, 1, query.shape[-1]))
        if "query_kernel" in parameters:
            query, key = query @ parameters["query_kernel"], key @ parameters["key_kernel"]
        units = query.shape[-1]
        pairs = ops.reshape(query, (s.B, s.Lq, 1, units)) + ops.reshape(key, (s.B, 1, s.Lk, units))
        active = ops.tanh(pairs)  # (B, Lq, Lk, U)
        if "score_vector" in parameters:
            # As matrices: TensorFlow's bfloat16 product of ranks 4 and 2 corrupts memory on CPU.
            flat = ops.reshape(active, (s.B * s.Lq * s.Lk, units))
            scores = flat @ ops.reshape(parameters["score_vector"], (units, 1))
            scores = ops.reshape(scores, (s.B, s.Lq, s.Lk))
        else:
            scores = ops.total(active, -1)
        weights = self.softmax(scores, hidden)
        output = weights @ value
        if inputs.single:
            return ops.reshape(output, (s.B, output.shape[-1])), ops.reshape(weights, (s.B, s.Lk))
        return output, weights


class Luong(Textbook):
    """Dot-product attention with a learned scale, or none."""

    name = "luong"
    operator = "dot"

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        scores = query @ self.ops.transpose(key, (0, 2, 1))
        if "scale" in parameters:
            scores = scores * parameters["scale"]
        weights = self.softmax(scores, hidden)
        return weights @ value, weights


class MaskedInfinity(Textbook):
    """softmax(q k^T / sqrt(D)) v with separate causal and padding masks; hidden scores set to -inf."""

    name = "masked-inf"
    operator = "masked"

    def prepare(self, inputs: LayerInputs) -> Prepared:
        backend, s = self.backend, inputs.sizes
        masks = LayerMasks.of(inputs)
        arrays: dict[str, Any] = operands(backend, inputs)
        if masks.causal:
            causal = np.tril(np.ones((s.Lq, s.Lk), np.int32))
            arrays["causal_mask"] = backend.array(np.broadcast_to(causal, (s.B, s.Lq, s.Lk)), None)
        if masks.valid is not None:
            arrays["padding_mask"] = backend.array(masks.valid[:, None].astype(np.int32), None)
        if masks.rest is not None:
            rest = full(masks.rest, inputs, heads=False).astype(np.int32)
            name = "padding_mask" if masks.valid is None else "causal_mask"
            arrays[name] = backend.array(rest, None)

        def call(query, key, value, causal_mask=None, padding_mask=None):  # type: ignore[no-untyped-def]
            """Masks hold 0 where a pair is hidden: (B, Lq, Lk) and (B, 1, Lk)."""
            scores = query @ self.ops.transpose(key, (0, 2, 1)) * self.number(s.D**-0.5, inputs)
            for mask in (causal_mask, padding_mask):
                if mask is not None:
                    scores = self.ops.fill(scores, mask == 0, self.fill)
            weights = self.ops.softmax(scores)
            return weights @ value, weights if inputs.returned != "none" else None

        return Prepared(call, arrays)

    def compute(self, *arguments: Any) -> Any:
        raise NotImplementedError


class MaskedLarge(MaskedInfinity):
    """The same with hidden scores set to -1e9, which float16 does not hold."""

    name = "masked-1e9"
    fill = -1e9

    def __init__(
        self, backend: Backend, ops: Operations, numerics: str | Mapping[str, str]
    ) -> None:
        super().__init__(backend, ops, numerics)
        empty = dict.fromkeys(self.dtypes, "uniform") | {"f16": ops.overflowing_fill}
        if backend.device == "cpu":
            self.elections = {
                "fully-masked-row": empty,
                "padded-sample": empty,
                "padded-sample-gradient": "values",
            }


class TextbookLayerNorm(Textbook):
    """Layer norm in single steps: mean and variance of each token over its features."""

    name = "textbook-layer-norm"
    operator = "layer-norm"
    elections: Mapping[str, str | Mapping[str, str]] = {}

    def __init__(
        self, backend: Backend, ops: Operations, numerics: str | Mapping[str, str]
    ) -> None:
        # Mean, variance, root and quotient are operations of their own, each stored.
        super().__init__(backend, ops, "stepwise")
        if isinstance(numerics, Mapping):
            # Where products are summed in the case's dtype, so is what a gradient sums.
            self.narrow_reductions = tuple(d for d, n in numerics.items() if n == "working")

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        ops, (B, L, _) = self.ops, query.shape
        mean = ops.reshape(ops.mean(query, 2), (B, L, 1))
        variance = ops.reshape(ops.mean((query - mean) * (query - mean), 2), (B, L, 1))
        return self.normalised(query, mean, variance, parameters, inputs), None

    def normalised(self, x: Any, mean: Any, variance: Any, parameters: Any, inputs: Any) -> Any:
        y = (x - mean) / self.ops.root(variance + self.number(EPSILON, inputs))
        return y * parameters["gain"] + parameters["offset"] if "gain" in parameters else y


class TextbookBatchNorm(TextbookLayerNorm):
    """Batch norm in single steps: mean and variance of each feature over samples and positions."""

    name = "textbook-batch-norm"
    operator = "batch-norm"

    def compute(self, query, key, value, hidden, bias, parameters, inputs):  # type: ignore[no-untyped-def]
        mean, variance = parameters["mean"], parameters["variance"]
        if inputs.training:
            tokens = self.ops.reshape(query, (-1, query.shape[-1]))  # (B L, E)
            mean = self.ops.mean(tokens, 0)
            variance = self.ops.mean((tokens - mean) * (tokens - mean), 0)
        return self.normalised(query, mean, variance, parameters, inputs), None


def textbooks(
    backend: Backend, ops: Operations, numerics: str | Mapping[str, str]
) -> list[Implementation]:
    """Every textbook layer in a framework's operations, in the numerics class these have."""
    kinds = (
        PackedHeads, PerHead, SingleSample, SelfAttention, Additive, Luong, MaskedInfinity,
        MaskedLarge, TextbookLayerNorm, TextbookBatchNorm,
    )  # fmt: skip
    return [kind(backend, ops, numerics) for kind in kinds]


CONFIGURATION = {
    "query_width": "cross",
    "key_width": "key-width",
    "value_width": "value-width",
    "output_width": "output-width",
    "heads": "",
    "key_heads": "grouped-heads",
    "key_size": "head-width",
    "value_size": "value-size",
    "bias": "no-projection-bias",
    "dtype": "",
}
"""What a user's factory is told, by keyword, where it takes the keyword; and the feature that its layer
lacks where it does not (see `UserLayer`)."""

CALL = {
    "mask": ("mask", "mask-array", "window"),
    "valid": (),
    "causal": ("native-causal",),
    "bias": ("bias", "bias-with-mask"),
    "return_weights": ("average", "weights"),
}
"""Keywords a user's layer may take, and the features it lacks where it does not."""


class UserLayer(Layer):
    """A user's own layer, judged like any other; see the documentation of `--like`.

    `factory(**configuration)` returns a callable layer. It is told those of `CONFIGURATION` whose names
    it takes, and is called with query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), or with the query
    alone where it takes one array, and with those of `CALL` that it takes: `mask` boolean (B, H, Lq, Lk)
    or (B, 1, Lq, Lk), True attends; `valid` boolean (B, Lk), True attends; `causal` True; `bias`
    (B, H, Lq, Lk); `return_weights` True, for which it returns (output, weights (B, H, Lq, Lk)).

    A layer with a method `load_attention(parameters)` is handed the canonical parameters, and judged
    against the reference; one without keeps its own, and is judged by what needs no reference.

    Raises TypeError where the factory or the layer takes none of what it must.
    """

    elections: Mapping[str, str | Mapping[str, str]] = {}

    def __init__(
        self, backend: Backend, factory: Callable[..., Any], name: str, numerics: str, operator: str
    ) -> None:
        self.operator = operator
        super().__init__(backend)
        self.factory, self.name, self.numerics = factory, name, numerics
        self.told = _accepted(factory, CONFIGURATION)
        self.made: dict[tuple, Any] = {}
        sample = self.build(_sample(operator))
        self.takes_parameters = hasattr(sample, "load_attention")
        self.taken = _accepted(_called(sample), CALL)
        self.arrays = _positional(_called(sample))
        if self.arrays not in (1, 3):
            raise TypeError(
                f"a layer is called with query, key and value, or with one array; {name} takes "
                f"{self.arrays} positional arrays"
            )
        lacks = {
            "single": "is called with a batch",
            "dropout": "is judged without dropout",
            "splits-width": "is told the sizes of its heads, or works them out",
        }
        for keyword, feature in CONFIGURATION.items():
            if feature and keyword not in self.told:
                lacks[feature] = f"the factory has no parameter {keyword}"
        if operator != "multi-head":
            lacks.pop("cross", None)
        if self.arrays == 1:
            lacks |= {"cross": "the layer takes one array"}
        for keyword, features in CALL.items():
            if keyword not in self.taken:
                lacks |= dict.fromkeys(features, f"the layer has no parameter {keyword}")
        if not self.taken & {"mask", "causal"}:
            lacks["causal"] = "the layer has neither causal nor mask"
        if not self.taken & {"mask", "valid"}:
            lacks["padding"] = "the layer has neither valid nor mask"
        lacks["average"] = "the layer is asked for the weights of every head"
        self.lacks = lacks

    def build(self, inputs: LayerInputs) -> Any:
        """The factory's layer for the inputs' sizes; one that keeps its own parameters is built once."""
        s, w = inputs.sizes, inputs.widths
        values = {
            "query_width": w.query, "key_width": w.key, "value_width": w.value,
            "output_width": w.output, "heads": s.H, "key_heads": s.Hkv, "key_size": s.D,
            "value_size": s.Dv, "bias": "query_bias" in inputs.parameters,
            "dtype": inputs.dtype.long_name,
        }  # fmt: skip
        key = (*values.values(),)
        if key in self.made:
            return self.made[key]
        layer = self.factory(**{n: v for n, v in values.items() if n in self.told})
        layer = self.backend.settled(layer, inputs.dtype)
        if hasattr(layer, "load_attention"):
            layer.load_attention(
                {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
            )
        else:
            self.made[key] = layer
        return layer

    def prepare(self, inputs: LayerInputs) -> Prepared:
        backend = self.backend
        layer = self.build(inputs)
        masks = LayerMasks.of(inputs, "causal" in self.taken, "valid" in self.taken)
        arrays: dict[str, Any] = operands(backend, inputs)
        if self.arrays == 1:
            arrays = {"query": arrays["query"]}
        named: dict[str, Any] = {}
        if masks.causal:
            named["causal"] = True
        if masks.valid is not None:
            named["valid"] = backend.array(masks.valid, None)
        if masks.rest is not None:
            mask = masks.rest
            if inputs.form != "raw":
                same = mask.ndim < 4 or mask.shape[1] == 1
                mask = full(mask, inputs)[:, :1] if same else full(mask, inputs)
            named["mask"] = backend.array(mask, None)
        if inputs.bias is not None:
            named["bias"] = backend.array(full(inputs.bias, inputs), inputs.dtype)
        if inputs.returned != "none":
            named["return_weights"] = True
        order = list(arrays)

        def call(**given: Any) -> tuple[Any, Any]:
            places = [given.pop(name) for name in order]
            made = layer(*places, **given)
            if isinstance(made, tuple) and len(made) == 2:
                return made
            return made, None

        return Prepared(call, arrays | named)


def _sample(operator: str) -> LayerInputs:
    text = {
        "multi-head": "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
        "self-attention": "self-attention/none/mha/f32/b2h1q7k7d5v6/e12.12.12.6/self/head",
        "additive": "additive/none/mha/f32/b2h1q5k9d16v14/e12.10.14.14",
        "dot": "dot/none/mha/f32/b2h1q5k9d8/e8.8.8.8/unscaled",
        "concat": "concat/none/mha/f32/b2h1q5k9d8/e8.8.8.8",
        "masked": "masked/none/mha/f32/b2h1q5k9d8/e8.8.8.8",
    }[operator]
    return draw_layer(LayerCase.parse(text))


def _called(layer: Any) -> Callable[..., Any]:
    """What a call of the layer ends in: torch's `forward`, Keras' `call`, else the layer itself."""
    for name in ("forward", "call"):
        if callable(getattr(layer, name, None)):
            return getattr(layer, name)
    return layer


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(known)
    return frozenset(known) & {p.name for p in parameters}


def _positional(function: Callable[..., Any]) -> int:
    """How many arrays a layer must be called with."""
    parameters = inspect.signature(function).parameters.values()
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
        if p.name not in CALL
    )
