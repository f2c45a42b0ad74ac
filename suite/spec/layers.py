"""Layers around attention: what people mostly meet attention as.

A layer takes batched sequences (B, L, width) and parameters, and returns an output (B, Lq, width) and,
where it is asked to, weights. The attention inside is a problem like any other: sizes after projection,
a mask, a bias. A layer's id has one place more than a case's, the widths:

    OPERATOR/MASK/HEADS/DTYPE/SIZES/WIDTHS[/OPTION...]
    multi-head/causal+pad/mha/f32/b2h3q7k9d4/e12.10.14.12/bias.qk/nobias/self/average
    additive/pad/mha/f32/b2h1q1k9d16v14/e12.10.14.14/single

SIZES are those of the attention inside: d is the size of a projected query (the units of additive
attention), v that of a projected value. WIDTHS are query, key, value and output features.

Canonical parameters, and the shapes every adapter converts from, are in `PARAMETERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from suite.spec.dtypes import DType, dtype, round_to
from suite.spec.masks import Mask, Sizes, parse_mask
from suite.spec.problem import (
    BIASES,
    MaskedInputs,
    parse_options,
    parse_sizes,
    part_features,
)
from suite.spec.recipes import draw_bias, generator

OPERATORS = {
    "multi-head": "multi-head attention with projections",
    "self-attention": "one head, projections with biases, no output projection, weights returned",
    "additive": "additive (Bahdanau) attention, scores w . tanh(W_q q + W_k k)",
    "dot": "dot-product (Luong) attention, scores s q.k",
    "concat": "concat attention as Keras reads it, scores c sum tanh(s (q + k))",
    "masked": "scaled dot-product attention without heads, separate causal and padding masks",
    "layer-norm": "layer norm: mean and variance of each token over its features",
    "batch-norm": "batch norm: mean and variance of each feature over all samples and positions",
}
"""The layers, by operator."""

NORMS = ("layer-norm", "batch-norm")
"""The operators that attend to nothing."""

PARAMETERS = {
    "query_kernel": "(Eq, H, D); additive: (Eq, U)",
    "query_bias": "(H, D)",
    "key_kernel": "(Ek, Hkv, D); additive: (Ek, U)",
    "key_bias": "(Hkv, D)",
    "value_kernel": "(Ev, Hkv, Dv)",
    "value_bias": "(Hkv, Dv)",
    "output_kernel": "(H, Dv, Eo)",
    "output_bias": "(Eo,)",
    "score_vector": "(U,), additive",
    "scale": "(), dot and concat",
    "concat_weight": "(), concat",
    "gain": "(E,), norms",
    "offset": "(E,), norms",
    "mean": "(E,), batch norm: the mean it has learned, used in evaluation",
    "variance": "(E,), batch norm: the variance it has learned",
}
"""Canonical parameters with their shapes: y = x kernel + bias, features of a head last. Eq, Ek, Ev, Eo
are the widths of query, key, value and output, H and Hkv the heads, D and Dv their sizes."""

STATISTICS = ("mean", "variance")
"""The parameters that are learned by averaging: they have no gradient."""

EPSILON = 2.0**-10
"""What norms add to a variance: a number of every dtype, larger than any framework's default, so that
leaving it out or adding it after the root stands out."""

RETURNED = ("none", "average", "head")
"""What is returned beside the output: no weights, their mean over the heads (B, Lq, Lk), or those of
every head (B, H, Lq, Lk)."""

LAYER_FEATURES = {
    "key-width": "keys of another width than queries",
    "value-width": "values of another width than queries",
    "output-width": "an output of another width than the queries",
    "head-width": "heads whose sizes do not add up to the query's width",
    "no-projection-bias": "projections without biases",
    "cross": "keys and values that are not the query's own tensor",
    "average": "weights averaged over the heads",
    "weights": "weights of every head",
    "batch": "an input with a batch axis",
    "single": "an input without a batch axis, or without a query axis",
    "projection": "queries and keys projected to a common width",
    "score-vector": "a learned vector the hidden units are weighted with",
    "learned-scale": "a learned scale",
    "odd-heads": "an odd number of heads",
    "splits-width": "a width that is split among the heads",
    "raw-mask": "a mask array as the caller made it",
    "causal-alone": "a causal flag without a mask",
    "dropout": "dropout of the weights",
}
"""What a layer's case may need besides `suite.spec.problem.FEATURES`."""

