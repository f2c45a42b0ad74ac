"""What people take a mask for: other sets of pairs that attend, with a sentence and a hint each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Reading, Row, Weights, softmax
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

Meaning = Row[np.ndarray]
"""Pairs that attend, which broadcast to (B, H, Lq, Lk)."""

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
    """The name of the row of a mask without effect."""
    kinds = [] if mask is None else [type(part).__name__ for part in mask.parts]
    return f"{' + '.join(kinds)} ignored"


def meanings(inputs: Inputs) -> Iterator[Meaning]:
    """Known other meanings of the inputs' mask, the likely ones first."""
    s, attends = inputs.sizes, inputs.attends
    every = np.ones(attends.shape, bool)
    biased = every if inputs.bias is None else ~np.isneginf(inputs.bias)
    token = "" if inputs.mask is None else f" {inputs.case.mask_token}"
    text, key = f"The mask{token} is ignored: every query attends every key.", ignored(inputs.mask)
    if s.Lq == 1 and inputs.mask == Causal():
        text = (
            "The one query attends every key: the causal mask is ignored, or aligned bottom-right."
        )
        key = "one query"
    yield Row(every, text, "the argument is not used", key=key)
    if attends.all() and s.Lq > 1:
        for causal in (Causal(), Causal(bottom_right=True)):
            pairs = np.broadcast_to(causal.dense(s), every.shape)
            yield Row(pairs, ALWAYS_CAUSAL, FLAGGED, key=f"always {causal.token}")
    parts = inputs.mask.parts if inputs.mask is not None and inputs.mask_array is None else ()
    dense = [part.dense(s, inputs.seed) for part in parts]
    rests = [
        reduce(np.logical_and, [biased, every, *dense[:place], *dense[place + 1 :]])
        for place in range(len(parts))
    ]
    for part, rest in zip(parts, rests, strict=True):
        if len(parts) > 1:
            text = f"Of the mask{token} the part {part.token} is ignored."
            yield Row(rest, text, "one mask replaces another", key=f"part {ignored(part)}")
        for row in _of_part(part, s, inputs.seed):
            yield replace(row, gives=rest & row.gives)
    if len(parts) > 1:
        either = reduce(np.logical_or, [~every, *dense])
        text = "The parts of the mask are joined by or, expected by and."
        yield Row(either & biased, text, "`|` for `&`")
    inverted = "The mask is inverted: hidden keys are seen, attended keys are hidden."
    yield Row(~attends, inverted, "`masked_fill(mask, -inf)` where True means attend")
    if s.Lq == s.Lk:
        transposed = "The mask is transposed: rows are taken for keys."
        yield Row(attends.swapaxes(-1, -2), transposed, "`mask.mT`")
    for axis, name in ((0, "sample"), (1, "head"), (2, "query")):
        one = np.broadcast_to(np.take(attends, [0], axis), attends.shape)
        yield Row(one, f"The mask of {name} 0 is used for every {name}.", INDEX)
        yield Row(np.roll(attends, 1, axis), f"Every {name} has the mask of another {name}.", INDEX)
    if s.B == s.H:
        yield Row(
            attends.swapaxes(0, 1), "The mask of a sample is taken for that of a head.", INDEX
        )
    if s.B == s.Lq:
        turned = attends[:, :, 0].swapaxes(0, 1)[None]
        yield Row(turned, "The mask of a sample is taken for that of a query.", INDEX)
    for axis, name in ((-1, "key"), (-2, "query")):
        for step, way in ((1, "previous"), (-1, "next")):
            text = f"The mask is off by one: each {name} has the mask of the {way} {name}."
            yield Row(np.roll(attends, step, axis), text, OFFSET)
    for part, own, rest in zip(parts, dense, rests, strict=True):
        for axis, name in ((-2, "queries"), (-1, "keys")):
            length = own.shape[axis]
            for n in range(2, min(length, LARGEST + 1)):
                text = f"The mask {part.token} begins anew every {n} {name}."
                anew = np.take(own, np.arange(length) % n, axis)
                hint = f"chunks of {name} whose positions begin at 0"
                yield Row(rest & anew, text, hint, key=f"{type(part).__name__} anew {n} {name}")
    for axis, name in ((-1, "key"), (-2, "query")):
        place = np.indices(attends.shape[-2:])[axis]
        for n in range(1, min(attends.shape[axis], LARGEST + 1)):
            wide = "a mask that is stored for a fixed number of keys or queries"
            yield Row(attends | (place >= n), f"The mask hides nothing from {name} {n} on.", wide)


