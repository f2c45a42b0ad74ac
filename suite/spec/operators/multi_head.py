"""Multi-head attention with projections (Vaswani et al. 2017, section 3.2).

    concat_h attention(X_q W_h^Q + b, X_k W_h^K + b, X_v W_h^V + b) W^O + b

Options: grouped queries (Ainslie et al. 2023), a layer norm of queries and keys per head (Dehghani et al.
2023, section 2), and `KIND`: one head without output projection, or gated heads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Covering, Row
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import FEW_COMPILED, Ask
from attention_conformance.suite.spec.operator import (
    MODES,
    Asks,
    Axes,
    Operator,
    Questions,
    Work,
    choice,
    flag,
)
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.norms import NORM_EPSILON
from attention_conformance.suite.spec.operators.sdpa_cases import mask_fits_form
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "one-head": "one head without output projection",
    "gate": "heads that are gated element by element",
}
"""Words for required features of multi-head attention."""

KIND = choice("kind", ("multi-head", "self-attention", "gated"))
"""The names of `--like`.

- self-attention: one head without output projection; its weights have no axis of heads
- gated: W^O takes heads times sigmoid(X_q W^G + b), element by element (Qiu et al., Gated Attention for
  Large Language Models, 2025)
"""

ONE_HEAD = ("1hg", "vo")
"""The ties of self-attention of one head."""

# B, Lq, Lk, H, Hkv, D, Dv and the widths of query, key, value, output; whether query, key and value are
# one tensor. Few, and alike where they can be, since JAX compiles a program for every shape.
SHAPES: dict[str, tuple[tuple[int, ...], str, bool]] = {
    # Every library's layer supports one tensor, and heads that split its width.
    "own": ((2, 7, 7, 4, 4, 3, 3), "e12.12.12.12", True),
    # B == H, B == Lq, H == Lk... an odd number of heads
    "equal": ((3, 3, 3, 3, 3, 4, 4), "e12.12.12.12", True),
    "cross": ((2, 5, 9, 3, 3, 4, 4), "e12.12.12.12", False),
    "widths": ((2, 5, 9, 2, 2, 6, 6), "e12.10.14.12", False),
    "decode": ((2, 1, 33, 2, 2, 64, 64), "e128.128.128.128", False),
    "grouped": ((2, 5, 9, 6, 2, 4, 4), "e12.10.10.12", False),
    "general": ((2, 5, 9, 4, 4, 3, 5), "e10.11.13.7", False),
    "model": ((1, 16, 16, 8, 8, 64, 64), "e512.512.512.512", True),
    "largest": ((1, 3, 4, 2, 2, 128, 128), "e256.256.256.256", False),
}

AXES: dict[str, tuple[object, ...]] = {
    "mask": (
        "none", "causal", "pad", "causal+pad", "bool.qk", "bool.b1qk", "bool.bhqk", "pad+bool.qk",
        "causal+bool.1hqk",
    ),
    "shape": tuple(SHAPES),
    "dtype": tuple(DTYPES),
    "returned": ("none", "average", "head"),
    "bias": ("none", "qk", "bhqk"),
    "without_biases": (False, True),
    "form": ("native", "dense"),
}  # fmt: skip


def sizes_of(shape: str) -> Sizes:
    """Returns the sizes of a shape of `SHAPES`."""
    B, Lq, Lk, H, Hkv, D, Dv = SHAPES[shape][0]
    return Sizes(B, H, Hkv, Lq, Lk, D, Dv)


def id_of(row: Row) -> str:
    """Returns the id of one row of the covering array."""
    shape = str(row["shape"])
    sizes, (_, widths, is_one_tensor) = sizes_of(shape), SHAPES[shape]
    parts = ["multi-head", str(row["mask"]), sizes.heads, str(row["dtype"]), sizes.token, widths]
    parts += [f"bias.{row['bias']}"] if row["bias"] != "none" else []
    parts += ["nobias"] if cast(bool, row["without_biases"]) else []
    parts += ["self"] if is_one_tensor else []
    parts += [str(row["returned"])] if row["returned"] != "none" else []
    return "/".join(parts + (["dense"] if row["form"] == "dense" else []))


def valid(row: Row) -> bool:
    """Returns True for rows whose form fits the mask, without the heads of models in float64."""
    is_wide = row.get("shape") in ("model", "largest") and row.get("dtype") == "f64"
    return mask_fits_form(row) and not is_wide


SMOKE = (
    # equal widths, so that swapped projections fit
    "multi-head/pad/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single/average",
    # a mask of every head beside padding, with as many samples as heads, and not
    "multi-head/pad+bool.bhqk/mha/{dt}/b4h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad+bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/average",
    "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.bhqk/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self/dense",
    "multi-head/padempty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/gqa3/{dt}/b2h6q5k5d4/e12.12.12.12/self",
    "multi-head/none/mha/{dt}/b1h4q3k3d16/e1000.1000.1000.64/self/single",
    "multi-head/causal/mha/f32/b2h2q1k9d6/e12.12.12.12/average",
    "multi-head/pad/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self-attention/self",
    "multi-head/causal/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self-attention/self/head",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/nobias/gated/self",
    # a bias that a layer may take for a mask
    "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/bias.bits/self",
    # 1e-6 is what Flax adds to a variance
    "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/qknorm/eps1e-06/self",
    "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/qknorm/self",
    "multi-head/pad/gqa3/f32/b2h6q5k9d4/e12.10.10.12/average",
)

STANDARD = (
    # lengths that tiles divide
    "multi-head/bool.b1qk/mha/{dt}/b1h2q32k64d8/e16.16.16.16/dense",
    "multi-head/causal+pad/mha/{dt}/b1h2q64k64d8/e16.16.16.16",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/none/mha/{dt}/b2h1q5k9d12/e12.12.12.12",
    # long rows, in the dtypes that most models have
    "multi-head/pad/mha/f32/b1h2q3k1025d4/e8.8.8.8",
    "multi-head/pad/mha/bf16/b1h2q3k1025d4/e8.8.8.8",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
    "multi-head/padempty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
    "multi-head/bool.qk.empty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/dense",
    "multi-head/bool.qk/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single/head/dense",
    "multi-head/none/mha/f64/b2h4q7k7d3/e12.12.12.12/qknorm/eps1e-06/self",
    "multi-head/pad/mha/{dt}/b2h3q5k9d4/e12.12.12.12/qknorm/eps1e-06",
    "multi-head/bool.b1qk/mha/{dt}/b2h2q5k9d6/e12.10.14.12/nobias/qknorm/head/dense",
    "multi-head/causal/gqa3/f32/b2h6q5k5d4/e12.12.12.12/qknorm/eps1e-06/self",
    "multi-head/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self-attention/self",
    "multi-head/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self-attention/self/head",
    "multi-head/pad/mha/{dt}/b3h1q7k7d8/e10.10.10.8/self-attention/self",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self",
    "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self",
    "multi-head/bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self/dense",
    # heads that people run
    "multi-head/causal/gqa4/{dt}/b2h8q16k16d64/e512.512.512.512/qknorm/self",
    "multi-head/causal/mha/{dt}/b2h8q16k16d16/e128.128.128.128/gated/self",
)

GRADIENT_AXES: dict[str, tuple[object, ...]] = {
    **AXES,
    "mask": ("none", "causal", "pad", "bool.qk", "bool.bhqk"),
    "shape": ("cross", "own", "grouped", "widths", "equal", "general", "model", "largest"),
    "returned": ("none",),
    "bias": ("none", "bhqk"),
}
"""Mostly three inputs of their own, so that each has a gradient of its own; one tensor as all three takes
other paths in some libraries."""

GRADIENTS = (
    Ask(
        "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12",
        "multi-head/none/mha/bf16/b2h3q5k9d4/e12.12.12.12",
        "multi-head/pad/mha/bf16/b2h3q5k9d4/e12.12.12.12",
        why="three inputs, each with a gradient of its own",
    ),
    Ask("multi-head/bool.qk.empty/mha/f32/b2h3q5k9d4/e12.12.12.12/dense", why="rows without keys"),
    Ask(
        "multi-head/causal/mha/f32/b2h1q7k7d5v6/e12.12.12.6/self-attention/self",
        "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/gated/self",
        why="layers of one head, and with a gate",
    ),
    Ask(
        Covering(GRADIENT_AXES, valid, ("mask", "shape", "dtype"), id_of),
        dtypes="array",
        since="standard",
    ),
    Ask(
        "multi-head/pad/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self-attention/self",
        "multi-head/none/mha/f32/b2h1q7k7d5v6/e12.12.12.6/nobias/self-attention/self",
        "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self",
        dtypes="every",
        since="standard",
        why="layers of one head, and with a gate",
    ),
    Ask(
        "multi-head/bool.qk.empty/mha/bf16/b2h3q5k9d4/e12.12.12.12/dense",
        since="standard",
        why="rows without keys",
    ),
    Ask(
        "multi-head/pad/mha/{dt}/b2h3q5k9d4/e12.12.12.12/qknorm/eps1e-06",
        "multi-head/causal/gqa3/f32/b2h6q5k5d4/e12.12.12.12/qknorm/eps1e-06/self",
        dtypes="last digits",
        since="standard",
        why="norms of queries and keys, with the epsilon of Flax",
    ),
)

COMPILED = (
    Ask(
        "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
        "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
        why=FEW_COMPILED,
    ),
    Ask(
        "multi-head/bool.bhqk/mha/f32/b2h2q5k9d6/e12.10.14.12/head/dense",
        "multi-head/causal/gqa3/bf16/b2h6q5k5d4/e12.12.12.12/self",
        since="standard",
        why=FEW_COMPILED,
    ),
)


def axes(case: Case) -> Axes:
    kind = case.option("kind")
    kernels = {"query_kernel": "xhd", "key_kernel": "ygd", "value_kernel": "zgv"}
    biases = {"query_bias": "hd", "key_bias": "gd", "value_bias": "gv"}
    if kind != "self-attention":
        kernels["output_kernel"], biases["output_bias"] = "hvo", "o"
    if kind == "gated":
        kernels["gate_kernel"], biases["gate_bias"] = "xhv", "hv"
    gains = {"query_gain": "d", "key_gain": "d"}
    parameters = kernels | ({} if case.option("without_biases") else biases)
    return layers.SEQUENCES | parameters | (gains if case.option("qk_norm") else {})


def ties(options: Mapping[str, Any]) -> tuple[str, ...]:
    return (*layers.ties()(options), *(ONE_HEAD if options["kind"] == "self-attention" else ()))


def outputs(case: Case) -> Axes:
    if case.option("kind") == "self-attention":
        return layers.outputs(case, "v")
    return layers.outputs(case, "o", heads="h")


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    kind = case.option("kind")
    common = layers.needs(case, arrays, sizes, widths) | {
        "one-head": kind == "self-attention",
        "gate": kind == "gated",
        "qk-norm": "query_gain" in arrays,
    }
    if kind == "self-attention":  # the size of the head is the width of the output
        return common
    return common | {
        "value-size": sizes.D != sizes.Dv,
        "output-width": widths.output != widths.query,
        "head-width": sizes.H * sizes.D != widths.query,
        "no-projection-bias": "query_bias" not in arrays,
        "odd-heads": bool(sizes.H % 2),
    }


def validate(case: Case) -> None:
    if case.option("epsilon") != NORM_EPSILON.default and not case.option("qk_norm"):
        raise ValueError(f"{case.operator} has an epsilon only with qknorm: {case.id}")


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes of four projections and the attention between them, in a direction."""
    s, w, pairs = inputs.sizes, inputs.widths, int(inputs.attends.sum())
    products = s.Lq * w.query * s.H * s.D + s.Lk * w.key * s.Hkv * s.D
    products += s.Lk * w.value * s.Hkv * s.Dv + s.Lq * s.H * s.Dv * w.output
    return layers.work_of(inputs, 2.0 * s.B * products + 2.0 * pairs * (s.D + s.Dv), direction)


