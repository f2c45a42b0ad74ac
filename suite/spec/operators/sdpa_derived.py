"""Cases of plain attention for derivatives and for compilers.

These are fewer and smaller than the other cases: a backward pass costs three forward passes, and
compiling costs from 0.1 s (XLA) to 3 s per case (inductor; 6 s with derivatives). Left out is what does
not depend on a compiler: most sizes, recipes, head counts and axis orders. Kept are:

- masks in both forms, biases, scales, softcap, every dtype (float64 in single cases);
- grouped heads, values of another size, one query, a tail, all sizes equal, an empty batch.
"""

from __future__ import annotations

from attention_conformance.suite.spec.covering import Covering, Row, pairs_of
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.levels import FEW_COMPILED, Ask
from attention_conformance.suite.spec.operators.sdpa_cases import MASKS, id_of, valid
from attention_conformance.suite.spec.operators.sdpa_paths import BACKWARD

GRADIENT_AXES: dict[str, tuple[object, ...]] = {
    "mask": MASKS,
    # B, Lq, Lk, D, Dv
    "shape": ((2, 11, 9, 6, 6), (2, 5, 13, 8, 10)),
    "heads": ((4, 2), (3, 3)),
    "dtype": tuple(DTYPES),
    "bias": ("none", "qk", "1hqk", "bhqk", "inf"),
    "scale": (None, 0.3, -0.2),
    "softcap": (None, 2.0),
    "recipe": ("normal", "large", "ties", "onehot", "integers", "offset"),
    "axis_order": ("bhld", "blhd"),
    "form": ("native", "dense"),
}

SMOKE_GRADIENTS = (
    # sizes that every kernel supports; all sizes equal, with a key that is no transposed query
    "sdpa/none/mha/{dt}/b2h3q5k13d8v10",
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    "sdpa/causal/mha/{dt}/b4h4q4k4d4",
    # lengths that vectors and tiles divide
    "sdpa/win7.0/mha/{dt}/b2h3q16k24d8",
    "sdpa/causalbr/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/padempty/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q5k13d8v10/bias.bhqk/dense",
    "sdpa/none/gqa2/{dt}/b2h4q11k9d6/large",
)

# Tails around block sizes, one query, many heads of one key, zero sizes: at standard in float32 alone,
# whose bounds are the narrowest.
DESIGNED_GRADIENTS = (
    "sdpa/causal/mha/{dt}/b1h2q65k65d8",
    "sdpa/none/mqa/{dt}/b1h5q129k127d16",
    # as many keys as queries over several tiles, without a causal flag
    "sdpa/none/mha/{dt}/b1h2q33k33d8/bias.bhqk",
    "sdpa/none/mqa/{dt}/b2h5q1k65d16",
    # a bias that the queries share, of one tile and of several
    "sdpa/none/mha/{dt}/b2h3q5k13d8v10/bias.alibikeys",
    "sdpa/none/mha/{dt}/b1h2q129k33d8/bias.alibikeys",
    "sdpa/none/mha/{dt}/b2h3q5k7d8/scale0.0",
    # subnormal weights, after exp and after the division
    "sdpa/none/mqa/{dt}/b1h8q11k30d96/bias.bhqk/scale2.5/bhdl",
    "sdpa/none/mha/{dt}/b0h3q5k7d8",
    "sdpa/none/mha/{dt}/b0h3q5k7d8/bias.qk",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6/scale-0.2",
    "sdpa/none/gqa2/{dt}/b2h4q0k7d8",
)

FAR = (
    "sdpa/none/mha/{dt}/b4h5q9k129d8/scale1.0/staircase",
    "sdpa/causal/mha/{dt}/b1h2q17k33d8/bias.deep",
)
"""Rows that lie far from 0, and maxima that rise and fall between tiles."""

LOWEST = ("sdpa/none/gqa2/{dt}/b2h4q11k9d6/bias.lowest",)

TOGETHER = "sdpa/causal+padleft/mha/{dt}/b2h3q5k13d8v10"
"""Rows that flag and mask leave without keys only together."""

SIZES = (
    "sdpa/causal/mha/{dt}/b1h2q76k1d8",
    "sdpa/bool.b1qk/mha/{dt}/b3h2q2k17d8/dense",
)
"""Sizes that make kernels choose different paths."""


def derivable(row: Row) -> bool:
    """Returns True for `valid` rows whose derivatives are tested. The first shape (Dv = D) goes with the
    first head counts (grouped), which every kernel supports, the second shape with the second ones.
    float32 has both shapes, float16 the second, other dtypes the first. At full every dtype has both."""
    is_first = {row[name] == GRADIENT_AXES[name][0] for name in ("shape", "heads") if name in row}
    dtype = row.get("dtype", "f32")
    if len(is_first) > 1 or (dtype != "f32" and not is_first <= {dtype != "f16"}):
        return False
    # In 16 bits scores of 256 are rounded to integers, so any weight and gradient is within bounds.
    return valid(row) and (row.get("recipe") != "offset" or dtype in ("f32", "f64"))


GRADIENT_COVERING = Covering(GRADIENT_AXES, derivable, ("mask", "shape", "heads", "dtype"), id_of)