_OPTIONS = {
    "bias": r"bias\.(" + "|".join(BIASES[1:]) + ")",
    "bare": "(nobias|identity|unscaled|plain)",
    "vector": "(vector)",
    "self": "(self)",
    "single": "(single)",
    "returned": "(average|head)",
    "train": "(train)",
    "form": "(dense)",
}


@dataclass(frozen=True)
class Widths:
    """Features of the query, the key, the value and the output."""

    query: int
    key: int
    value: int
    output: int

    @property
    def token(self) -> str:
        return f"e{self.query}.{self.key}.{self.value}.{self.output}"


@dataclass(frozen=True)
class LayerCase:
    """One layer asked one thing. `bare` leaves out what an operator can do without: biases
    (multi-head, self-attention), projections and score vector (additive), the scale (dot, concat).
    `vector` keeps the score vector of bare additive attention, as Keras' layer has one.
    `own` hands one tensor in as query, key and value; `single` hands in (L, width) without a batch
    (multi-head), or one query (B, width) without an axis for queries (additive). `train`: batch norm
    takes the statistics of the batch.

    Raises ValueError where the sizes make no sense for the operator.
    """

    operator: str
    sizes: Sizes
    widths: Widths
    dtype: DType
    mask: Mask | None = None
    bias: str = "none"
    bare: bool = False
    vector: bool = False
    own: bool = False
    single: bool = False
    returned: str = "none"
    train: bool = False
    form: str = "native"

    kind = "layer"

    def __post_init__(self) -> None:
        s, w = self.sizes, self.widths
        if self.operator not in OPERATORS:
            raise ValueError(
                f"unknown operator {self.operator!r}; valid: {', '.join(['sdpa', *OPERATORS])}"
            )
        if self.own and not (w.query == w.key == w.value and s.Lq == s.Lk):
            raise ValueError(f"one tensor as query, key and value needs equal sizes: {self.id}")
        if self.operator != "multi-head":
            if s.H != 1 or s.Hkv != 1 or w.output != s.Dv:
                raise ValueError(
                    f"{self.operator} has one head and an output of its size: {self.id}"
                )
            if not self._projects and s.Dv != w.value:
                raise ValueError(f"{self.operator} does not project values: {self.id}")
            if not self._projects and not (w.query == w.key == s.D) and not self._additive:
                raise ValueError(f"{self.operator} needs queries and keys of size d: {self.id}")
        if self.vector and not (self.operator == "additive" and self.bare):
            raise ValueError(f"a score vector of its own is bare additive attention's: {self.id}")
        if self.train and self.operator != "batch-norm":
            raise ValueError(f"{self.operator} is not asked in training: {self.id}")
        if self.single and s.B != 1 and self.operator == "multi-head":
            raise ValueError(f"an input without a batch axis has B = 1: {self.id}")
        if self.single and self.operator == "additive" and s.Lq != 1:
            raise ValueError(f"a single query has Lq = 1: {self.id}")

    @property
    def _projects(self) -> bool:
        return self.operator in ("multi-head", "self-attention")

    @property
    def _additive(self) -> bool:
        return self.operator == "additive" and not self.bare

    @property
    def mask_token(self) -> str:
        return self.mask.token if self.mask else "none"

    @property
    def group(self) -> str:
        """The row of the conformance table the case is counted in."""
        return self.operator

    @cached_property
    def id(self) -> str:
        """The stable name of the case."""
        s = self.sizes
        parts = [self.operator, self.mask_token, s.heads, self.dtype.name, s.token]
        parts.append(self.widths.token)
        if self.bias != "none":
            parts.append(f"bias.{self.bias}")
        if self.bare:
            parts.append(_BARE[self.operator])
        if self.vector:
            parts.append("vector")
        if self.own:
            parts.append("self")
        if self.single:
            parts.append("single")
        if self.returned != "none":
            parts.append(self.returned)
        if self.train:
            parts.append("train")
        if self.form != "native":
            parts.append(self.form)
        return "/".join(parts)

    @classmethod
    def parse(cls, text: str) -> LayerCase:
        """The case whose id is `text`. Raises ValueError naming the part that is wrong."""
        parts = text.split("/")
        if len(parts) < 6 or parts[0] not in OPERATORS:
            raise ValueError(
                f"not a layer's id: {text!r}; expected OPERATOR/MASK/HEADS/DTYPE/SIZES/WIDTHS[/...]"
            )
        operator, mask, heads, dt, sizes, widths, *options = parts
        numbers = widths.removeprefix("e").split(".")
        if not widths.startswith("e") or len(numbers) != 4 or not all(map(str.isdigit, numbers)):
            raise ValueError(f"bad widths {widths!r} in {text!r}; expected e12.10.14.12")
        values = parse_options(options, _OPTIONS, text)
        case = cls(
            operator,
            parse_sizes(heads, sizes, text),
            Widths(*map(int, numbers)),
            dtype(dt),
            parse_mask(mask),
            bias=values.get("bias", "none"),
            bare="bare" in values,
            vector="vector" in values,
            own="self" in values,
            single="single" in values,
            returned=values.get("returned", "none"),
            train="train" in values,
            form=values.get("form", "native"),
        )
        if case.id != text:
            raise ValueError(f"not a canonical layer's id: {text!r}; expected {case.id!r}")
        return case

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The features an implementation must have to be asked this case."""
        return draw_layer(self, 0).needs

    def describe(self) -> str:
        """The case in a few lines for people."""
        s, w = self.sizes, self.widths
        lines = [
            self.id,
            f"  {OPERATORS[self.operator]}",
            f"  query   ({s.B}, {s.Lq}, {w.query})  {self.dtype.long_name}",
            f"  key     ({s.B}, {s.Lk}, {w.key})" + ("  the query's own tensor" * self.own),
            f"  value   ({s.B}, {s.Lk}, {w.value})",
            f"  output  ({s.B}, {s.Lq}, {w.output}), weights returned: {self.returned}",
            f"  heads   {s.H} of size {s.D}, values {s.Dv}; key/value heads {s.Hkv}",
            f"  mask    {self.mask_token}, {self.form}",
            f"  bias    {self.bias}",
        ]
        lines += [
            f"  {name:16} {array.shape}" for name, array in draw_layer(self, 0).parameters.items()
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.id


_BARE = {
    "multi-head": "nobias",
    "self-attention": "nobias",
    "additive": "identity",
    "dot": "unscaled",
    "concat": "unscaled",
    "masked": "nobias",
    "layer-norm": "plain",
    "batch-norm": "plain",
}


@dataclass(frozen=True, eq=False)
class LayerInputs(MaskedInputs):
    """The values of a layer's case, or of a variation of it, as float64 arrays exact in `dtype`.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev); `parameters` as in `PARAMETERS`; `mask`
    symbolic, or None with `mask_array` boolean, broadcastable to (B, H, Lq, Lk), True attends, or both
    None; `bias` broadcasts likewise. `own`: query, key and value are one tensor. `rate` is that of the
    dropout of the weights, and `training` whether it is switched on.
    """

    operator: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    parameters: Mapping[str, np.ndarray]
    sizes: Sizes
    dtype: DType
    mask: Mask | None = None
    mask_array: np.ndarray | None = None
    bias: np.ndarray | None = None
    own: bool = False
    single: bool = False
    returned: str = "none"
    form: str = "native"
    seed: int = 0
    rate: float = 0.0
    training: bool = False
    dropout_seed: int = 0

    @property
    def widths(self) -> Widths:
        """Features of query, key, value and output."""
        output = self.parameters.get("output_kernel")
        last = self.value.shape[-1] if output is None else output.shape[-1]
        if output is None and "value_kernel" in self.parameters:
            last = self.sizes.Dv
        return Widths(self.query.shape[-1], self.key.shape[-1], self.value.shape[-1], last)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features an implementation must have to be asked these inputs."""
        s, w, names = self.sizes, self.widths, self.parameters
        masks = ["mask"] if self.mask_array is not None else []
        if self.mask is not None:
            # A layer's causal flag and its mask of keys never exclude each other.
            masks += part_features(self.mask, self.form)
        many = self.operator == "multi-head"
        asked = {
            "bias": self.bias is not None,
            "bias-with-mask": self.bias is not None and bool(masks),
            "grouped-heads": s.H != s.Hkv,
            "value-size": s.D != s.Dv and many,
            "key-width": w.key != w.query,
            "value-width": w.value != w.query,
            "output-width": w.output != w.query and many,
            "head-width": s.H * s.D != w.query and many,
            "no-projection-bias": many and "query_bias" not in names,
            "cross": not self.own,
            "average": self.returned == "average",
            "weights": self.returned == "head",
            "single": self.single,
            "batch": not self.single,
            "projection": self.operator == "additive" and "query_kernel" in names,
            "score-vector": "score_vector" in names,
            "learned-scale": "scale" in names,
            "odd-heads": bool(s.H % 2) and many,
        }
        return tuple(dict.fromkeys([*masks, *(name for name, needed in asked.items() if needed)]))


