"""Faulty meanings of a mask: other sets of attended pairs, with a sentence and a hint each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Reading, Variant, softmax
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import (
    Causal,
    Mask,
    Padding,
    Prefix,
    Segments,
    Tree,
    Window,
)
from attention_conformance.suite.spec.sizes import Sizes

Meaning = Variant[np.ndarray]
"""A variant whose result are the attended pairs, which broadcast to (B, H, Lq, Lk)."""

LARGEST = 128
"""The largest chunk of queries or keys in which a mask may begin anew."""

INDEX = "an index or a stride, `repeat` for `repeat_interleave`"
OFFSET = "an offset of the positions, or tiles that are compared as a whole"


ALWAYS_CAUSAL = (
    "Later keys are hidden in a call without a causal mask: the function is always causal."
)

FLAGGED = (
    "a mask that is built in: take a parameter `is_causal=False`, and hide later keys if it is True"
)


def ignored(mask: Mask | None) -> str:
    """The name of the variant in which this mask has no effect."""
    class_names = [] if mask is None else [type(part).__name__ for part in mask.parts]
    return f"{' + '.join(class_names)} ignored"


def meanings(inputs: Inputs) -> Iterator[Meaning]:
    """Faulty meanings of the inputs' mask, the likely ones first."""
    s, attends = inputs.sizes, inputs.attends
    all_pairs = np.ones(attends.shape, bool)
    finite_bias = all_pairs if inputs.bias is None else ~np.isneginf(inputs.bias)
    name = "" if inputs.mask is None else f" {inputs.case.mask_token}"
    text, key = f"The mask{name} is ignored: every query attends every key.", ignored(inputs.mask)
    if s.Lq == 1 and inputs.mask == Causal():
        text = (
            "The one query attends every key: the causal mask is ignored, or aligned bottom-right."
        )
        key = "one query"
    yield Variant(all_pairs, text, "the argument is not used", key=key)
    if attends.all() and s.Lq > 1:
        for causal in (Causal(), Causal(bottom_right=True)):
            pairs = np.broadcast_to(causal.dense(s), all_pairs.shape)
            yield Variant(pairs, ALWAYS_CAUSAL, FLAGGED, key=f"always {causal.token}")
    parts = inputs.mask.parts if inputs.mask is not None and inputs.mask_array is None else ()
    masks = [part.dense(s, inputs.seed) for part in parts]
    other_masks = [  # by part: the mask without it
        reduce(np.logical_and, [finite_bias, all_pairs, *masks[:n], *masks[n + 1 :]])
        for n in range(len(parts))
    ]
    for part, other_mask in zip(parts, other_masks, strict=True):
        if len(parts) > 1:
            text = f"Of the mask{name} the part {part.token} is ignored."
            yield Variant(
                other_mask, text, "one mask replaces another", key=f"part {ignored(part)}"
            )
        for variant in _meanings_of_part(part, s, inputs.seed):
            yield replace(variant, result=other_mask & variant.result)
    if len(parts) > 1:
        union = reduce(np.logical_or, [~all_pairs, *masks])
        text = "The parts of the mask are joined by or, expected by and."
        yield Variant(union & finite_bias, text, "`|` for `&`")
    inverted = "The mask is inverted: hidden keys are seen, attended keys are hidden."
    yield Variant(~attends, inverted, "`masked_fill(mask, -inf)` where True means attend")
    if s.Lq == s.Lk:
        transposed = "The mask is transposed: rows are taken for keys."
        yield Variant(attends.swapaxes(-1, -2), transposed, "`mask.mT`")
    for axis, name in ((0, "sample"), (1, "head"), (2, "query")):
        first_mask = np.broadcast_to(np.take(attends, [0], axis), attends.shape)
        yield Variant(first_mask, f"The mask of {name} 0 is used for every {name}.", INDEX)
        text = f"Every {name} has the mask of another {name}."
        yield Variant(np.roll(attends, 1, axis), text, INDEX)
    if s.B == s.H:
        text = "The mask of a sample is taken for that of a head."
        yield Variant(attends.swapaxes(0, 1), text, INDEX)
    if s.B == s.Lq:
        swapped = attends[:, :, 0].swapaxes(0, 1)[None]
        yield Variant(swapped, "The mask of a sample is taken for that of a query.", INDEX)
    for axis, name in ((-1, "key"), (-2, "query")):
        for step, way in ((1, "previous"), (-1, "next")):
            text = f"The mask is off by one: each {name} has the mask of the {way} {name}."
            yield Variant(np.roll(attends, step, axis), text, OFFSET)
    for part, mask, other_mask in zip(parts, masks, other_masks, strict=True):
        for axis, name in ((-2, "queries"), (-1, "keys")):
            length = mask.shape[axis]
            for n in range(2, min(length, LARGEST + 1)):
                text = f"The mask {part.token} begins anew every {n} {name}."
                tiled = np.take(mask, np.arange(length) % n, axis)
                hint = f"chunks of {name} whose positions begin at 0"
                key = f"{type(part).__name__} anew {n} {name}"
                yield Variant(other_mask & tiled, text, hint, key=key)
    for axis, name in ((-1, "key"), (-2, "query")):
        number = np.indices(attends.shape[-2:])[axis]
        for n in range(1, min(attends.shape[axis], LARGEST + 1)):
            hint = "a mask that is stored for a fixed number of keys or queries"
            text = f"The mask hides nothing from {name} {n} on."
            yield Variant(attends | (number >= n), text, hint)


