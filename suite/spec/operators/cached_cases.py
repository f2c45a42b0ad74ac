"""The cases of attention with a cache, by level.

A story is a script of three parts: a prompt, a turn (such as a rollback), and chunks after it. A covering
array combines the parts with each other, and with windows, padding, features, heads and earlier tokens.
"""

from __future__ import annotations

from attention_conformance.suite.spec.covering import Row
from attention_conformance.suite.spec.operators.drawn import (
    covering_of,
    has_wide_heads,
    is_wide_in_float64,
)
from attention_conformance.suite.spec.operators.steps import arrivals, script_of

PLAIN = "cached/none/gqa2/{dt}/b2h4q9k9d8/c5.1.3"
"""A prompt, a step of decoding, and a chunk after it."""

SAMPLES = 3
STORY = ("prompt", "turn", "after", "before", "heads")

AXES = {
    "heads": (
        "mha/h2/d8", "gqa2/h4/d8", "mqa/h4/d8v6", "gqa4/h8/d64", "gqa8/h32/d80", "gqa2/h4/d128",
        "mha/h2/d96", "gqa2/h2/d256",
    ),
    "prompt": ("5", "3.2", "1.1.1.1.1", "5of0.5of12", "2+3", "0+2.2+1"),
    "turn": (
        "", "back2", "back0", "back2of1.2of1.2of02", "reset.3", "resetof1.resetof1.3of1.3of02",
        "pick201", "pick200", "pick200.back2of1.2of1.1of1.3of02", "pick200.1.pick011", "tree1121.keep3",
        "tree112.keep2x0", "tree112of02.keep2x.3of1", "tree112.pick200.keep121", "tree1121.back4",
        "tree122.keep010", "back1of1.3of1.pick102.3of02", "tree112of1.resetof1.3of02",
    ),
    "after": ("1.3", "4", "1.1.1.1"),
    "before": ("0", "72", "300"),
    "window": (
        "", "win3", "win0", "win20", "win3/room8", "win0/room5", "win20/room26", "win3/room7",
        "room400",
    ),
    "padding": ("", "pad2.0.1", "pad70.0.1"),
    "feature": (
        "", "slopes", "sinks", "cap2.0", "scale0.3", "scale0.0", "bias.1hqk", "bias.bhqk", "rot.halves",
        "rot.interleaved/base500000.0", "cap2.0/sinks/slopes/scale0.3",
    ),
    "used": ("", "used"),
    "recipe": ("", "offset", "large", "tiny"),
}  # fmt: skip


def sizes_of(row: Row) -> str:
    """Returns heads, sizes and script of a story, as tokens of an id."""
    words = (str(row[part]) for part in ("prompt", "turn", "after"))
    script = ".".join(word for word in words if word)
    queries = max(arrivals(script_of(script), SAMPLES))
    kind, heads, width = str(row["heads"]).split("/")
    keys = queries + int(str(row["before"]))
    return f"{kind}/b{SAMPLES}{heads}q{queries}k{keys}{width}/c{script}"


def is_too_large(row: Row) -> bool:
    """Returns True for wide heads in float64, and for the heads of models in a cache of 70 tokens and
    more. `LONG` has these."""
    has_many_tokens = row.get("before") in ("72", "300") or row.get("padding") == "pad70.0.1"
    return (has_wide_heads(row) and has_many_tokens) or is_wide_in_float64(row)


DRAWN = covering_of(
    "cached", AXES, sizes_of, STORY, is_too_large, triples=[("before", "window", "padding")]
)

SMALL = "cached/none/gqa2/f32/b2h4q9k9d8"
GROWN = "cached/none/mha/f32/b3h2q8k20d8"
DESIGNED = {
    "without any option": (PLAIN,),
    "pages and histories that are given back twice, and a cache that is filled again after a reset": (
        f"{SMALL}/c5.back0.1.3",
        f"{SMALL}/c4.1.3.reset.1",
        f"{SMALL}/c4of0.resetof0.resetof0.2of0.9of1.3of0",
        "cached/none/mha/f32/b3h2q17k32d8/c1.pick001.reset.8.8/room16",
    ),
    "padded prompts: in a window, behind a fork and a reset": (
        f"{GROWN}/c1.3.1.3/pad5.0.12",
        "cached/none/gqa2/f32/b3h4q9k9d8/c1.1.1.1.1.1.3/pad2.0.1",
        f"{GROWN}/c3.pick200.1.4/pad5.0.12",
        f"{GROWN}/c3.2.resetof1.3of1.3of02/pad5.0.12/rot.halves",
        f"{SMALL}/c5.1.3/win3/room4/pad3.1",
        f"{SMALL}/c3.1.reset.3.2/pad0.2.2.1",
    ),
    "depths of a tree, paths of branches, documents that a rollback leaves": (
        f"{SMALL}/c1.tree11213.keep4.3/slopes",
        f"{GROWN}/c1.tree112.pick200.keep121.4",
        f"{GROWN}/c4.tree112of02.keep2x.3of1.1",
        f"{SMALL}/c4.tree1121.keep3.1/rot.halves",
        f"{GROWN}/c1+2.1.2+1.back2.1/win3/slopes",
    ),
    "positions of samples alone, and past 256, of which bfloat16 holds every second one": (
        f"{GROWN}/c2.back2of0.3of1.resetof2.3of20.3/rot.halves",
        f"{SMALL}/c5.1.3/rot.halves/base500000.0",
        f"{SMALL}/c5.back2.1.3/rot.halves",
        "cached/none/mha/f32/b1h2q5k300d8/c1.1.3/win20/rot.halves",
        "cached/none/mha/f32/b1h2q5k300d8/c1.1.3/slopes",
        "cached/none/mha/f32/b1h2q8k260d8/c4.back2.1.1.1.1",
    ),
    "decoding with a softcap alone": (f"{SMALL}/c5.1.1.1.1/cap2.0",),
    "sums that a dtype loses": ("cached/none/mha/f16/b1h2q5k300d8/c1.1.3/tiny",),
}
"""What smoke's few stories lack, by the reason."""


ALONE = tuple(
    f"cached/none/gqa2/{{dt}}/b2h4q9k9d{size}/c5.1.3/{feature}"
    for size in (64, 128)
    for feature in ("sinks", "slopes", "cap2.0", "win3", "rot.halves", "bias.1hqk/cap2.0")
)
"""Patterns of ids, each with one feature (the last: bias and softcap), at the head sizes 64 and 128 of
models. Drawn cases combine several features: a cache that lacks one of these supports none of them."""

LONG = (
    "cached/none/gqa2/{dt}/b2h4q5k300d64/c1.4/win63/room64",
    "cached/none/gqa2/{dt}/b2h4q75k80d64/c1.70.4",
    "cached/none/mha/{dt}/b1h2q36k40d8/c3.tree111111111111111111111111111111111",
    "cached/none/gqa4/{dt}/b2h8q9k309d128/c5.1.3/rot.halves/base500000.0",
)
"""A ring of 64 slots that is full and turns, a chunk of more than 64 tokens, a tree of more than 32, and
far positions beside wide heads."""