def draw_layer(case: LayerCase, seed: int = 0) -> LayerInputs:
    """The inputs of a layer's case: the same bytes for the same id and seed, on every machine.

    Inputs and biases are unit normals, kernels normals of variance 1 / fan-in, so that projections are
    unit normals again. A score vector has variance 4 / U: scores spread over about one unit. The scale
    of dot is near 1 / sqrt(D), that of concat near 1.
    """
    rng = generator(case.id, seed)
    s, w = case.sizes, case.widths
    query = rng.standard_normal((s.B, s.Lq, w.query))
    if case.operator in NORMS:
        # Features and tokens of different means and spreads, or no axis could be told from another.
        spread = np.exp(rng.standard_normal((1, 1, w.query)) / 2)
        level = rng.standard_normal((s.B, s.Lq, 1)) + rng.standard_normal(w.query)
        query = query * spread + level
    key = query if case.own else rng.standard_normal((s.B, s.Lk, w.key))
    value = query if case.own else rng.standard_normal((s.B, s.Lk, w.value))
    parameters = {
        name: round_to(array, case.dtype) for name, array in _parameters(case, rng).items()
    }
    bias = draw_bias(case.bias, rng, s, seed)
    q, k, v = (round_to(x, case.dtype) for x in (query, key, value))
    return LayerInputs(
        case.operator, q, k, v, parameters, s, case.dtype, case.mask,
        bias=None if bias is None else round_to(bias, case.dtype),
        own=case.own, single=case.single, returned=case.returned, form=case.form, seed=seed,
        training=case.train,
    )  # fmt: skip