def weights_by_meaning(reading: Reading) -> Iterator[Variant[np.ndarray]]:
    """The weights by each faulty meaning of the mask."""
    for variant in meanings(reading.inputs):
        pairs = np.broadcast_to(variant.result, reading.visible.shape)
        yield replace(variant, result=softmax(reading.scores, pairs))


def _meanings_of_part(part: Mask, s: Sizes, seed: int) -> Iterable[Meaning]:
    """Faulty meanings of one part of a mask."""
    if isinstance(part, Causal):
        return _causal_meanings(part, s)
    if isinstance(part, Window):
        return _window_meanings(part, s)
    if isinstance(part, Padding):
        return _padding_meanings(part, s, seed)
    if isinstance(part, Tree):
        return _tree_meanings(part, s)
    if isinstance(part, Prefix | Segments):
        size, kind = part.length if isinstance(part, Prefix) else part.count, type(part)
        masks_by_step = {n: kind(size + n) for n in (1, -1) if size + n > 0}
        return [
            Variant(
                mask.dense(s),
                f"The mask is {mask.token}, expected {part.token}.",
                key=f"{kind.__name__} {n:+d}",
            )
            for n, mask in masks_by_step.items()
        ]
    return []


def tree_variants(tree: Tree, count: int) -> list[Meaning]:
    """Faulty masks (count, count) among the nodes of a tree."""
    nodes, itself = np.arange(count), np.eye(count, dtype=bool)
    paths, parents, depths = tree.paths(count), tree.parents(count), tree.depths(count)
    siblings = (parents[:, None] == parents) & (nodes[:, None] >= nodes)
    edges = parents[:, None] == nodes
    return [
        Variant(nodes[:, None] >= nodes,
            "A node attends all nodes before it, as if the tree were a chain.",
            "a causal mask among drafted tokens"),
        Variant(paths | siblings, "A node attends its earlier siblings.", "`depth[j] <= depth[i]`"),
        Variant((depths[:, None] > depths) | itself, "A node attends all nodes of smaller depth.",
            "`depth[j] < depth[i]`, without a look at parents"),
        Variant(edges | itself, "Of its ancestors a node attends its parent alone.",
            "ancestors of ancestors count, too"),
        Variant(paths & ~edges, "A node does not attend its parent."),
        Variant(paths[np.maximum(nodes - 1, 0)] | itself,
            "A node attends the path of the node before it.", "`ancestors[i - 1]`"),
        Variant(itself, "A node attends none of its ancestors."),
        Variant(~itself | itself, "Every node attends the whole tree."),
    ]  # fmt: skip


def _tree_meanings(part: Tree, s: Sizes) -> list[Meaning]:
    """Masks of drafted tokens with other edges of the tree; all former keys are attended."""
    if s.Lk < s.Lq:
        return []
    former_keys = np.ones((s.Lq, s.Lk - s.Lq), bool)
    return [
        replace(variant, result=np.concatenate([former_keys, variant.result], 1))
        for variant in tree_variants(part, s.Lq)
    ]