COVERING = Covering(AXES, valid, ("mask", "shape", "dtype", "returned"), id_of)

MULTI_HEAD = Operator(
    name="multi-head",
    text="multi-head attention with projections",
    axes=axes,
    draw=layers.draw,
    outputs=outputs,
    needs=needs,
    ties=ties,
    validate=validate,
    words=WORDS,
    asks=Asks(
        plain="multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
        plain_kinds=(
            "multi-head/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self-attention/self",
            "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/gated/self",
        ),
        cases=(
            Ask(*SMOKE, why="masks of each shape, layers of one head, gates, norms of queries and keys"),
            Ask(*STANDARD, since="standard", why="lengths that tiles divide, long rows, usual heads"),
            Ask(COVERING, dtypes="array"),
        ),
        gradients=GRADIENTS,
        compiled=COMPILED,
        compiled_gradients=(
            Ask(
                "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12", since="standard",
                why=FEW_COMPILED,
            ),
        ),
        also_common=(*(sizes_of(shape).token for shape in SHAPES), "b2h1q7k7d5v6"),
    ),
    options=layers.options(
        "without_biases", "nobias", flag("qk_norm", "qknorm", rare=True), NORM_EPSILON, KIND
    ),
    questions=Questions(
        elections=(
            "fully-masked-row", "padded-sample", "minus-inf-row", "lowest-row",
            "fully-masked-row-gradient", "causal-alignment", "causal-with-mask", "causal-alone",
            "mask-polarity", "returned-weights", "nan-in-masked-key", "nan-in-masked-value",
            *MODES,
        ),
        probe="multi-head/{mask}/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
        well_formed="multi-head/none/mha/f32/b2h4q5k9d3/e12.12.12.12",
        gradient_probe="multi-head/bool.qk.empty/mha/{dt}/b2h3q5k9d4/e12.12.12.12/dense",
    ),
    is_layer=True,
    work=work,
)  # fmt: skip