def _parameters(case: LayerCase, rng: np.random.Generator) -> dict[str, np.ndarray]:
    s, w = case.sizes, case.widths
    shapes: dict[str, tuple[int, ...]]

    def kernel(fan_in: int, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(fan_in)

    if case.operator in ("multi-head", "self-attention"):
        made = {
            "query_kernel": kernel(w.query, w.query, s.H, s.D),
            "key_kernel": kernel(w.key, w.key, s.Hkv, s.D),
            "value_kernel": kernel(w.value, w.value, s.Hkv, s.Dv),
        }
        shapes = {"query": (s.H, s.D), "key": (s.Hkv, s.D), "value": (s.Hkv, s.Dv)}
        if case.operator == "multi-head":
            made["output_kernel"] = kernel(s.H * s.Dv, s.H, s.Dv, w.output)
            shapes["output"] = (w.output,)
        if not case.bare:
            made |= {f"{n}_bias": rng.standard_normal(shape) for n, shape in shapes.items()}
        return made
    if case.operator == "additive" and not case.bare:
        return {
            "query_kernel": kernel(w.query, w.query, s.D),
            "key_kernel": kernel(w.key, w.key, s.D),
            "score_vector": 2.0 * kernel(s.D, s.D),
        }
    if case.vector:
        return {"score_vector": 2.0 * kernel(s.D, s.D)}
    if case.operator == "dot" and not case.bare:
        return {"scale": np.array((1.0 + 0.25 * rng.random()) / np.sqrt(s.D))}
    if case.operator in NORMS:
        made = {} if case.bare else {
            "gain": 1.0 + rng.standard_normal(w.query) / 4,
            "offset": rng.standard_normal(w.query),
        }  # fmt: skip
        if case.operator == "batch-norm":
            made["mean"] = rng.standard_normal(w.query)
            made["variance"] = np.exp(rng.standard_normal(w.query))
        return made
    if case.operator == "concat":
        scale = {} if case.bare else {"scale": np.array(0.5 + 0.25 * rng.random())}
        return {"concat_weight": np.array(0.75 + 0.25 * rng.random()), **scale}
    return {}
