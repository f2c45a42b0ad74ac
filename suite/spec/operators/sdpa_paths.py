"""Cases of plain attention with the sizes that make kernels choose different paths.

A kernel has separate paths for sizes that its tiles and vectors divide, for other sizes, and for many
samples or heads. So each size belongs to a class: one, below a tile, a multiple of a tile, above a
tile.

- A covering array of strength 3 combines the classes of all sizes, kinds of mask, direction and axis
  order; dtypes are combined in pairs.
- Sizes that people run are combined with features, masks and axis orders in pairs: every feature meets
  each of them, and every bias does with and without a causal flag.

Each row uses the member of a class that its kind of mask has used least, if the problem stays small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import prod
from typing import cast

from attention_conformance.suite.spec.covering import Covering, Row, Tuple
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.sizes import Sizes

LENGTHS = {
    "one": (1,),
    "below": (7, 15, 31, 63),
    "multiple": (8, 16, 32, 64, 128),
    "above": (9, 17, 33, 65, 129),
}

SIZES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "Lq": LENGTHS,
    "Lk": {**LENGTHS, "above": (*LENGTHS["above"], 257)},
    "B": {"few": (1, 2), "multiple": (8, 16), "above 8": (9, 10), "above 16": (17, 33)},
    "heads": {
        "few": ((1, 1), (3, 1), (3, 3)),
        "multiple": ((8, 2), (8, 8), (16, 4), (16, 16)),
        "many": ((33, 1), (33, 11), (33, 33)),
    },
    "D": {"power of two": (8, 64, 128, 256), "other": (12, 80, 96, 192, 320)},
}
"""The members of each class of sizes, by axis, the smallest first; `heads` are pairs (H, Hkv)."""

MASKS: Mapping[str, tuple[object, ...]] = {
    "none": ("none",),
    "causal": ("causal", "causalbr"),
    "lengths": ("causal+pad", "pad"),
    "one for all": ("bool.qk", "bool.1hqk"),
    "one a sample": ("bool.b1qk", "bool.b11k", "padleft", "bool.bhqk"),
    "window": (
        "win0.0", "win1.0", "win0.x", "win6.0", "winx.0", "win7.0", "win8.0", "winx.1", "win3.4",
        "win15.0", "causal+win6.x",
    ),
    "beside a flag": ("causal+bool.b1qk", "causal+bool.qk", "causal+bool.bhqk"),
}  # fmt: skip
"""The masks of each kind. Windows have 1, 2, 7, 8, 9 or 16 keys, or an open end."""

BIASES = ("bias.qk", "bias.bhqk", "bias.1hqk", "bias.b1qk")
FEATURES = (
    *BIASES, "scale0.3", "cap2.0", "sinks", "lse", "slopes", "logitscale", "lse/slopes",
)  # fmt: skip

COMMON = {"direction": ("forward", "backward"), "dtype": tuple(DTYPES)}

SCORES, NUMBERS = 2**14, 2**15
"""Limits of a small problem: scores, B H Lq Lk, and numbers in queries, keys and values."""


def size_of(row: Mapping[str, object]) -> Sizes:
    """Returns the sizes of a row that has a member of each class (`with_members`)."""
    B, Lq, Lk, D = (int(str(row[name])) for name in ("B", "Lq", "Lk", "D"))
    H, Hkv = cast(tuple[int, int], row["heads"])
    return Sizes(B, H, Hkv, Lq, Lk, D, D)


def is_small(row: Mapping[str, object]) -> bool:
    """Returns True if the problem of a row is within `SCORES` and `NUMBERS`."""
    s = size_of(row)
    numbers = s.B * s.D * (s.H * s.Lq + 2 * s.Hkv * s.Lk)
    return prod((s.B, s.H, s.Lq, s.Lk)) <= SCORES and numbers <= NUMBERS


def with_members(
    rows: Iterable[Row], classes: Mapping[str, Mapping[str, tuple[object, ...]]], kind_axis: str
) -> list[Row]:
    """Returns the rows with a member of the class in place of each class name.

    Members that keep the problem small are preferred. Of these, the member is taken that rows with the
    same value of `kind_axis` have least; of several such members the largest.
    """
    use_counts: Counter[tuple[object, ...]] = Counter()
    new_rows: list[Row] = []
    names = list(classes)
    for row in rows:
        chosen = row | {name: classes[name][str(row[name])][0] for name in classes}
        names = [*names[1:], names[0]]  # by turns each axis takes the first choice
        for name in names:
            members = classes[name][str(row[name])]
            candidates = [m for m in members if is_small(chosen | {name: m})] or [chosen[name]]
            fewest = min(use_counts[name, m, row[kind_axis]] for m in candidates)
            least_used = [m for m in candidates if use_counts[name, m, row[kind_axis]] == fewest]
            chosen[name] = least_used[-1]
            use_counts[name, chosen[name], row[kind_axis]] += 1
        new_rows.append(chosen)
    return new_rows


def id_of(row: Row) -> str:
    """Returns the id of a row that has a member of each class (`with_members`)."""
    sizes = size_of(row)
    mask = str(row.get("mask", "none"))
    parts = ["sdpa", mask, sizes.heads, str(row["dtype"]), sizes.token]
    parts += ["blhd"] if row.get("axis_order") == "blhd" else []
    parts += ["dense"] if mask.startswith("bool") else []
    return "/".join(parts)


CLASSES = {**SIZES, "mask": MASKS}
JOINED = (*CLASSES, "axis_order", "direction")
"""The axes that are combined in threes."""

MASK_AXES = {
    **{name: tuple(c) for name, c in CLASSES.items()},
    "axis_order": ("bhld", "blhd"),
    **COMMON,
}
BY_MASK = Covering(
    MASK_AXES,
    lambda row: True,
    tuple(MASK_AXES),
    id_of,
    [
        *combinations(JOINED, 3),
        ("mask", "direction", "dtype"),
        *((name, "dtype") for name in JOINED),
    ],
)
DTYPES_RUN = ("f32", "f16", "bf16")
CHUNKS = (
    "gqa8/b1h16q16k64d128", "gqa3/b1h6q33k65d80", "mha/b1h2q64k64d128", "gqa2/b2h4q64k64d64",
    "gqa2/b1h4q32k64d256", "gqa2/b1h4q16k32d192v128",
)  # fmt: skip
DECODING = ("gqa7/b2h28q1k128d128", "gqa8/b1h32q1k300d96", "mha/b2h3q1k257d64")
RUN = (*CHUNKS, *DECODING)
"""Sizes that people run, in the dtypes that they run them in."""


def hides_all_but_one(row: Row) -> bool:
    """Returns True for one query with a causal mask, which leaves it one key: features that change
    weights would not show."""
    return row.get("mask") == "causal" and row.get("sizes") in DECODING


def at_sizes(
    sizes: Sequence[str],
    features: Sequence[str],
    masks: Sequence[str],
    triples: Sequence[tuple[str, ...]] = (),
) -> Covering:
    """Returns the covering array of sizes that people run with features, masks and memory orders. The
    parameters are those of `covering_of`."""
    axes = {
        "dtype": DTYPES_RUN, "sizes": sizes, "feature": features, "mask": masks, "order": ("", "blhd"),
    }  # fmt: skip
    return covering_of("sdpa", axes, is_excluded=hides_all_but_one, triples=triples)


FLAG = ("none", "causal")
FLAGGED = [("sizes", "feature", "mask")]
BIASED, BIASED_DERIVED = (at_sizes(sizes, BIASES, FLAG, FLAGGED) for sizes in (RUN, CHUNKS))
"""Each of the sizes meets each bias with and without a causal flag."""

FEATURED = at_sizes(RUN, ("", *(name for name in FEATURES if name not in BIASES)), FLAG)
MASKED = at_sizes(
    RUN,
    ("", *FEATURES),
    (
        "causalbr", "pad", "win6.0", "win15.8", "win31.0", "bool.b1qk/dense", "bool.qk/dense",
        "causal+pad", "win31.0+bool.b1qk",
    ),
)  # fmt: skip
DERIVED = at_sizes(
    CHUNKS,
    ("", *FEATURES),
    (*FLAG, "pad", "win6.0", "win31.0", "bool.b1qk/dense", "win31.0+bool.b1qk"),
)


class ByClass(Covering):
    """The rows of the covering array `BY_MASK` that have one direction: "forward" for values, "backward"
    for gradients. In ids each class of sizes is replaced by one of its members."""

    def __init__(self, direction: str) -> None:
        super().__init__(
            MASK_AXES, BY_MASK.valid, (), self._id_with_members, BY_MASK.targets, BY_MASK.targets
        )
        self.direction = direction

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in BY_MASK.rows if row["direction"] == self.direction)

    @cached_property
    def _ids(self) -> dict[Tuple, str]:
        """The id of each row of `BY_MASK`."""
        rows_with_members = with_members(BY_MASK.rows, CLASSES, "mask")
        return {
            tuple(row.items()): id_of(row_with_members)
            for row, row_with_members in zip(BY_MASK.rows, rows_with_members, strict=True)
        }

    def _id_with_members(self, row: Row) -> str:
        return self._ids[tuple(row.items())]


WINDOWS = tuple(f"win{keys - 1}.0" for keys in (1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65))
NARROW = tuple(
    f"sdpa/{mask}/mqa/{{dt}}/b1h2q128k128d64" for mask in (*WINDOWS, "win0.x", "winx.0", "win1.1")
)
"""Windows near the sizes of tiles, or open at one end, at a length that tiles divide."""

SMOKE = {
    "forward": (
        "sdpa/win6.0/mha/{dt}/b1h2q16k32d8",
        "sdpa/win0.x/mha/{dt}/b1h2q16k32d8",
        "sdpa/none/mha/{dt}/b1h2q9k11d320",
    ),
    "backward": ("sdpa/causal+bool.qk/mha/{dt}/b1h2q33k17d8",),
}
"""Cases that the few rows of smoke lack: a narrow window, a window open at its end, the largest head, a
mask beside a flag over several tiles."""

WHY = "classes of sizes, joined in threes with masks, direction and memory order"

RUNS = {"forward": (FEATURED, BIASED, MASKED), "backward": (DERIVED, BIASED_DERIVED)}

SINGLE = ("", "bias.bhqk", "scale0.3", "cap2.0", "sinks", "lse", "slopes", "logitscale")
TWO_FEATURES = covering_of(
    "sdpa",
    {"dtype": ("f32",), "sizes": ("gqa2/b1h4q16k32d128",), "feature": SINGLE, "second": SINGLE},
)
"""Every two features, at a size that people run."""

MODELS = (
    "sdpa/causal/mha/{dt}/b2h4q64k64d128/bias.alibi",  # BLOOM, MPT
    "sdpa/none/mha/{dt}/b2h4q64k64d64/bias.1hqk/scale1.0",  # T5
    "sdpa/bool.b1qk/mha/{dt}/b2h3q49k49d32/bias.1hqk/dense",  # Swin
)
"""Features and sizes as models have them."""

FORWARD, BACKWARD = (
    (
        Ask(*RUNS[direction], dtypes="array", since="standard", why="sizes that people run"),
        Ask(
            *SMOKE[direction], why="narrow and open windows, the largest head, a mask beside a flag"
        ),
        Ask(ByClass(direction), dtypes="array", why=WHY),
        Ask(*NARROW, dtypes="growing", since="standard", why="windows around the sizes of tiles"),
        Ask(*MODELS, dtypes="growing", since="standard", why="attention of models"),
        Ask(TWO_FEATURES, dtypes="array", since="standard", why="two features at once"),
    )
    for direction in ("forward", "backward")
)
"""Cases for values, and cases for derivatives."""
