"""The options, parameters, draws and needs that all layers share.

A layer takes sequences (B, L, width) and parameters. It returns an output (B, Lq, width) and, if
requested, weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Axes, Option, Work, choice, flag
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import BIASES, RETURNED

PARAMETERS = {
    "query_kernel": "(Eq, H, D); additive: (Eq, U)",
    "query_bias": "(H, D)",
    "key_kernel": "(Ek, Hkv, D); additive: (Ek, U)",
    "key_bias": "(Hkv, D)",
    "value_kernel": "(Ev, Hkv, Dv)",
    "value_bias": "(Hkv, Dv)",
    "output_kernel": "(H, Dv, Eo)",
    "output_bias": "(Eo,)",
    "gate_kernel": "(Eq, H, Dv), gated",
    "gate_bias": "(H, Dv), gated",
    "score_vector": "(U,), additive",
    "scale": "(), dot and concat",
    "concat_weight": "(), concat",
    "gain": "(E,), norms",
    "offset": "(E,), norms",
    "query_gain": "(D,), multi-head: of a norm of the projected queries",
    "key_gain": "(D,), likewise of the keys",
    "mean": "(E,), batch norm: the mean it has learned, used in evaluation",
    "variance": "(E,), batch norm: the variance it has learned",
}
"""Canonical parameters with their shapes: y = x kernel + bias, with the features of a head last.

Eq, Ek, Ev, Eo are the widths of query, key, value and output, H and Hkv the heads, D and Dv their
sizes.
"""

SEQUENCES: dict[str, str] = {"query": "bqx", "key": "bky", "value": "bkz"}
"""The operands of a layer, with their axes."""

WEIGHTS_OF_ONE_HEAD = {"none": {}, "average": {"weights": "bqk"}, "head": {"weights": "bqk"}}
"""Further outputs of layers of one head, by the option `returned`."""

RATE = Option(
    "rate", r"drop(-?\d\.\d+)", float, lambda value: f"drop{value!r}", 0.0, limits=(0.0, 1.0)
)
"""Dropout of the weights."""

TRAINING = flag("training", "train")
"""True for a training call."""

UNSEARCHED_TRAINING = replace(TRAINING, values=())
"""The option `training` for layers that compute the same in training and evaluation, without dropout.
"""


def options(
    omission: str, word: str, *more_options: Option, training_differs: bool = False
) -> tuple[Option, ...]:
    """Returns the options of a layer, `more_options` included.
    - `omission`: the name of a flag that leaves out an optional part of the layer; `word`: its token in
      ids
    - `training_differs`: True if training and evaluation differ even without dropout

    The flag `self_attention` passes one tensor as query, key and value. The flag `squeezed` leaves out an
    axis (`Operator.squeezed_axis`).
    """
    return (
        choice("bias", BIASES, "bias."),
        flag(omission, word),
        *more_options,
        flag("self_attention", "self"),
        flag("squeezed", "single"),
        choice("returned", RETURNED),
        RATE,
        TRAINING if training_differs else UNSEARCHED_TRAINING,
    )


ONE_HEAD = ("1hg", "zvo", "xyd")
"""The ties of a layer of one head without projections."""


def ties(*fixed_ties: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Returns the function `Operator.ties` of a layer. Its ties are `fixed_ties`, and with self-attention
    equal widths and lengths of query, key and value."""
    return lambda options: (*fixed_ties, *(("xyz", "qk") if options["self_attention"] else ()))


