"""Attention with a cache: a script of chunks and operations, whose steps share keys and values.

    query (B, H, Lq, D)                              queries of all chunks, in the order of the script
    key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv)      tokens in the order in which they arrive
    output (B, H, Lq, Dv)                            rows of all chunks

A chunk appends its tokens to the cache and attends, causally: a row attends the keys up to its own token,
with a window `left` keys before it. The first Lk - Lq tokens are in the cache before the first chunk.

Between chunks stand operations:

- `back2`: the last two tokens of every sample leave the cache.
- `reset`: all tokens leave the cache.
- `pick100`: sample 0 goes on with the history of sample 1, samples 1 and 2 with that of sample 0.

Capacity is the number of slots of the cache (`room8`). With fewer slots than tokens the cache is a ring:
tokens that have left the window are overwritten. `pad3.0` hides the first 3 tokens of sample 0 (left
padding). With `beside` a second cache takes other tokens, step by step in turn with the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from suite.spec.case import Case
from suite.spec.features.sinks import SINKS
from suite.spec.features.slopes import SLOPES
from suite.spec.features.softcap import SOFTCAP
from suite.spec.inputs import Inputs
from suite.spec.levels import Ask
from suite.spec.operator import (
    LEFT,
    SCALE,
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Packing,
    Work,
    flag,
)
from suite.spec.operators.scripts import (
    ACTION,
    Chunk,
    Crop,
    Pick,
    Reset,
    actions,
    capacity,
    held,
    is_ring,
    views,
)
from suite.spec.recipes import DRAWS
from suite.spec.sizes import Sizes
from suite.spec.vocabulary import OPERANDS

FEATURES = frozenset(
    {
        "window", "softcap", "sinks", "alibi-slopes", "scale", "grouped-heads", "value-size",
        "left-padding", "ring", "window-rollback", "reset", "rollback", "reorder", "inner-stride",
        "other-shapes",
    }
)  # fmt: skip
"""Features of attention with a cache."""

CARRIED = (SOFTCAP, SINKS, SLOPES)
"""The features of attention that a step may have."""

PLAIN = "cached/none/gqa2/{dt}/b2h4q9k9d8/c5.1.3"
"""A prompt, a step of decoding, and a chunk after it."""


def axes(case: Case) -> Axes:
    more = {f.name: f.axes for f in CARRIED if f.axes and f.asked_by(case)}
    return {"query": "bhqd", "key": "bgkd", "value": "bgkv", **more}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays = dict(zip(OPERANDS, DRAWS[case.recipe](rng, case.sizes, case.dtype), strict=True))
    for feature in CARRIED:
        if feature.draw is not None and feature.asked_by(case):
            arrays[feature.name] = feature.draw(case.sizes, rng)
    return arrays


def work(inputs: Inputs, direction: str) -> Work:
    """2 P (D + Dv) operations for P pairs. A chunk reads the tokens that it attends, and its own."""
    s, pairs, tokens = inputs.sizes, 0, 0
    for view in views(inputs.case):
        pairs += s.H * int(view.mask.sum())
        tokens += s.Hkv * int(view.mask.any(1).sum())
    rows = s.B * s.H * s.Lq
    numbers = rows * (s.D + s.Dv) + tokens * (s.D + s.Dv)
    return Work(pairs, 2.0 * pairs * (s.D + s.Dv), numbers * inputs.dtype.itemsize)


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """The inputs with some of their samples, in this order. Raises ValueError if a sample goes on with
    the history of one that is left out."""
    case, order = inputs.case, [int(n) for n in order]
    script, padding = [], case.option("padding")
    for word in case.option("script"):
        if word.startswith("pick"):
            origins = [int(word[4 + n]) for n in order]
            word = f"pick{''.join(str(order.index(n)) for n in origins)}"
        script.append(word)
    options = {**dict(case.options), "script": tuple(script)}
    if padding is not None:
        chosen = tuple(padding[n] for n in order)
        options = {**options, "padding": chosen if any(chosen) else None}
    sizes = replace(case.sizes, B=len(order))
    arrays = {n: x[order] if inputs.axes(n)[0] == "b" else x for n, x in inputs.arrays.items()}
    kept = tuple((name, value) for name, value in options.items() if value is not None)
    other = replace(case, sizes=sizes, options=kept)
    return replace(inputs, case=other, arrays=arrays, sizes=sizes)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    script, left = case.option("script"), case.option("left")
    rolls_back = any(word.startswith("back") for word in script)
    return {
        "scale": case.option("scale") is not None,
        "window": left is not None,
        **{f.word: f.asked_by(case) for f in CARRIED},
        "left-padding": case.option("padding") is not None,
        "ring": is_ring(case),
        "window-rollback": rolls_back and left is not None and held(case) > left + 1,
        "reset": "reset" in script,
        "rollback": rolls_back,
        "reorder": any(word.startswith("pick") for word in script),
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate(case: Case) -> None:
    script, s, padding = case.option("script"), case.sizes, case.option("padding")
    if not script or not script[-1].isdigit():
        raise ValueError(f"{case.operator} needs a script that ends with a chunk: {case.id}")
    chunks = [int(word) for word in script if word.isdigit()]
    if min(chunks) < 1 or sum(chunks) != s.Lq or s.Lk < s.Lq or not s.B:
        raise ValueError(
            f"{case.operator} has b >= 1 samples and chunks of one token or more, which add up to the "
            f"number of queries; keys are as many or more: {case.id}"
        )
    if padding is not None and (
        len(padding) != s.B or not any(padding) or max(padding) > s.Lk - s.Lq or "reset" in script
    ):
        raise ValueError(
            "left padding is a number for each sample, not all 0, of tokens that are in the cache before "
            f"the script begins; a script with padding has no reset: {case.id}"
        )
    count = 0
    for action in actions(case):
        match action:
            case Chunk(tokens=tokens):
                count += tokens.stop - tokens.start
            case Crop(count=less):
                count -= less
                if less < 1 or count < max(padding or (0,)):
                    raise ValueError(f"there are not {less} tokens to take back: {case.id}")
                needed = (case.option("left") or 0) + less
                if is_ring(case) and capacity(case) < needed:
                    raise ValueError(
                        f"a ring that goes back {less} tokens has at least {needed} slots: {case.id}"
                    )
            case Reset():
                count = 0
            case Pick(samples=samples):
                if len(samples) != s.B or max(samples) >= s.B:
                    raise ValueError(f"pick has a sample below {s.B} for each: {case.id}")
    left = case.option("left")
    if is_ring(case) and (left is None or capacity(case) < left + 1):
        raise ValueError(f"a ring has a window, and a slot for each of its keys: {case.id}")
    if case.option("softcap") is not None:
        SOFTCAP.validate(case)


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """A random script.

    A number is a chunk, and 0 a reset. After a chunk of 6 to 8 tokens 2 go back; after one of 9 samples
    are exchanged. With an odd count the first number tells how many tokens the cache has before.
    """
    before, script = numbers[0] if len(numbers) % 2 else 0, list[str]()
    for n in numbers[len(numbers) % 2 :]:
        script.append(str(n) if n else "reset")
        if n == 9 and 0 < sizes.B < 10:
            script.append(f"pick{''.join(map(str, reversed(range(sizes.B))))}")
        elif n >= 6:
            script.append("back2")
    while script and not script[-1].isdigit():
        script.pop()
    script = script or ["1"]
    queries = sum(int(word) for word in script if word.isdigit())
    own = replace(sizes, B=max(sizes.B, 1), Lq=queries, Lk=before + queries)
    return own, {"script": tuple(script)}


def dotted(text: str) -> tuple[int, ...]:
    """Numbers from "3.0.2"."""
    return tuple(int(n) for n in text.split("."))


SMALL = "cached/none/gqa2/{dt}/b2h4q9k9d8"
GROWN = "cached/none/mha/{dt}/b3h2q8k20d8"
"""Sizes that many scripts share, because JAX compiles for every new shape."""

SMOKE = (
    PLAIN,
    f"{GROWN}/c1.1.1.1.4",
    f"{SMALL}/c9",
    f"{SMALL}/c3.6/win2/room4",
    f"{GROWN}/c1.5.1.1/win3/room8",
    f"{GROWN}/c1.3.1.3/pad5.0.12",
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12",
    f"{SMALL}/c5.back2.1.3",
    f"{SMALL}/c4.1.3.reset.1",
    f"{GROWN}/c3.pick200.1.4",
    f"{GROWN}/c3.pick200.1.4/pad5.0.12",
    f"{SMALL}/c5.1.3/win3/cap2.0/sinks/slopes/scale0.3",
    f"{SMALL}/c5.1.3/room9/beside",
)
STANDARD = (
    # chunks of as many tokens as the window has keys, of one more, of the capacity, of more than it
    f"{SMALL}/c1.4.4/win3/room4",
    f"{SMALL}/c5.1.3/win3/room4",
    f"{SMALL}/c1.1.5.1.1/win3/room4",
    f"{SMALL}/c2.7/win0/room1",
    f"{GROWN}/c1.1.1.1.1.1.1.1/win0/room2",
    f"{SMALL}/c1.1.7/win1/room2",
    f"{SMALL}/c5.1.3/win8/room9",
    f"{SMALL}/c5.1.3/win20",
    f"{GROWN}/c1.1.1.1.1.1.1.1/win3/room5",
    f"{GROWN}/c8/win3/room5",
    f"{GROWN}/c8",
    # operations
    f"{SMALL}/c5.back5.1.3",
    f"{SMALL}/c4.back2.1.3.reset.1",
    f"{SMALL}/c5.1.back3.3/win2",
    f"{GROWN}/c1.5.back2.1.1/win3/room8",
    f"{GROWN}/c1.1.back2.5.1/win3/room6",
    f"{SMALL}/c5.reset.1.3",
    f"{GROWN}/c1.5.reset.1.1/win3/room8",
    f"{GROWN}/c3.pick201.1.pick000.4",
    f"{GROWN}/c1.5.pick200.1.1/win3/room8",
    f"{GROWN}/c1.5.pick110.1.1/pad5.0.12",
    f"{GROWN}/c1.back2.1.pick120.6/beside",
    # features together
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12/slopes",
    f"{GROWN}/c1.5.1.1/pad5.0.12/cap2.0/sinks",
    f"{GROWN}/c1.5.1.1/win3/room8/cap2.0/sinks/slopes/scale0.3",
    f"{GROWN}/c1.5.1.1/win12/pad5.0.11",
    "cached/none/mqa/{dt}/b2h4q9k9d8v6/c5.1.3",
    "cached/none/mqa/{dt}/b2h4q9k9d8v6/c5.1.3/win3/room4/slopes",
    f"{SMALL}/c5.1.3/scale0.0",
    f"{SMALL}/c5.1.3/large",
    f"{SMALL}/c5.1.3/tiny",
    # past borders of tiles
    "cached/none/gqa4/{dt}/b2h8q3k130d64/c1.2",
    "cached/none/gqa4/{dt}/b2h8q67k131d64/c1.64.2/win32/room96",
)

CACHED = Operator(
    name="cached",
    text="attention in steps that share a cache",
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bhqv"},
    needs=needs,
    validate=validate,
    asks=Asks(
        plain=PLAIN,
        cases=(Ask(*SMOKE), Ask(*STANDARD, since="standard")),
        common_sizes=("b2h4q9k9d8",),
    ),
    options=(
        Option("script", rf"c({ACTION}(?:\.{ACTION})*)", lambda text: tuple(text.split(".")),
               lambda script: f"c{'.'.join(script)}"),
        LEFT,
        Option(
            "capacity", r"room(\d+)", int, lambda slots: f"room{slots}", None, (5, 9, 16), rare=True
        ),
        Option("padding", r"pad(\d+(?:\.\d+)*)", dotted, lambda n: f"pad{'.'.join(map(str, n))}"),
        flag("beside", "beside"),
        *(feature.option for feature in CARRIED if feature.option),
        SCALE,
    ),
    recipes=("normal", "large", "tiny", "ties", "onehot", "integers"),
    array_kinds=ArrayKinds(statistics=("alibi_slopes",), wide=("alibi_slopes",)),
    packing=Packing(completed=completed, choose=choose),
    work=work,
)  # fmt: skip
