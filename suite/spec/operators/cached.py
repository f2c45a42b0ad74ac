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

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.sinks import SINKS
from attention_conformance.suite.spec.features.slopes import SLOPES
from attention_conformance.suite.spec.features.softcap import SOFTCAP
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
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
from attention_conformance.suite.spec.operators.cached_cases import DESIGNED, DRAWN, PLAIN
from attention_conformance.suite.spec.operators.scripts import (
    ACTION,
    Chunk,
    Crop,
    Keep,
    Pick,
    Reset,
    actions,
    capacity,
    differ,
    has_documents,
    held,
    is_ring,
    paddings,
    rotation,
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
    s, attending, tokens = inputs.sizes, 0, 0
    for view in views(inputs.case):
        attending += s.H * int(view.mask.sum())
        tokens += s.Hkv * int(view.mask.any(1).sum())
    rows = s.B * s.H * s.Lq
    numbers = rows * (s.D + s.Dv) + tokens * (s.D + s.Dv)
    return Work(2.0 * attending * (s.D + s.Dv), numbers * inputs.dtype.itemsize)


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """The inputs with some of their samples, in this order. Raises ValueError if a sample goes on with
    the history of one that is left out."""
    case, order = inputs.case, [int(n) for n in order]
    script, padding, drafting = [], case.option("padding"), ""
    for word in case.option("script"):
        body, _, of = word.partition("of")
        some = "".join(str(n) for n, old in enumerate(order) if str(old) in of)
        if word.startswith("pick"):
            script.append(f"pick{''.join(str(order.index(int(word[4 + n]))) for n in order)}")
        elif word.startswith("keep"):
            places = [drafting.index(str(n)) for n in order if str(n) in drafting]
            nodes = "".join(word[4 + n] for n in places) if len(word) > 5 else word[4:]
            script += [f"keep{nodes}"] if places else []
        elif some or not of:
            script.append(f"{body}of{some}" if of else word)
        if word.startswith("tree"):
            drafting = of or "".join(map(str, range(case.sizes.B)))
    options = {**dict(case.options), "script": tuple(script)}
    if padding is not None:
        chosen = paddings(case)[order].T.reshape(-1).tolist()
        options = {**options, "padding": tuple(chosen) if any(chosen) else None}
    sizes = replace(case.sizes, B=len(order))
    arrays = {
        n: x[order] if inputs.axes(n)[0] == "b" and len(x) > 1 else x
        for n, x in inputs.arrays.items()
    }
    kept = tuple((name, value) for name, value in options.items() if value is not None)
    other = replace(case, sizes=sizes, options=kept)
    return replace(inputs, case=other, arrays=arrays, sizes=sizes)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    script, left = " ".join(case.option("script")), case.option("left")
    rolls_back, ring = "back" in script, is_ring(case)
    return {
        "scale": case.option("scale") is not None,
        "window": left is not None,
        **{f.word: f.asked_by(case) for f in CARRIED},
        "left-padding": case.option("padding") is not None,
        "ring": ring and left is not None,
        "overflow": ring and left is None,
        "window-rollback": left is not None
        and ("keep" in script or (rolls_back and held(case) > left + 1)),
        "reset": "reset" in script or case.option("used"),
        "rollback": rolls_back,
        "reorder": "pick" in script,
        "subsets": differ(case),
        "documents": has_documents(case),
        "rotary": rotation(case) is not None,
        "halves": case.option("rotary") == "halves",
        "interleaved": case.option("rotary") == "interleaved",
        "tree": "tree" in script,
        "keep": "keep" in script,
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate(case: Case) -> None:
    script, s, padding = case.option("script"), case.sizes, case.option("padding")
    if not script or not re.match(r"\d|tree", script[-1]):
        raise ValueError(f"{case.operator} needs a script that ends with a chunk: {case.id}")
    together = ValueError(
        f"{case.operator} has b >= 1 samples and chunks of one token or more, which add up to the "
        f"number of queries; keys are as many or more: {case.id}"
    )
    if s.Lk < s.Lq or not s.B:
        raise together
    resets = sum(word.startswith("reset") for word in script)
    wrong_padding = ValueError(
        "left padding is a number for each sample, or for each sample of every prompt, not all 0 in the "
        "last of them; every prompt has a token behind it; a script with padding has no other document: "
        f"{case.id}"
    )
    if padding is not None and (
        len(padding) % s.B
        or len(padding) > (1 + resets) * s.B
        or not any(padding[-s.B :])
        or any("+" in word for word in script)
    ):
        raise wrong_padding
    prompts = [iter(own) for own in paddings(case)]
    least, counts = [next(own) for own in prompts], [0] * s.B
    arrived, last = [0] * s.B, None

    def slots(what: str, count: int) -> None:
        needed = (case.option("left") or 0) + count
        if is_ring(case) and capacity(case) < needed:
            raise ValueError(f"a ring with {what} has at least {needed} slots: {case.id}")

    for action in actions(case):
        samples = getattr(action, "samples", None) or range(s.B)
        if max(samples) >= s.B:
            raise ValueError(f"samples are numbers below {s.B}: {case.id}")
        if isinstance(action, Pick) and len(samples) != s.B:
            raise ValueError(f"pick has a number for each of {s.B} samples: {case.id}")
        if len({*samples}) < len(samples) and not isinstance(action, Pick):
            raise ValueError(f"a sample steps once at a time: {case.id}")
        branches = None
        if isinstance(last, Chunk) and last.tree:
            whole = isinstance(action, Reset) or (
                isinstance(action, Crop) and action.count >= last.count
            )
            if isinstance(action, Pick) and last.samples is None:
                branches = last
            elif not (isinstance(action, Keep) or (whole and {*samples} >= {*last.own})):
                raise ValueError(
                    f"after a tree stands keep, reset, or a rollback of all its nodes: {case.id}"
                )
        match action:
            case Chunk(count=count, documents=documents):
                for b in samples:
                    counts[b] += count
                    arrived[b] += count
                if len({*documents, count}) <= len(documents):
                    raise ValueError(f"a document has one token or more: {case.id}")
                if count < 1:
                    raise ValueError(f"a chunk has one token or more: {case.id}")
                if action.tree:
                    slots(f"a tree of {count} tokens", count)
                    if any(counts[b] - count < least[b] for b in samples):
                        raise wrong_padding
            case Crop(count=less):
                for b in samples:
                    counts[b] -= less
                if any(counts[b] < least[b] for b in samples):
                    raise ValueError(f"there are not {less} tokens to take back: {case.id}")
                slots(f"a rollback of {less} tokens", less)
            case Reset():
                if any(counts[b] <= least[b] > 0 for b in samples):
                    raise wrong_padding
                for b in samples:
                    counts[b], least[b] = 0, next(prompts[b], 0)
            case Pick(samples=order):
                counts, least = ([numbers[n] for n in order] for numbers in (counts, least))
            case Keep(paths=paths, count=count):
                for b, path in zip(action.own, paths, strict=True):
                    counts[b] -= count - len(path)
        last = branches or action
    if {*arrived} != {s.Lk}:
        raise together
    if any(count <= padded > 0 for count, padded in zip(counts, least, strict=True)):
        raise wrong_padding
    left = case.option("left")
    if is_ring(case) and left is not None and capacity(case) < left + 1:
        raise ValueError(f"a ring has a slot for each key of its window: {case.id}")
    if case.option("bias") != "none" and held(case) > s.Lk:
        raise ValueError(f"a bias has a column for every position: {case.id}")
    if rotation(case) is not None and s.D % 2:
        raise ValueError(f"a rotation is of pairs of components: {case.id}")
    if rotation(case) is None and case.option("base") is not None:
        raise ValueError(f"a base is that of a rotation: {case.id}")
    SLOPES.validate(case)
    if case.option("softcap") is not None:
        SOFTCAP.validate(case)


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """A random script.

    A number is a chunk, and 0 a reset. Of 3 tokens the last two begin another document. 4 is a tree of
    four nodes, of which a path of three is kept. Of 5 tokens first sample 0 takes its own. After a chunk
    of 6 to 8 tokens 2 go back; after one of 9 samples are exchanged. With an odd count the first number
    tells how many tokens the cache has before. A script of one document that begins with 8 tokens has
    left padding.
    """
    before, script, queries = numbers[0] if len(numbers) % 2 else 0, list[str](), 0
    samples = max(sizes.B, 1)
    for n in numbers[len(numbers) % 2 :]:
        others = "".join(map(str, range(1, samples)))
        if n == 3:
            script.append("1+2")
        elif n == 4:
            script += ["tree1121", "keep3"]
        elif n == 5 and 1 < samples < 10:
            script += ["5of0", f"5of{others}"]
        else:
            script.append(str(n) if n else "reset")
        queries += n
        if n == 9 and samples < 10:
            script.append(f"pick{others[::-1]}0")
        elif n >= 6:
            script.append("back2")
    while script and not re.match(r"\d|tree", script[-1]):
        script.pop()
    script, queries = (script, queries) if script else (["1"], 1)
    own = replace(sizes, B=samples, Lq=queries, Lk=before + queries)
    padded = script[0] == "8" and not any("+" in word for word in script)
    padding = tuple(1 + n % 3 for n in range(samples)) if padded else None
    return own, {"script": tuple(script), "padding": padding}


def dotted(text: str) -> tuple[int, ...]:
    """Numbers from "3.0.2"."""
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
            Ask(PLAIN, *DESIGNED),
            Ask(DRAWN, dtypes="array"),
            Ask("cached/none/mha/{dt}/b3h2q8k20d16/c1.1.1.1.4/level", dtypes="sixteen"),
        ),
    ),
    options=(
        Option("script", rf"c({ACTION}(?:\.{ACTION})*)", lambda text: tuple(text.split(".")),
               lambda script: f"c{'.'.join(script)}"),
        LEFT,
        Option(
            "capacity", r"room(\d+)", int, lambda slots: f"room{slots}", None, (5, 9, 16), rare=True
        ),
        Option("padding", r"pad(\d+(?:\.\d+)*)", dotted, lambda n: f"pad{'.'.join(map(str, n))}"),
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