GRADIENTS = (
    Ask(
        *SMOKE_GRADIENTS,
        why="sizes that all kernels support, equal sizes, lengths that tiles divide, rows without keys",
    ),
    Ask(GRADIENT_COVERING, dtypes="array"),
    Ask(
        *DESIGNED_GRADIENTS,
        dtypes="float32",
        since="standard",
        why="tails of blocks, one query, many heads of one key, biases that queries share",
    ),
    Ask(
        *SIZES,
        *LOWEST,
        TOGETHER,
        since="standard",
        why="sizes from which kernels choose their path; masks written as a bias, or in two parts",
    ),
    Ask(*FAR, dtypes="float32 first", why="rows far from 0, and maxima that rise and fall"),
    *BACKWARD,
    Ask("sdpa/pad/mha/{dt}/b2h3q31k33d7", since="full", why="lengths on both sides of a tile"),
    *(ask for feature in FEATURES.values() for ask in feature.gradients),
)
"""Cases whose derivatives are judged."""


COMPILED_AXES: dict[str, tuple[object, ...]] = {
    "mask": (
        "none", "causal", "pad", "padempty", "causal+pad", "bool.bhqk", "bool.qk.empty", "win4.0",
    ),
    # B, Lq, Lk, D, Dv
    "shape": ((2, 11, 9, 6, 6), (2, 5, 13, 8, 10)),
    "heads": ((4, 2), (3, 3)),
    "dtype": ("f32", "bf16", "f16"),
    "bias": ("none", "bhqk", "inf"),
    "scale": (None, 0.3),
    "softcap": (None, 2.0),
    "recipe": ("normal", "large", "offset"),
    "axis_order": ("bhld", "blhd"),
    "form": ("native", "dense"),
}  # fmt: skip

# If all sizes are equal, pattern rewriting can mistake a permuted key for a transposed one.
SMOKE_COMPILED = (
    "sdpa/none/mha/f32/b2h3q11k9d6/bias.qk",
    "sdpa/causal/gqa2/bf16/b2h4q11k9d6",
    "sdpa/causal/mha/f32/b4h4q4k4d4/blhd",
    "sdpa/none/mha/f32/b4h4q4k4d4",
    "sdpa/bool.qk.empty/mha/f32/b2h3q11k9d6/dense",
)

DESIGNED_COMPILED = (
    "sdpa/none/mqa/f32/b2h5q1k65d16",
    "sdpa/causal/mha/bf16/b1h2q65k65d8",
    "sdpa/pad/mha/f32/b2h3q33k127d64",
    "sdpa/none/mha/f32/b0h3q5k7d8",
    "sdpa/none/mha/bf16/b4h4q4k4d4/blhd",
    "sdpa/causal/gqa2/f64/b2h4q5k13d8v10",
    "sdpa/bool.b1qk/mha/f64/b2h3q11k9d6/bias.qk/scale0.3/dense",
    "sdpa/none/mha/f64/b4h4q4k4d4/cap2.0",
)

# Adapters pass these masks as arrays, like masks in `COMPILED_AXES`.
FULL_COMPILED = (
    "sdpa/causalbr/mha/f32/b2h3q5k13d8v10",
    "sdpa/seg3/gqa2/bf16/b2h4q11k9d6/bias.qk",
    "sdpa/bool.qk/mha/f16/b2h3q11k9d6/dense",
    "sdpa/bool.b1qk/gqa2/f32/b2h4q5k13d8v10/bias.bhqk/dense",
)

DIFFERENTIATED = (
    "sdpa/none/mha/f32/b4h4q4k4d4",
    "sdpa/pad/gqa2/f32/b2h4q11k9d6/bias.bhqk",
    "sdpa/causal/gqa2/bf16/b2h4q11k9d6",
    "sdpa/pad/mha/f16/b2h3q11k9d6",
    "sdpa/bool.bhqk/gqa2/f64/b2h4q5k13d8v10/bias.bhqk/dense",
    "sdpa/bool.b1qk/mha/f32/b2h3q11k9d6/dense",
    "sdpa/none/mha/bf16/b2h3q11k9d6/bias.qk/cap2.0",
    "sdpa/padempty/gqa2/f32/b2h4q11k9d6",
    "sdpa/none/mha/f32/b2h3q11k9d6/bias.inf",
)

COMPILED_COVERING = Covering(
    COMPILED_AXES,
    valid,
    ("mask", "shape", "heads", "dtype"),
    id_of,
    at_full=pairs_of(COMPILED_AXES),
)


COMPILED = (
    Ask(*SMOKE_COMPILED, why=FEW_COMPILED),
    Ask(*DESIGNED_COMPILED, since="standard", why=FEW_COMPILED),
    Ask(COMPILED_COVERING, dtypes="array x dtypes", since="standard"),
    Ask(*FULL_COMPILED, since="full", why=FEW_COMPILED),
)
"""Cases for values of compiled implementations."""

COMPILED_GRADIENTS = (
    Ask(*DIFFERENTIATED[:2], why=FEW_COMPILED),
    Ask(*DIFFERENTIATED[2:], since="standard", why=FEW_COMPILED),
)
"""Cases for derivatives of compiled implementations."""
