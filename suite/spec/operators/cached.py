"""Attention with a cache: a script of chunks and operations, whose steps share keys and values.

    query (B, H, Lq, D)                              queries of all chunks, in the order of the script
    key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv)      tokens in the order in which they arrive
    output (B, H, Lq, Dv)                            rows of all chunks

A chunk appends its tokens to the cache and attends, causally: a row attends the keys up to its own token,
with a window `left` keys before it. The first Lk - Lq tokens are in the cache before the first chunk.

Between chunks stand operations:

- `back2`: the last two tokens of every sample leave the cache; `back0` leaves all of them there.
- `reset`: all tokens leave the cache.
- `pick100`: sample 0 goes on with the history of sample 1, samples 1 and 2 with that of sample 0.

A chunk, a tree, a rollback or a reset may be of some samples alone: `3of02` are three tokens of samples 0
and 2. All samples have Lq tokens in the end. Rows and tokens of a sample stand in its own order.

`3+4` is a chunk of seven tokens, of which the last four begin another document: they, and the tokens
of later chunks, attend no token before them. `0+4` begins with another document.

`tree112` is a chunk whose tokens are the nodes of a tree: parents lie 1, 1 and 2 nodes before their
nodes, and a parent before the first node is the last token in the cache. A node attends its ancestors,
itself, and the cache; its position is its depth behind the cache. Then `keep2` keeps node 2 and its
ancestors for all samples of the tree, and `keep2x0` keeps node 2 for sample 0, no node for sample 1, and
node 0 for sample 2. Between a tree of all samples and `keep` may stand `pick100`: branches of one history
keep paths of their own. Instead all nodes may leave, by `reset` or by a rollback, which counts nodes and
not depths: `back3`, or more.

Capacity is the number of slots of the cache (`room8`). With fewer slots than tokens the cache is a
ring: tokens that have left the window are overwritten. `pad3.0` hides the first 3 tokens of sample 0
(left padding), and `pad3.0.0.1` also the first token of sample 1 after its reset. Nobody reads the rows
of padding. `bias.1hqk` is added to the scores, a row for every query and a column for every position;
all samples share it. With `rot.halves` or `rot.interleaved` the call rotates queries and keys by their
positions, with frequencies of base 10000 or another one (`base500000.0`). With `used` the cache has
served another sequence, with other numbers for all options of its steps, and was reset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.sinks import SINKS
from attention_conformance.suite.spec.features.slopes import SLOPES
from attention_conformance.suite.spec.features.softcap import SOFTCAP
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import LOST_IN_16_BITS, Ask, designed
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operator import (
    LEFT,
    SCALE,
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Packing,
    Questions,
    Work,
    choice,
    flag,
    number,
)
from attention_conformance.suite.spec.operators.cached_cases import (
    ALONE,
    DESIGNED,
    DRAWN,
    LONG,
    PLAIN,
)
from attention_conformance.suite.spec.operators.scripts import (
    capacity,
    has_documents,
    is_ring,
    most_tokens,
    paddings,
    play_script,
    rotation,
    samples_differ,
)
from attention_conformance.suite.spec.operators.steps import (
    ACTION,
    Action,
    Chunk,
    Crop,
    Keep,
    Pick,
    Reset,
    arrivals,
    script_of,
)
from attention_conformance.suite.spec.operators.views import pairs, views
from attention_conformance.suite.spec.recipes import DRAWS
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

WORDS = {
    "left-padding": "first tokens of a sample that nobody attends",
    "ring": "a cache with fewer slots than tokens, which overwrites tokens that left the window",
    "overflow": "tokens beyond the capacity of a cache that has no window",
    "window-rollback": "tokens taken back after others have left the window",
    "reset": "a cache that is emptied and used again",
    "rollback": "tokens taken back from a cache",
    "reorder": "samples of a cache in another order, or several times",
    "subsets": "some samples of a cache that step alone, and samples of different lengths",
    "rotary": "queries and keys that the call rotates by their positions in a cache",
    "documents": "several documents in a sample of a cache, one behind the other",
    "tree": "tokens that join a cache as a tree, in which a node attends its ancestors",
    "keep": "of a tree in a cache one path of each sample that stays",
}
"""Words for required features of caches."""

CARRIED = (SOFTCAP, SINKS, SLOPES)
"""The features of attention that a step may have."""

FEATURES = frozenset(
    {
        "window", "scale", "grouped-heads", "value-size", "bias", "bias-with-mask", "inner-stride",
        "other-shapes", "halves", "interleaved",
        *(feature.word for feature in CARRIED), *(WORDS.keys() - {"overflow"}),
    }
)  # fmt: skip
"""Features of attention with a cache."""


def axes(case: Case) -> Axes:
    feature_axes = {f.name: f.axes for f in CARRIED if f.axes and f.used_by(case)}
    return {"query": "bhqd", "key": "bgkd", "value": "bgkv", **feature_axes}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays = dict(zip(OPERANDS, DRAWS[case.recipe](rng, case.sizes, case.dtype), strict=True))
    for feature in CARRIED:
        if feature.draw is not None and feature.used_by(case):
            arrays[feature.name] = feature.draw(case.sizes, rng)
    return arrays


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes of the forward pass, for any `direction`: 2 P (D + Dv) operations for
    P attending pairs. Each chunk reads the tokens that it attends, its own included."""
    s, pair_count, tokens_read = inputs.sizes, 0, 0
    for view in views(inputs.case):
        pair_count += s.H * int(view.mask.sum())
        tokens_read += s.Hkv * int(view.mask.any(1).sum())
    rows = s.B * s.H * s.Lq
    moved_elements = (rows + tokens_read) * (s.D + s.Dv)
    return Work(2.0 * pair_count * (s.D + s.Dv), moved_elements * inputs.dtype.itemsize)


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """Returns the inputs with only the samples `order`, in this order. Raises ValueError if a sample goes
    on with the history of a sample that is left out."""
    case, order = inputs.case, [int(n) for n in order]
    script, padding, tree_samples = list[Action](), case.option("padding"), list[int]()
    for action in case.option("script"):
        action_samples = [*range(case.sizes.B)] if action.samples is None else [*action.samples]
        match action:
            case Pick():
                script.append(Pick(tuple(order.index(action_samples[n]) for n in order)))
            case Keep(nodes=nodes):
                tree_places = [tree_samples.index(n) for n in order if n in tree_samples]
                chosen_nodes = nodes if len(nodes) == 1 else tuple(nodes[n] for n in tree_places)
                script += [Keep(chosen_nodes)] if tree_places else []
            case Chunk(samples=None) | Crop(samples=None) | Reset(samples=None):
                script.append(action)
            case _:
                chosen_samples = tuple(
                    n for n, sample in enumerate(order) if sample in action_samples
                )
                script += [replace(action, samples=chosen_samples)] if chosen_samples else []
        if isinstance(action, Chunk):
            tree_samples = action_samples
    options = {**dict(case.options), "script": tuple(script)}
    if padding is not None:
        chosen = paddings(case)[order].T.reshape(-1).tolist()
        options = {**options, "padding": tuple(chosen) if any(chosen) else None}
    sizes = replace(case.sizes, B=len(order))
    arrays = {
        n: x[order] if inputs.axes(n)[0] == "b" and len(x) > 1 else x
        for n, x in inputs.arrays.items()
    }
    given_options = tuple((name, value) for name, value in options.items() if value is not None)
    new_case = replace(case, sizes=sizes, options=given_options)
    return replace(inputs, case=new_case, arrays=arrays, sizes=sizes)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    script, left, ring = case.option("script"), case.option("left"), is_ring(case)
    kinds = {type(action) for action in script}
    return {
        "scale": case.option("scale") is not None,
        "window": left is not None,
        **{f.word: f.used_by(case) for f in CARRIED},
        "left-padding": case.option("padding") is not None,
        "ring": ring and left is not None,
        "overflow": ring and left is None,
        "window-rollback": left is not None
        and (Keep in kinds or (Crop in kinds and most_tokens(case) > left + 1)),
        "reset": Reset in kinds or case.option("used"),
        "rollback": Crop in kinds,
        "reorder": Pick in kinds,
        "subsets": samples_differ(case),
        "documents": has_documents(case),
        "rotary": rotation(case) is not None,
        "halves": case.option("rotary") == "halves",
        "interleaved": case.option("rotary") == "interleaved",
        "tree": any(isinstance(action, Chunk) and action.tree is not None for action in script),
        "keep": Keep in kinds,
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate(case: Case) -> None:
    script, s, left = case.option("script"), case.sizes, case.option("left")
    padding = case.option("padding")

    def expect(condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"{message}: {case.id}")

    ends_with_chunk = bool(script) and isinstance(script[-1], Chunk)
    expect(ends_with_chunk, f"{case.operator} needs a script that ends with a chunk")
    expect(
        {*arrivals(script, s.B)} == {s.Lq} and s.Lk >= s.Lq,
        f"{case.operator} has b >= 1 samples and chunks of one token or more, which add up to the number "
        "of queries; keys are as many or more",
    )
    if padding is not None:
        prompts = 1 + sum(isinstance(action, Reset) for action in script)
        expect(
            len(padding) in range(s.B, prompts * s.B + 1, s.B) and any(padding[-s.B :]),
            "left padding is a number for each sample, or for each sample of every prompt, not all 0 in "
            "the last of them",
        )
        expect(not has_documents(case), "a script with padding has no other document")
    longest = max(after.positions.shape[1] for _, after in play_script(case))
    if is_ring(case):
        extra_slots = [
            action.count
            for action in script
            if isinstance(action, Crop) or (isinstance(action, Chunk) and action.tree)
        ]
        slots = (left or 0) + max([*extra_slots, int(left is not None)])
        expect(
            capacity(case) >= slots,
            f"a ring has {slots} slots: for the keys of a window, and a rollback or a tree beside them",
        )
    biased = case.option("bias") != "none"
    expect(not biased or longest <= s.Lk, "a bias has a column for every position")
    rotates = rotation(case) is not None
    expect(not rotates or s.D % 2 == 0, "a rotation is of pairs of components")
    expect(rotates or case.option("base") is None, "a base is that of a rotation")
    SLOPES.validate(case)
    if case.option("softcap") is not None:
        SOFTCAP.validate(case)


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """Returns sizes, script and padding of a random case.

    A number is the tokens of a chunk; 0 is a reset. If there is an odd count of numbers, the first one is
    the number of tokens in the cache before the script. Some numbers add something to their chunk:
    - 3: the last two tokens begin another document
    - 4: the tokens are a tree, and a path of three nodes stays
    - 5: sample 0 takes its tokens first, then all other samples
    - 6 to 8: afterwards 2 tokens leave the cache
    - 9: afterwards the samples exchange their histories
    - 8 as the first chunk, without a 3: the samples have left padding
    """
    is_odd, script, samples = len(numbers) % 2, list[Action](), max(sizes.B, 1)
    (cached_tokens, *_), numbers = (numbers if is_odd else (0,)), numbers[is_odd:]
    other_samples = tuple(range(1, samples))
    for n in numbers:
        if n == 3:
            script.append(Chunk(3, documents=(1,)))
        elif n == 4:
            script += [Chunk(4, tree=Tree((1, 1, 2, 1))), Keep((3,))]
        elif n == 5 and 1 < samples < 10:
            script += [Chunk(5, (0,)), Chunk(5, other_samples)]
        else:
            script.append(Chunk(n) if n else Reset())
        if n == 9 and samples < 10:
            script.append(Pick((*other_samples[::-1], 0)))
        elif n >= 6:
            script.append(Crop(2))
    while script and not isinstance(script[-1], Chunk):
        script.pop()
    script = script or [Chunk(1)]
    queries = arrivals(script, samples)[0]
    new_sizes = replace(sizes, B=samples, Lq=queries, Lk=cached_tokens + queries)
    has_padding = script[0] == Chunk(8) and 3 not in numbers
    padding = tuple(1 + n % 3 for n in range(samples)) if has_padding else None
    return new_sizes, {"script": tuple(script), "padding": padding}


def parse_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers in a text such as "3.0.2"."""
    return tuple(int(n) for n in text.split("."))


CACHED = Operator(
    name="cached",
    text="attention in steps that share a cache",
    topic=("caches", "steps that share a cache of keys and values"),
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bhqv"},
    needs=needs,
    validate=validate,
    asks=Asks(
        plain=PLAIN,
        cases=(
            *designed(DESIGNED),
            Ask(DRAWN, dtypes="array"),
            Ask(
                *ALONE, *LONG, dtypes="float32", since="standard",
                why="features by themselves at heads that people run; full rings and long chunks",
            ),
            Ask(
                "cached/none/mha/{dt}/b3h2q8k20d16/c1.1.1.1.4/level", dtypes="sixteen",
                why=LOST_IN_16_BITS,
            ),
        ),
    ),
    options=(
        Option("script", rf"c({ACTION}(?:\.{ACTION})*)", script_of,
               lambda script: f"c{'.'.join(map(str, script))}"),
        LEFT,
        Option(
            "capacity", r"room(\d+)", int, lambda slots: f"room{slots}", None, (5, 9, 16), rare=True
        ),
        Option("padding", r"pad(\d+(?:\.\d+)*)", parse_numbers, lambda n: f"pad{'.'.join(map(str, n))}"),
        flag("used", "used"),
        choice("bias", ("none", "1hqk", "bhqk"), "bias."),
        choice("rotary", ("none", "halves", "interleaved"), "rot."),
        number("base", "base", 100.0, 500000.0),
        *(feature.option for feature in CARRIED if feature.option),
        SCALE,
    ),
    recipes=("normal", "large", "tiny", "ties", "onehot", "integers", "offset", "level"),
    array_kinds=ArrayKinds(statistics=("alibi_slopes",), wide=("alibi_slopes",)),
    packing=Packing(completed=completed, choose=choose, attends=pairs),
    questions=Questions(
        elections=("nan-in-freed-slot", "beyond-capacity"), probe=PLAIN,
        well_formed=PLAIN.format(dt="f32"),
    ),
    work=work,
)  # fmt: skip
