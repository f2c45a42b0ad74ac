"""Scaled dot-product attention.

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), H a multiple of Hkv.
scores = scale query key^T, then softcap tanh(scores / softcap), then + bias, then the mask; weights =
softmax over keys; output = weights value, (B, H, Lq, Dv). Scale None means 1 / sqrt(D). A row without any
key gives zeros. With sinks (H,) the softmax of head h has one more logit, sinks[h], whose value is 0
(Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2023; gpt-oss, 2025).

With alibi_slopes (H,) the call makes its bias itself: -alibi_slopes[h] |i + Lk - Lq - j| for row i and
key j, so that the last row stands at the last key (Press, Smith, Lewis, ALiBi, ICLR 2022; the parameter
of this name of flash-attention's functions). Slopes are float32 beside 16-bit operands, and have no
gradient.

With the option lse the call returns a second output, (B, H, Lq): log sum exp of a row's scores, what
partial answers are merged by (Dao et al., FlashAttention, 2022). Of 16-bit operands it is float32.

With a rate of dropout, in training, each weight is dropped with this probability, behind the softmax,
and what is kept is divided by 1 - rate (Srivastava et al., Dropout, 2014; Vaswani et al., 2017).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.spec.operator import Axes, Operator, Work, choice, flag, number
from suite.spec.operators.layers import RATE, UNSEARCHED_TRAINING
from suite.spec.operators.sdpa_cases import CASES
from suite.spec.operators.sdpa_derived import COMPILED, COMPILED_GRADIENTS, GRADIENTS
from suite.spec.recipes import DRAWS, RECIPES, alibi_slopes
from suite.spec.sizes import Sizes
from suite.spec.vocabulary import AXIS_ORDERS, BIASES, BY_HEAD, OPERANDS

if TYPE_CHECKING:
    from suite.spec.case import Case
    from suite.spec.inputs import Inputs

BLOCK = 256
"""Query rows whose mask is held at a time."""


def axes(case: Case) -> Axes:
    by_head = {name: "h" for name in BY_HEAD if case.option(name)}
    return {"query": "bhqd", "key": "bgkd", "value": "bgkv", **by_head}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays = dict(zip(OPERANDS, DRAWS[case.recipe](rng, case.sizes, case.dtype), strict=True))
    if case.option("sinks"):
        # About as large as scores, so that a sink takes some of every row.
        arrays["sinks"] = 1.0 + rng.standard_normal(case.sizes.H)
    if case.option("alibi_slopes"):
        arrays["alibi_slopes"] = alibi_slopes(case.sizes.H)
    return arrays


def outputs(case: Case) -> Axes:
    lse = {"lse": "bhq"} if case.option("lse") else {}
    return {"output": "bhqv", **lse}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    return {
        "scale": case.option("scale") is not None,
        "softcap": case.option("softcap") is not None,
        "sinks": "sinks" in arrays,
        "alibi-slopes": "alibi_slopes" in arrays,
        "lse": bool(case.option("lse")),
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
        "empty-batch": sizes.B == 0,
        "no-heads": sizes.H == 0,
        "empty-queries": sizes.Lq == 0,
        "inner-stride": case.axis_order == "bhdl",
    }


def validate(case: Case) -> None:
    softcap = case.option("softcap")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive, got {softcap}")
    if case.option("sinks") and case.option("lse"):
        raise ValueError(
            "interfaces differ in whether a log-sum-exp counts the sink: ask one of them"
        )
    if case.option("alibi_slopes") and case.option("bias") != "none":
        raise ValueError("slopes are a bias that the call makes itself: ask it or another bias")


def group(case: Case) -> str:
    """lse, sinks, softcap, bias (ALiBi with it), or the kind of mask."""
    if case.option("lse"):
        return "lse"
    if case.option("sinks"):
        return "sinks"
    if case.option("softcap") is not None:
        return "softcap"
    if case.option("bias") != "none" or case.option("alibi_slopes"):
        return "bias"
    return re.sub(r"[^a-z].*", "", case.mask_token)


def pairs(inputs: Inputs) -> int:
    """Pairs of a query and a key that attend, over samples and heads; a bias of -inf hides, too."""
    s = inputs.sizes
    if inputs.bias is not None and np.isneginf(inputs.bias).any():
        return int(inputs.attends.sum())
    allowed = inputs.allowed
    if allowed is None:
        return s.B * s.H * s.Lq * s.Lk
    blocks = (slice(start, min(start + BLOCK, s.Lq)) for start in range(0, s.Lq, BLOCK))
    return sum(
        int(np.broadcast_to(allowed(rows), (s.B, s.H, rows.stop - rows.start, s.Lk)).sum())
        for rows in blocks
    )


def work(inputs: Inputs, direction: str) -> Work:
    """Forward 2 P (D + Dv) operations for P pairs; backward 2.5 times as many, with recomputation.

    Operands and output are moved once; backward reads them and the cotangent, and writes three gradients.
    """
    s, count = inputs.sizes, pairs(inputs)
    factor = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}[direction]
    operands = inputs.query.size + inputs.key.size + inputs.value.size
    output = s.B * s.H * s.Lq * s.Dv
    numbers = operands + output if direction == "forward" else 2 * operands + 2 * output
    numbers += 0 if inputs.bias is None else inputs.bias.size
    return Work(count, factor * 2.0 * count * (s.D + s.Dv), numbers * inputs.dtype.itemsize)


SDPA = Operator(
    name="sdpa",
    text="scaled dot-product attention",
    axes=axes,
    draw=draw,
    outputs=outputs,
    wide_outputs=("lse",),
    wide_arrays=("alibi_slopes",),
    statistics=("alibi_slopes",),
    needs=needs,
    validate=validate,
    plain="sdpa/none/mha/{dt}/b3h2q18k34d8",
    cases=CASES,
    gradients=GRADIENTS,
    compiled=COMPILED,
    compiled_gradients=COMPILED_GRADIENTS,
    options=(
        choice("bias", BIASES, "bias."),
        number("scale", "scale", 0.3, 0.0, -0.2, 2.5, 1.0, 0.125, 3.0, -3.0),
        number("softcap", "cap", 2.0, 0.5, 5.0, 30.0),
        flag("sinks", "sinks", rare=True),
        flag("lse", "lse", rare=True),
        flag("alibi_slopes", "slopes", rare=True),
        RATE,
        UNSEARCHED_TRAINING,
    ),
    group=group,
    elections=(
        "fully-masked-row", "minus-inf-row", "lowest-row", "fully-masked-row-gradient",
        "minus-inf-row-gradient",
        "nan-in-masked-key-gradient", "nan-in-masked-value-gradient", "no-keys", "causal-alignment",
        "causal-with-mask", "nan-in-masked-key", "nan-in-masked-value", "nan-in-attended-value",
        "nan-in-query", "value-size", "integer-mask", "subnormal-output", "score-overflow",
        "lse-of-empty-row", "lse-gradient",
    ),
    probe="sdpa/{mask}/mha/{dt}/b2h3q5k7d8",
    well_formed="sdpa/none/gqa2/f32/b2h4q5k7d8",
    gradient_probe="sdpa/{mask}/mha/{dt}/b2h3q5k7d8",
    trials=("sdpa/none/mha/{dt}/b2h4q16k16d64", "sdpa/none/mha/{dt}/b1h2q64k64d64"),
    recipes=RECIPES,
    axis_orders=AXIS_ORDERS,
    is_default=True,
    conjunctions_are_arrays=True,
    work=work,
)  # fmt: skip
