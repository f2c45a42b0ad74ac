"""`keras.layers.MultiHeadAttention` and `keras.layers.GroupQueryAttention`, in two code paths each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.layer import KerasLayer, Numerics, without_dropout
from attention_conformance.backends.declared import Election
from attention_conformance.backends.masks import LayerMasks, full
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Window
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

TENSORFLOW = {"f64": "eager", "f32": "eager", "bf16": "stepwise", "f16": "working"}
"""The classes of textbook code on TensorFlow (`backends._tensorflow.engine`)."""

SCORES_NUMERICS: Mapping[str, Numerics] = {
    # The Python number 1 / sqrt(D) passes through float32.
    "tensorflow": TENSORFLOW | {"f64": "single"},
    "torch": "eager",
    "jax": "stepwise",
    # keras.ops casts float64 to float32; einsum sums in float16. The softmax sums in bfloat16, which only
    # few keys allow in this class (finding keras-numpy-bfloat16-softmax).
    "numpy": {"f64": "single", "f32": "eager", "bf16": "stepwise", "f16": "working"},
}
"""Numerics classes of layers that return scores, by engine."""


TORCH_EMPTY = {"f64": "uniform", "f32": "uniform", "bf16": "uniform", "f16": "unmasked"}
"""The mask becomes a bias of -0.7 max. In float16 (-45853) the bias does not absorb float32 scores."""

BOTH = KerasLayer.declared.refusing(
    {
        "squeezed": "takes a batch",
        "average": "Keras returns the scores of every head",
    }
).electing(
    {
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    }
)

PLAIN: Mapping[str, Election] = {
    "fully-masked-row": "uniform",
    "padded-sample": "uniform",
    "fully-masked-row-gradient": "values",
}
"""Elections of layers that call `keras.ops.dot_product_attention`."""

SCORES: Mapping[str, Election] = {
    # The softmax sets masked weights to zero.
    "fully-masked-row": "zeros",
    "padded-sample": "zeros",
    "fully-masked-row-gradient": "nothing",
    "returned-weights": "before-dropout",
}
"""Elections of layers that return scores."""


SCORES_ELECTIONS: Mapping[str, Mapping[str, Election]] = {
    # In float64 the output's bias is rounded to float32, which matches no answer.
    "numpy": dict.fromkeys(
        ("fully-masked-row", "padded-sample"), dict.fromkeys(("f32", "bf16", "f16"), "zeros")
    )
}
"""Elections of single engines that differ, for layers that return scores."""

MHA = BOTH.refusing(
    {"grouped-heads": "keras.layers.MultiHeadAttention has as many key/value heads as query heads"}
)
GQA = BOTH.refusing(
    {
        "value-size": "keras.layers.GroupQueryAttention has one head_dim",
        "output-width": "keras.layers.GroupQueryAttention projects back to the query's width",
    }
)


def lowered(inputs: Inputs) -> Inputs:
    """Inputs whose scores are all lower by 90000 / sqrt(D), which does not change a softmax.

    The first component is 300 in every projected query and -300 in every projected key.
    """
    changes: dict[str, np.ndarray] = {}
    for name, number in (("query", 300.0), ("key", -300.0)):
        kernel, bias = (inputs.arrays[f"{name}_{what}"].copy() for what in ("kernel", "bias"))
        kernel[..., 0], bias[..., 0] = 0.0, number
        changes |= {f"{name}_kernel": kernel, f"{name}_bias": bias}
    return inputs.replace(**changes)


class MultiHead(KerasLayer):
    """`keras.layers.MultiHeadAttention` without scores, which calls keras.ops.dot_product_attention."""

    name = "keras-mha"
    operator = MULTI_HEAD
    declared = MHA.refusing(
        {"weights": "return_attention_scores=True takes another path: keras-mha-scores"}
    ).electing(PLAIN)
    numerics: Mapping[str, Numerics] = {
        "tensorflow": TENSORFLOW | {"f64": "single"},
        # keras.ops.dot_product_attention casts float64 to float32.
        "torch": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
        # The softmax of jax.nn.dot_product_attention is float32.
        "jax": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
        # einsum sums in float16.
        "numpy": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "working"},
    }
    elections: Mapping[str, Mapping[str, Election]] = {
        "torch": {
            "fully-masked-row": TORCH_EMPTY,
            "padded-sample": TORCH_EMPTY,
            "fully-masked-row-gradient": dict.fromkeys(("f64", "f32", "bf16"), "scores"),
            "nan-in-masked-key": "leaks",
        },
    }
    variants: Mapping[str, Mapping[str, Any]] = {
        # flash_attention=True raises on every engine on CPU.
        "flash_attention=False": {"flash_attention": False},
        "attention_axes=1": {"attention_axes": 1},
        "attention_axes=(1,)": {"attention_axes": (1,)},
        "attention_axes=-2": {"attention_axes": -2},
    }
    """Constructor arguments that must not change the answer."""
    has_axes = True
    hides_rows = "attached"
    """How a mask of queries is passed."""

    def asks_scores(self, inputs: Inputs) -> bool:
        return False

    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        import keras

        s, widths = inputs.sizes, inputs.widths
        sizes: dict[str, Any] = {} if s.Dv == s.D else {"value_dim": s.Dv}
        if widths.output != widths.query:
            sizes["output_shape"] = widths.output
        return keras.layers.MultiHeadAttention(
            s.H, s.D, **sizes, **self.projections(inputs), **flags
        )

    def projections(self, inputs: Inputs) -> dict[str, Any]:
        """Constructor arguments for the projections. As in users' code, default values are not passed."""
        biases = {} if "query_bias" in inputs.parameters else {"use_bias": False}
        return {**biases, "kernel_initializer": "zeros"}

    def build(self, layer: Any, inputs: Inputs) -> None:
        query, value, key = (x.shape for x in (inputs.query, inputs.value, inputs.key))
        # As in users' code: the key's shape defaults to the value's shape.
        layer.build(query, value, *([key] if key != value else []))
        if hasattr(layer, "_gate_dense"):
            models.set_gate(layer._gate_dense)

    def variables(self, layer: Any) -> dict[str, Any]:
        dense = {n: getattr(layer, f"_{n}_dense") for n in ("query", "key", "value", "output")}
        parts = [(n, d, what) for n, d in dense.items() for what in ("kernel", "bias")]
        variables = {f"{n}_{what}": getattr(d, what) for n, d, what in parts}
        return {name: variable for name, variable in variables.items() if variable is not None}

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """value_mask (B, Lk) and attention_mask (B, Lq, Lk), or (B, H, Lq, Lk) if heads differ."""
        both = {"value_mask": LayerMasks.of(inputs).valid, "attention_mask": _written_out(inputs)}
        return {n: self.backend.array(mask, None) for n, mask in both.items() if mask is not None}

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls, split = dict(super().paths(inputs)), LayerMasks.of(inputs)
        if split.causal or split.valid is not None:
            calls["dense mask"] = self.call(inputs.with_dense())
        if split.valid is not None and not split.causal and not inputs.self_attention:
            calls["rows without keys by query_mask"] = self.with_hidden_rows(inputs, split.valid)
        if split.valid is not None and "query_bias" in inputs.arrays and not inputs.dtype.is_half:
            # Scores below -3e4, a constant that some code uses for masked scores.
            problem = lowered(inputs)
            calls["low scores"] = replace(self.call(problem), problem=problem)
        return calls

    def with_hidden_rows(self, inputs: Inputs, valid: np.ndarray) -> PreparedCall:
        """A call in which a mask of queries hides every key from some queries.

        The mask is attached to the query, since only GroupQueryAttention reads the argument query_mask
        (finding keras-query-mask-ignored).
        """
        seen = models.shown_rows(inputs)
        query = {"query_mask": self.backend.array(seen, None)}
        pairs = (valid[:, None] & seen[:, :, None])[:, None]
        problem = inputs.replace(mask=None, mask_array=pairs, form="dense")
        plain = self.call(inputs, masks=self.masks(inputs) | query, through=self.hides_rows)
        return replace(plain, problem=problem)

    def ways(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        ways = super().ways(inputs)
        ways |= {name: {"flags": flags} for name, flags in self.variants.items()}
        masks, rest = self.masks(inputs), _written_out(inputs)
        # In JAX every path is a program to compile: some are asked only without self-attention.
        apart = not inputs.self_attention
        if apart:
            ways["inside a layer"] = {"through": "inside"}
            ways["use_gate"] = {"through": "gate", "flags": {"use_gate": True}, "restored": True}
        flagged = "value_mask" in masks or LayerMasks.of(inputs).causal
        if self.has_axes and not flagged and (rest is None or rest.ndim == 3):
            axes = {"attention_axes": (1, 2)}
            ways["attention_axes=(1, 2)"] = {"through": "several axes", "flags": axes}
        sides = _sides(inputs)
        if sides is not None:
            window: dict[str, Any] = {"flags": {"sliding_window": sides + 1}, "masks": {}}
            ways["sliding_window"] = window
            ways["sliding_window, from its config"] = window | {"restored": True}
        if "value_mask" in masks:
            others = {name: mask for name, mask in masks.items() if name != "value_mask"}
            ways["key_mask"] = {"masks": {**others, "key_mask": masks["value_mask"]}}
            pairs = self.mask_pairs(inputs) if apart else {}
            ways |= {n: {"masks": {**others, **m}} for n, m in pairs.items()}
        if rest is not None:
            numbers = self.backend.array(rest.astype(np.int32), None)
            ways["integer mask"] = {"masks": {**masks, "attention_mask": numbers}}
            if rest.ndim == 3 and (rest == rest[:1]).all():
                shared = self.backend.array(np.ascontiguousarray(rest[0]), None)
                ways["mask without a batch"] = {"masks": {**masks, "attention_mask": shared}}
        return ways

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import keras

        s, kind = inputs.sizes, keras.layers.MultiHeadAttention
        return self.refused_calls(inputs) | {
            "num_heads=0": partial(kind, 0, s.D),
            "num_heads=1.0": partial(kind, 1.0, s.D),
            "key_dim=0": partial(kind, s.H, 0),
            "key_dim=1.0": partial(kind, s.H, 1.0),
            "value_dim=0": partial(kind, s.H, s.D, value_dim=0),
            "value_dim=1.0": partial(kind, s.H, s.D, value_dim=1.0),
            "output_shape=1.0": partial(kind, s.H, s.D, output_shape=1.0),
            "attention_axes=1.0": partial(kind, s.H, s.D, attention_axes=1.0),
            **refused_settings(partial(kind, s.H, s.D)),
        }

    def refused_calls(self, inputs: Inputs) -> dict[str, Callable[[], Any]]:
        """Calls of valid layers that must be refused."""
        query = sequences(self.backend, inputs)["query"]
        fast, plain = (self.layer(inputs, **f) for f in ({"flash_attention": True}, {}))
        shapes = [(2, 3, 4), (2, 5, 4), (2, 6, 4)]
        return {
            "scores with flash_attention": lambda: fast(query, query, return_attention_scores=True),
            "the output's shape for more keys than values": lambda: plain.compute_output_shape(
                *shapes
            ),
        }

    def mask_pairs(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """Valid keys split between the masks of value and key, and masks of queries that hide nothing."""
        valid, array = np.asarray(LayerMasks.of(inputs).valid), self.backend.array
        odd = np.arange(inputs.sizes.Lk) % 2 == 1
        value, key = array(valid | odd, None), array(valid | ~odd, None)
        query = array(np.ones((inputs.sizes.B, inputs.sizes.Lq), bool), None)
        both = {"value_mask": value, "key_mask": key}
        return {
            "value_mask and key_mask": both,
            "query_mask and value_mask": {"query_mask": query, "value_mask": array(valid, None)},
            "query_mask, value_mask and key_mask": {"query_mask": query, **both},
        }


class WithScores(MultiHead):
    """return_attention_scores=True: einsum, softmax, einsum."""

    numerics = SCORES_NUMERICS
    elections = SCORES_ELECTIONS

    def asks_scores(self, inputs: Inputs) -> bool:
        return True

    def ways(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        return super().ways(inputs) | without_dropout(inputs)


class MultiHeadScores(WithScores):
    """`MultiHead` with scores."""

    name = "keras-mha-scores"
    declared = MHA.electing(SCORES)


class GroupQuery(MultiHead):
    """`keras.layers.GroupQueryAttention` without scores, which calls keras.ops.dot_product_attention."""

    name = "keras-gqa"
    declared = GQA.refusing(
        {"weights": "return_attention_scores=True takes another path: keras-gqa-scores"}
    ).electing(PLAIN)
    variants = {"flash_attention=False": {"flash_attention": False}}
    has_axes = False
    hides_rows = ""

    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        import keras

        s = inputs.sizes
        return keras.layers.GroupQueryAttention(
            s.D, s.H, s.Hkv, **self.projections(inputs), **flags
        )

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import keras

        s, kind = inputs.sizes, keras.layers.GroupQueryAttention
        return self.refused_calls(inputs) | {
            "heads that do not divide": partial(kind, s.D, 4, 3),
            **refused_settings(partial(kind, s.D, s.H, s.Hkv)),
        }


def refused_settings(layer: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Settings that both layers must refuse; `layer` makes a layer."""
    return {
        "sliding_window=0": partial(layer, sliding_window=0),
        "sliding_window=1.0": partial(layer, sliding_window=1.0),
        "dropout with flash_attention": partial(layer, flash_attention=True, dropout=0.5),
    }


class GroupQueryScores(WithScores, GroupQuery):
    """`GroupQuery` with scores."""

    name = "keras-gqa-scores"
    declared = GQA.electing(SCORES)


def _sides(inputs: Inputs) -> int | None:
    """The size of a window that is symmetric and the only mask; else None."""
    mask = inputs.mask
    if not isinstance(mask, Window) or mask.left != mask.right or inputs.form == "dense":
        return None
    return mask.left


def _written_out(inputs: Inputs) -> np.ndarray | None:
    """The mask without the parts that are flags, (B, Lq, Lk), or (B, H, Lq, Lk) if heads differ."""
    rest = LayerMasks.of(inputs).rest
    if rest is None:
        return None
    apart = rest.ndim == 4 and rest.shape[1] != 1
    return np.ascontiguousarray(full(rest, inputs, apart))