def meant(reading: Reading) -> Iterator[Weights]:
    """The weights by each of the other meanings of the mask."""
    for row in meanings(reading.inputs):
        pairs = np.broadcast_to(row.gives, reading.seen.shape)
        yield replace(row, gives=softmax(reading.scores, pairs))


def _of_part(part: Mask, s: Sizes, seed: int) -> Iterable[Meaning]:
    """Other meanings of one part of a mask."""
    if isinstance(part, Causal):
        return _of_causal(part, s)
    if isinstance(part, Window):
        return _of_window(part, s)
    if isinstance(part, Padding):
        return _of_padding(part, s, seed)
    if isinstance(part, Tree):
        return _of_tree(part, s)
    if isinstance(part, Prefix | Segments):
        size, kind = part.length if isinstance(part, Prefix) else part.count, type(part)
        others = {n: kind(size + n) for n in (1, -1) if size + n > 0}
        return [
            Row(
                o.dense(s),
                f"The mask is {o.token}, expected {part.token}.",
                key=f"{kind.__name__} {n:+d}",
            )
            for n, o in others.items()
        ]
    return []


def of_tree(tree: Tree, count: int) -> list[Meaning]:
    """Other masks (count, count) among the nodes of a tree."""
    nodes, itself = np.arange(count), np.eye(count, dtype=bool)
    paths, parents, depths = tree.paths(count), tree.parents(count), tree.depths(count)
    sisters = (parents[:, None] == parents) & (nodes[:, None] >= nodes)
    edges = parents[:, None] == nodes
    return [
        Row(nodes[:, None] >= nodes,
            "A node attends all nodes before it, as if the tree were a chain.",
            "a causal mask among drafted tokens"),
        Row(paths | sisters, "A node attends its earlier siblings.", "`depth[j] <= depth[i]`"),
        Row((depths[:, None] > depths) | itself, "A node attends all nodes of smaller depth.",
            "`depth[j] < depth[i]`, without a look at parents"),
        Row(edges | itself, "Of its ancestors a node attends its parent alone.",
            "ancestors of ancestors count, too"),
        Row(paths & ~edges, "A node does not attend its parent."),
        Row(paths[np.maximum(nodes - 1, 0)] | itself, "A node attends the path of the node before it.",
            "`ancestors[i - 1]`"),
        Row(itself, "A node attends none of its ancestors."),
        Row(~itself | itself, "Every node attends the whole tree."),
    ]  # fmt: skip


def _of_tree(part: Tree, s: Sizes) -> list[Meaning]:
    """Trees with other edges."""
    if s.Lk < s.Lq:
        return []
    before = np.ones((s.Lq, s.Lk - s.Lq), bool)
    return [
        replace(row, gives=np.concatenate([before, row.gives], 1)) for row in of_tree(part, s.Lq)
    ]