def _causal_meanings(part: Causal, s: Sizes) -> list[Meaning]:
    """Causal masks with another offset, alignment or direction."""
    q, k, difference = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lk - s.Lq
    offset, other = (difference, 0) if part.bottom_right else (0, difference)
    want, got = ("bottom-right", "top-left") if part.bottom_right else ("top-left", "bottom-right")

    def up_to(n: int) -> str:
        at = "i" if not n else f"i {'+' if n > 0 else '-'} {abs(n)}"
        return f"query i attends keys up to {at}"

    keys = up_to(offset).replace("query i attends ", "")
    return [
        Variant(k <= q + offset + 1,
            f"A causal query sees the next key: {up_to(offset + 1)}, expected {keys}.",
            "`tril(diagonal=1)`, `triu(diagonal=2)`, `j <= i + 1`", key="next key"),
        Variant(k < q + offset, "A causal query does not see the key at its own position: "
            f"{up_to(offset - 1)}, expected {keys}.", "`tril(diagonal=-1)`, `triu(diagonal=0)`, `j < i`",
            key="own key"),
        Variant(k <= q + other, f"The causal mask is aligned {got}, expected {want}: query 0 of {s.Lq} "
            f"attends {max(0, other + 1)} of {s.Lk} keys, expected {max(0, offset + 1)}.",
            "`tril(ones(Lq, Lk))` is top-left, `diagonal=Lk - Lq` is bottom-right", key=f"aligned {got}"),
        Variant(k >= q + offset, "The causal mask is mirrored: a query attends the keys behind it, "
            "expected those before it.", "`triu` for `tril`, `j >= i`"),
        Variant(k > q + offset, "The causal mask is inverted: a query sees later keys alone, expected "
            "those up to its own.",
            "the hidden triangle `triu(diagonal=1)` is passed where True means attend"),
        *[Variant(k // n <= (q + offset) // n, f"The causal mask compares blocks of {n}, expected each "
              "query and key.", "blocks on the diagonal need a mask inside") for n in range(2, s.Lk)],
        *[Variant(k <= q + offset + n,
              f"The causal mask is off by {n:+d}: {up_to(offset + n)}, expected {keys}.", OFFSET,
              key=f"causal {n:+d}") for n in (*range(2, s.Lk), *range(-s.Lk, -1))],
    ]  # fmt: skip


def _window_meanings(part: Window, s: Sizes) -> Iterator[Meaning]:
    """Windows with other widths, or at another place."""
    sides = {"left": part.left, "right": part.right}
    for name, width in sides.items():
        if width is None:
            continue
        for n, how in ((1, "wider"), (-1, "narrower")):
            if width + n >= 0:
                text = f"The window is one key {how}: {width + n} keys to the {name}, expected {width}."
                hint = "`i - j < window` for `i - j <= window`, `window // 2`"
                yield Variant(
                    Window(**{**sides, name: width + n}).dense(s), text, hint, key=f"{name} {how}"
                )
        text = f"The window has no bound to the {name}, expected {width} keys."
        unbounded = Window(**{**sides, name: None}).dense(s)
        hint, key = f"the {name} side is not used", f"no bound to the {name}"
        yield Variant(unbounded, text, hint, key=key)
    swapped, hint = Window(part.right, part.left).dense(s), "`(right, left)` for `(left, right)`"
    yield Variant(swapped, "The sides of the window are exchanged.", hint)
    q, k, reach = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lq + s.Lk
    for n in (*range(1, s.Lk), *range(1 - s.Lk, 0)):
        right = reach if part.right is None else part.right
        inside = (k <= q + n + right) & (k >= q + n - (reach if part.left is None else part.left))
        yield Variant(inside, f"The window is moved by {n:+d} keys.", OFFSET)


def _padding_meanings(part: Padding, s: Sizes, seed: int) -> list[Meaning]:
    """Padding with other lengths of samples, or at the other end of the keys."""
    lengths, k = part.lengths(s, seed), np.arange(s.Lk)

    def within(count: np.ndarray, left: bool = part.left) -> np.ndarray:
        count = count[:, None, None, None]
        return k >= s.Lk - count if left else k < count

    ones = np.ones_like(lengths)
    return [
        Variant(within(lengths + 1), "Every sample attends one key more than its length.",
            "`j <= length`"),
        Variant(within(lengths - 1), "Every sample attends one key less than its length.",
            "`j < length - 1`"),
        Variant(within(lengths, not part.left),
            "Padding is taken to stand at the other end of the keys."),
        Variant(within(np.roll(lengths, 1)), "Every sample has the length of another sample.", INDEX),
        Variant(within(ones * lengths[0]), "Every sample has the length of sample 0.", "`lengths[0]`"),
        Variant(within(ones * lengths.max()), "Every sample has the longest length.", "`lengths.max()`"),
        Variant(~within(lengths), "The padding is inverted: the keys beyond the length are seen.",
            "`j >= length`"),
    ]  # fmt: skip
