"""Scaled dot-product attention.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), H a multiple of Hkv
    scores  = scale query key^T, then softcap tanh(scores / softcap), then + bias, then the mask
    weights = softmax(scores) over keys
    output  = weights value, (B, H, Lq, Dv)

The default scale is 1 / sqrt(D). Fully masked rows give zeros. `suite.spec.features` describes further
options.

Dropout in training drops each weight after the softmax with probability `rate`, and divides the rest by
1 - rate (Srivastava et al., Dropout, 2014; Vaswani et al., 2017).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features import FEATURES, Feature
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import (
    MODES,
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Questions,
    Work,
    choice,
    number,
)
from attention_conformance.suite.spec.operators.layers import RATE, UNSEARCHED_TRAINING
from attention_conformance.suite.spec.operators.sdpa_cases import CASES
from attention_conformance.suite.spec.operators.sdpa_derived import (
    COMPILED,
    COMPILED_GRADIENTS,
    GRADIENTS,
)
from attention_conformance.suite.spec.recipes import DRAWS, RECIPES
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import AXIS_ORDERS, BIASES, OPERANDS

BLOCK = 256
"""Query rows per block of the mask."""


def used_features(case: Case) -> list[Feature]:
    """Returns the features that a case has as options."""
    return [feature for feature in FEATURES.values() if feature.used_by(case)]


def axes(case: Case) -> Axes:
    feature_axes = {f.name: f.axes for f in used_features(case) if f.axes}
    return {"query": "bhqd", "key": "bgkd", "value": "bgkv", **feature_axes}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays = dict(zip(OPERANDS, DRAWS[case.recipe](rng, case.sizes, case.dtype), strict=True))
    for feature in used_features(case):
        if feature.draw is not None:
            arrays[feature.name] = feature.draw(case.sizes, rng)
    return arrays


def outputs(case: Case) -> Axes:
    feature_outputs = {name: x for f in used_features(case) for name, x in f.outputs.items()}
    return {"output": "bhqv", **feature_outputs}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    return {
        "scale": case.option("scale") is not None,
        **{f.word: f.name in arrays for f in FEATURES.values() if f.axes},
        **{f.word: f.used_by(case) for f in FEATURES.values() if f.option and not f.axes},
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
        "empty-batch": sizes.B == 0,
        "no-heads": sizes.H == 0,
        "empty-queries": sizes.Lq == 0,
        "inner-stride": case.axis_order == "bhdl",
    }


def validate(case: Case) -> None:
    for feature in FEATURES.values():
        feature.validate(case)


def group(case: Case) -> str:
    """Returns the row of the conformance table that counts a case: its operator. For plain attention: its
    last feature; without one "bias" (ALiBi, too); without a bias the kind of its mask."""
    if not case.operator.is_default:
        return case.operator.name
    groups = [feature.group for feature in used_features(case) if feature.group]
    feature_groups = [name for name in groups if name != "bias"]
    if feature_groups:
        return feature_groups[-1]
    has_bias = groups or case.option("bias") != "none"
    return "bias" if has_bias else re.sub(r"[^a-z].*", "", case.mask_token)


def pairs(inputs: Inputs) -> int:
    """Returns the number of attending pairs, over samples and heads. A bias of -inf hides pairs, too."""
    s = inputs.sizes
    if inputs.bias is not None and np.isneginf(inputs.bias).any():
        return int(inputs.attends.sum())
    allowed = inputs.allowed
    if allowed is None:
        return s.pairs
    blocks = (slice(start, min(start + BLOCK, s.Lq)) for start in range(0, s.Lq, BLOCK))
    return sum(
        int(np.broadcast_to(allowed(rows), (s.B, s.H, rows.stop - rows.start, s.Lk)).sum())
        for rows in blocks
    )


def work(inputs: Inputs, direction: str) -> Work:
    """Returns the floating-point operations and the bytes moved. `direction` is "forward", "backward" or
    "forward+backward"; the last one moves the bytes of backward.

    Forward costs 2 P (D + Dv) operations for P attending pairs, and moves operands and output once.
    Backward costs 2.5 times as many, with recomputation. It also reads the cotangent and writes three
    gradients.
    """
    s, pair_count = inputs.sizes, pairs(inputs)
    factor = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}[direction]
    operands = inputs.query.size + inputs.key.size + inputs.value.size
    output = s.B * s.H * s.Lq * s.Dv
    moved_elements = operands + output if direction == "forward" else 2 * operands + 2 * output
    moved_elements += 0 if inputs.bias is None else inputs.bias.size
    return Work(factor * 2.0 * pair_count * (s.D + s.Dv), moved_elements * inputs.dtype.itemsize)


SDPA = Operator(
    name="sdpa",
    text="scaled dot-product attention",
    axes=axes,
    draw=draw,
    outputs=outputs,
    array_kinds=ArrayKinds(
        axis_orders=AXIS_ORDERS,
        statistics=tuple(name for name, f in FEATURES.items() if f.constant),
        wide=tuple(name for f in FEATURES.values() if f.wide for name in (*f.outputs, f.name)),
    ),
    needs=needs,
    validate=validate,
    asks=Asks(
        plain="sdpa/none/mha/{dt}/b3h2q18k34d8",
        plain_kinds=("sdpa/none/gqa4/f32/b2h8q16k64d64", "sdpa/none/gqa4/bf16/b1h8q1k64d128"),
        cases=CASES,
        gradients=GRADIENTS,
        compiled=COMPILED,
        compiled_gradients=COMPILED_GRADIENTS,
    ),
    options=(
        choice("bias", BIASES, "bias."),
        number("scale", "scale", 0.3, 0.0, -0.2, 2.5, 1.0, 0.125, 3.0, -3.0),
        *(feature.option for feature in FEATURES.values() if feature.option),
        RATE,
        UNSEARCHED_TRAINING,
    ),
    questions=Questions(
        elections=(
            "fully-masked-row", "minus-inf-row", "lowest-row", "fully-masked-row-gradient",
            "minus-inf-row-gradient",
            "nan-in-masked-key-gradient", "nan-in-masked-value-gradient", "no-keys", "causal-alignment",
            "causal-with-mask", "nan-in-masked-key", "nan-in-masked-value", "nan-in-attended-key",
            "nan-in-attended-value", "nan-in-bias", "inf-in-attended-value",
            "nan-in-query", "value-size", "integer-mask", "subnormal-output",
            "score-overflow", "lse-of-empty-row", "lse-gradient",
            *MODES,
        ),
        probe="sdpa/{mask}/mha/{dt}/b2h3q5k7d8",
        well_formed="sdpa/none/gqa2/f32/b2h4q5k7d8",
        gradient_probe="sdpa/{mask}/mha/{dt}/b2h3q5k7d8",
        trials=("sdpa/none/mha/{dt}/b2h4q16k16d64", "sdpa/none/mha/{dt}/b1h2q64k64d64"),
    ),
    recipes=RECIPES,
    work=work,
)  # fmt: skip