def draw_sequences(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns query, key and value (B, L, width), by name: unit normals. In self-attention all three are
    one array."""
    s, w = case.sizes, case.widths
    assert w is not None
    query = rng.standard_normal((s.B, s.Lq, w.query))
    is_one_tensor = case.option("self_attention")
    key = query if is_one_tensor else rng.standard_normal((s.B, s.Lk, w.key))
    value = query if is_one_tensor else rng.standard_normal((s.B, s.Lk, w.value))
    return {"query": query, "key": key, "value": value}


def draw_parameters(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns the kernels (`kernel`), biases and offsets (unit normals), and gains (near 1) of a case, by
    name in the order of its arrays. Operators draw other parameters themselves."""
    arrays = {}
    for name, axes in case.axes.items():
        shape = [case.letters[axis] for axis in axes]
        if name.endswith("_kernel"):
            fan_in = math.prod(shape[: 2 if name == "output_kernel" else 1])
            arrays[name] = kernel(rng, fan_in, *shape)
        elif name.endswith(("_bias", "offset")):
            arrays[name] = rng.standard_normal(shape)
        elif name.endswith("gain"):
            arrays[name] = 1.0 + rng.standard_normal(shape) / 4
    return arrays


def kernel(rng: np.random.Generator, fan_in: int, *shape: int) -> np.ndarray:
    """Returns a kernel of the given shape: normals of variance 1 / fan-in, so that projections of unit
    normals are unit normals."""
    return rng.standard_normal(shape) / np.sqrt(fan_in)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    """Returns the features that any layer may need, by word: True if the case needs the feature."""
    return {
        "grouped-heads": sizes.H != sizes.Hkv,
        "key-width": widths.key != widths.query,
        "value-width": widths.value != widths.query,
        "cross": not case.option("self_attention"),
        "average": case.option("returned") == "average",
        "weights": case.option("returned") == "head",
        "squeezed": bool(case.option("squeezed")),
        "batch": not case.option("squeezed"),
        "score-vector": "score_vector" in arrays,
        "learned-scale": "scale" in arrays,
    }


def one_head_outputs(axis: str) -> Callable[[Case], Axes]:
    """Returns the function `Operator.outputs` of a layer of one head. `axis`: the letter of the output's
    features."""
    return lambda case: {"output": f"bq{axis}", **WEIGHTS_OF_ONE_HEAD[case.option("returned")]}


def scaled_gradients(operator: str) -> tuple[Ask, ...]:
    """Returns the gradient cases of a layer of one head, with and without a learned scale."""
    sizes = "b2h1q5k9d8v6/e8.8.6.6"
    return (
        Ask(f"{operator}/pad/mha/f32/{sizes}"),
        Ask(
            f"{operator}/pad/mha/bf16/{sizes}",
            f"{operator}/padempty/mha/f32/{sizes}",
            f"{operator}/pad/mha/f32/b2h1q3k33d64/e64.64.64.64",
            since="standard",
        ),
        Ask(
            f"{operator}/none/mha/{{dt}}/{sizes}/unscaled",
            f"{operator}/none/mha/{{dt}}/{sizes}",
            f"{operator}/padempty/mha/{{dt}}/{sizes}/unscaled",
            f"{operator}/padempty/mha/{{dt}}/{sizes}",
            dtypes="rest",
            since="full",
        ),
    )


def moved_bytes(inputs: Inputs) -> int:
    """Returns the bytes of operands, parameters and output of a layer, each counted once."""
    elements = sum(array.size for name, array in inputs.arrays.items() if name != "bias")
    elements += int(np.prod(inputs.full_shape("output")))
    return elements * inputs.dtype.itemsize


def projections_work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes of four projections and the attention between them, in a direction."""
    s, w, pairs = inputs.sizes, inputs.widths, int(inputs.attends.sum())
    products = s.Lq * w.query * s.H * s.D + s.Lk * w.key * s.Hkv * s.D
    products += s.Lk * w.value * s.Hkv * s.Dv + s.Lq * s.H * s.Dv * w.output
    flops = 2.0 * s.B * products + 2.0 * pairs * (s.D + s.Dv)
    return Work(flops * FACTORS[direction], moved_bytes(inputs) * PASSES[direction])


FACTORS = {"forward": 1.0, "backward": 2.0, "forward+backward": 3.0}
"""Operations by direction: every product of the forward pass has two products in the backward pass.
"""

PASSES = {"forward": 1, "backward": 2, "forward+backward": 2}
"""How often operands are moved: read, and in the backward pass written as gradients."""