def _of_causal(part: Causal, s: Sizes) -> list[Meaning]:
    """Causal masks with another offset, alignment or direction."""
    q, k, away = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lk - s.Lq
    offset, other = (away, 0) if part.bottom_right else (0, away)
    want, got = ("bottom-right", "top-left") if part.bottom_right else ("top-left", "bottom-right")

    def up_to(n: int) -> str:
        at = "i" if not n else f"i {'+' if n > 0 else '-'} {abs(n)}"
        return f"query i attends keys up to {at}"

    to = up_to(offset).replace("query i attends ", "")
    return [
        Row(k <= q + offset + 1, f"A causal query sees the next key: {up_to(offset + 1)}, expected {to}.",
            "`tril(diagonal=1)`, `triu(diagonal=2)`, `j <= i + 1`", key="next key"),
        Row(k < q + offset, "A causal query does not see the key at its own position: "
            f"{up_to(offset - 1)}, expected {to}.", "`tril(diagonal=-1)`, `triu(diagonal=0)`, `j < i`",
            key="own key"),
        Row(k <= q + other, f"The causal mask is aligned {got}, expected {want}: query 0 of {s.Lq} "
            f"attends {max(0, other + 1)} of {s.Lk} keys, expected {max(0, offset + 1)}.",
            "`tril(ones(Lq, Lk))` is top-left, `diagonal=Lk - Lq` is bottom-right", key=f"aligned {got}"),
        Row(k >= q + offset, "The causal mask is mirrored: a query attends the keys behind it, expected "
            "those before it.", "`triu` for `tril`, `j >= i`"),
        Row(k > q + offset, "The causal mask is inverted: a query sees later keys alone, expected those "
            "up to its own.", "the hidden triangle `triu(diagonal=1)` is passed where True means attend"),
        *[Row(k // n <= (q + offset) // n, f"The causal mask compares blocks of {n}, expected each query "
              "and key.", "blocks on the diagonal need a mask inside") for n in range(2, s.Lk)],
        *[Row(k <= q + offset + n,
              f"The causal mask is off by {n:+d}: {up_to(offset + n)}, expected {to}.", OFFSET,
              key=f"causal {n:+d}") for n in (*range(2, s.Lk), *range(-s.Lk, -1))],
    ]  # fmt: skip


def _of_window(part: Window, s: Sizes) -> Iterator[Meaning]:
    """Windows with other widths or another place."""
    sides = {"left": part.left, "right": part.right}
    for name, width in sides.items():
        if width is None:
            continue
        for n, how in ((1, "wider"), (-1, "narrower")):
            if width + n >= 0:
                text = f"The window is one key {how}: {width + n} keys to the {name}, expected {width}."
                hint = "`i - j < window` for `i - j <= window`, `window // 2`"
                yield Row(
                    Window(**{**sides, name: width + n}).dense(s), text, hint, key=f"{name} {how}"
                )
        text = f"The window has no bound to the {name}, expected {width} keys."
        wide = Window(**{**sides, name: None}).dense(s)
        yield Row(wide, text, f"the {name} side is not used", key=f"no bound to the {name}")
    exchanged, hint = Window(part.right, part.left).dense(s), "`(right, left)` for `(left, right)`"
    yield Row(exchanged, "The sides of the window are exchanged.", hint)
    q, k, reach = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lq + s.Lk
    for n in (*range(1, s.Lk), *range(1 - s.Lk, 0)):
        right = reach if part.right is None else part.right
        inside = (k <= q + n + right) & (k >= q + n - (reach if part.left is None else part.left))
        yield Row(inside, f"The window is moved by {n:+d} keys.", OFFSET)


def _of_padding(part: Padding, s: Sizes, seed: int) -> list[Meaning]:
    """Other lengths of samples, and padding at the other end."""
    lengths, k = part.lengths(s, seed), np.arange(s.Lk)

    def within(count: np.ndarray, left: bool = part.left) -> np.ndarray:
        count = count[:, None, None, None]
        return k >= s.Lk - count if left else k < count

    every = np.ones_like(lengths)
    return [
        Row(within(lengths + 1), "Every sample attends one key more than its length.", "`j <= length`"),
        Row(within(lengths - 1), "Every sample attends one key less than its length.",
            "`j < length - 1`"),
        Row(within(lengths, not part.left),
            "Padding is taken to stand at the other end of the keys."),
        Row(within(np.roll(lengths, 1)), "Every sample has the length of another sample.", INDEX),
        Row(within(every * lengths[0]), "Every sample has the length of sample 0.", "`lengths[0]`"),
        Row(within(every * lengths.max()), "Every sample has the longest length.", "`lengths.max()`"),
        Row(~within(lengths), "The padding is inverted: the keys beyond the length are seen.",
            "`j >= length`"),
    ]  # fmt: skip
