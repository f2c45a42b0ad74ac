"""The options, parameters, draws, needs and work that all layers share.

A layer takes sequences (B, L, width) and parameters. It returns an output (B, Lq, width) and, if
requested, weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
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
    """Returns the parameters of a case that have a row in `DRAWS`, by name in the order of its arrays.
    Operators draw other parameters themselves."""
    arrays = {}
    for name, axes in case.axes.items():
        for ending, draw_one in DRAWS.items():
            if name.endswith(ending):
                arrays[name] = draw_one(rng, *(case.letters[axis] for axis in axes))
                break
    return arrays


def kernel(rng: np.random.Generator, fan_in: int, *shape: int) -> np.ndarray:
    """Returns a kernel of the given shape: normals of variance 1 / fan-in, so that projections of unit
    normals are unit normals."""
    return rng.standard_normal(shape) / np.sqrt(fan_in)


DRAWS: Mapping[str, Callable[..., np.ndarray]] = {
    "output_kernel": lambda rng, heads, size, width: kernel(rng, heads * size, heads, size, width),
    "_kernel": lambda rng, fan_in, *units: kernel(rng, fan_in, fan_in, *units),
    "_bias": lambda rng, *shape: rng.standard_normal(shape),
    "offset": lambda rng, *shape: rng.standard_normal(shape),
    "gain": lambda rng, size: 1.0 + rng.standard_normal(size) / 4,
    "score_vector": lambda rng, units: 2.0 * kernel(rng, units, units),
}
"""The draw of a parameter, by the ending of the parameter's name: the first row that fits. A score vector
has variance 4 / U, so scores have a standard deviation near one."""


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of a layer whose parameters all have a row in `DRAWS`."""
    return draw_sequences(case, rng) | draw_parameters(case, rng)


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


def outputs(case: Case, features: str, heads: str = "") -> Axes:
    """Returns the outputs of a layer. `features`: the letter of the output's features; `heads`: the
    letter of the heads of its weights, if they have this axis."""
    weights = {"none": {}, "average": {"weights": "bqk"}, "head": {"weights": f"b{heads}qk"}}
    return {"output": f"bq{features}", **weights[case.option("returned")]}


def work_of(inputs: Inputs, flops: float, direction: str) -> Work:
    """Returns the work of a layer in a direction, from the operations of the forward pass. Operands,
    parameters and output are each moved once in every pass."""
    elements = sum(array.size for name, array in inputs.arrays.items() if name != "bias")
    elements += int(np.prod(inputs.full_shape("output")))
    bytes_moved = elements * inputs.dtype.itemsize
    return Work(flops * FACTORS[direction], bytes_moved * PASSES[direction])


FACTORS = {"forward": 1.0, "backward": 2.0, "forward+backward": 3.0}
"""Operations by direction: every product of the forward pass has two products in the backward pass.
"""

PASSES = {"forward": 1, "backward": 2, "forward+backward": 2}
"""How often operands are moved: read, and in the backward pass written as gradients."""
