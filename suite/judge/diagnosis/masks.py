"""Families of faulty masks: the attended pairs by an offset, a width, a block or an index that a probe
shows. Faulty masks without a number are deviations of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis.kernels import measured_kernel
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Mask, Prefix, Segments, Window
from attention_conformance.suite.spec.sizes import Sizes

LARGEST = 128
"""The largest chunk of queries or keys in which a mask may begin anew."""

INDEX = "an index or a stride, `repeat` for `repeat_interleave`"
OFFSET = "an offset of the positions, or tiles that are compared as a whole"


@dataclass(frozen=True, eq=False)
class Meaning:
    """A faulty meaning of a mask. `pairs`: the attended pairs, boolean, broadcast to (B, H, Lq, Lk).
    `sentence` and `hint` as in `Diagnosis`. `key` names the meaning if its sentence has numbers of the
    inputs."""

    pairs: np.ndarray
    sentence: str
    hint: str = ""
    key: str = ""

    @property
    def name(self) -> str:
        return self.key or self.sentence

    @property
    def kernel(self) -> Implementation:
        """Attention whose mask has this meaning, whatever the inputs."""
        return measured_kernel(self.name, problem=partial(_masked_inputs, self.name))


def _masked_inputs(name: str, inputs: Inputs) -> Inputs:
    """Returns the inputs with the mask of the meaning called `name`; unchanged without such a meaning."""
    for meaning in meanings(inputs):
        if meaning.name == name:
            pairs = np.broadcast_to(meaning.pairs, inputs.attends.shape)
            return inputs.replace(mask=None, form="dense", mask_array=pairs)
    return inputs


def ignored_mask_name(mask: Mask | None) -> str:
    """Returns the name of the meaning in which this mask has no effect."""
    class_names = [] if mask is None else [type(part).__name__ for part in mask.parts]
    return f"{' + '.join(class_names)} ignored"


def meanings(inputs: Inputs) -> Iterator[Meaning]:
    """Yields faulty meanings of the inputs' mask, the likely ones first."""
    s, attends = inputs.sizes, inputs.attends
    all_pairs = np.ones(attends.shape, bool)
    finite_bias = all_pairs if inputs.bias is None else ~np.isneginf(inputs.bias)
    name = "" if inputs.mask is None else f" {inputs.case.mask_token}"
    text, key = (
        f"The mask{name} is ignored: every query attends every key.",
        ignored_mask_name(inputs.mask),
    )
    if s.Lq == 1 and inputs.mask == Causal():
        text = (
            "The one query attends every key: the causal mask is ignored, or aligned bottom-right."
        )
        key = "one query"
    yield Meaning(all_pairs, text, "the argument is not used", key)
    if attends.all() and s.Lq > 1:
        for causal in (Causal(), Causal(bottom_right=True)):
            yield Meaning(
                causal.dense(s),
                "Later keys are hidden in a call without a causal mask: the function is always causal.",
                "a mask that is built in: take a parameter `is_causal=False`, and hide later keys if it "
                "is True", f"always {causal.token}",
            )  # fmt: skip
    parts = inputs.mask.parts if inputs.mask is not None and inputs.mask_array is None else ()
    masks = [part.dense(s, inputs.seed) for part in parts]
    for n, part in enumerate(parts):
        other_mask = reduce(np.logical_and, [finite_bias, all_pairs, *masks[:n], *masks[n + 1 :]])
        if len(parts) > 1:
            text = f"Of the mask{name} the part {part.token} is ignored."
            yield Meaning(
                other_mask, text, "one mask replaces another", f"part {ignored_mask_name(part)}"
            )
        for meaning in (*_meanings_of_part(part, s), *_restarting_masks(part, masks[n])):
            yield replace(meaning, pairs=other_mask & meaning.pairs)
    for axis, name in ((-1, "key"), (-2, "query")):
        for step, way in ((1, "previous"), (-1, "next")):
            text = f"The mask is off by one: each {name} has the mask of the {way} {name}."
            yield Meaning(np.roll(attends, step, axis), text, OFFSET)
        number = np.indices(attends.shape[-2:])[axis]
        for n in range(1, min(attends.shape[axis], LARGEST + 1)):
            hint = "a mask that is stored for a fixed number of keys or queries"
            text = f"The mask hides nothing from {name} {n} on."
            yield Meaning(attends | (number >= n), text, hint)


def _restarting_masks(part: Mask, mask: np.ndarray) -> Iterator[Meaning]:
    """Yields the masks that begin anew every few queries or keys. `mask`: the pairs (Lq, Lk) of
    `part`."""
    for axis, name in ((-2, "queries"), (-1, "keys")):
        length = mask.shape[axis]
        for n in range(2, min(length, LARGEST + 1)):
            tiled = np.take(mask, np.arange(length) % n, axis)
            text = f"The mask {part.token} begins anew every {n} {name}."
            hint = f"chunks of {name} whose positions begin at 0"
            yield Meaning(tiled, text, hint, f"{type(part).__name__} anew {n} {name}")


def _meanings_of_part(part: Mask, s: Sizes) -> Iterable[Meaning]:
    """Returns faulty meanings of one part of a mask."""
    if isinstance(part, Causal):
        return _causal_meanings(part, s)
    if isinstance(part, Window):
        return _window_meanings(part, s)
    if isinstance(part, Prefix | Segments):
        size, kind = part.length if isinstance(part, Prefix) else part.count, type(part)
        changed_masks = {n: kind(size + n) for n in (1, -1) if size + n > 0}
        return [
            Meaning(mask.dense(s), f"The mask is {mask.token}, expected {part.token}.",
                    key=f"{kind.__name__} {n:+d}")
            for n, mask in changed_masks.items()
        ]  # fmt: skip
    return []


def _causal_meanings(part: Causal, s: Sizes) -> Iterator[Meaning]:
    """Yields causal masks with another alignment or offset, or that compare blocks."""
    q, k, difference = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lk - s.Lq
    offset, other = (difference, 0) if part.bottom_right else (0, difference)
    want, got = ("bottom-right", "top-left") if part.bottom_right else ("top-left", "bottom-right")

    def up_to(n: int) -> str:
        return f"keys up to i {'+' if n > 0 else '-'} {abs(n)}" if n else "keys up to i"

    text = (
        f"The causal mask is aligned {got}, expected {want}: query 0 of {s.Lq} attends "
        f"{max(0, other + 1)} of {s.Lk} keys, expected {max(0, offset + 1)}."
    )
    hint = "`tril(ones(Lq, Lk))` is top-left, `diagonal=Lk - Lq` is bottom-right"
    yield Meaning(k <= q + other, text, hint, f"aligned {got}")
    for n in range(2, s.Lk):
        text = f"The causal mask compares blocks of {n}, expected each query and key."
        hint = "blocks on the diagonal need a mask inside"
        yield Meaning(k // n <= (q + offset) // n, text, hint)
    for n in (*range(1, s.Lk), *range(-s.Lk, 0)):
        text = (
            f"The causal mask is off by {n:+d}: query i attends {up_to(offset + n)}, expected "
            f"{up_to(offset)}."
        )
        hint = "`tril(diagonal=1)`, `triu(diagonal=0)`, `j < i`" if abs(n) == 1 else OFFSET
        yield Meaning(k <= q + offset + n, text, hint, f"causal {n:+d}")


def _window_meanings(part: Window, s: Sizes) -> Iterator[Meaning]:
    """Yields windows with other widths, or at another place."""
    sides = {"left": part.left, "right": part.right}
    for name, width in sides.items():
        if width is None:
            continue
        for n, word in ((1, "wider"), (-1, "narrower")):
            if width + n >= 0:
                text = f"The window is one key {word}: {width + n} keys to the {name}, expected {width}."
                hint = "`i - j < window` for `i - j <= window`, `window // 2`"
                window = Window(**{**sides, name: width + n})
                yield Meaning(window.dense(s), text, hint, f"{name} {word}")
        text = f"The window has no bound to the {name}, expected {width} keys."
        hint, key = f"the {name} side is not used", f"no bound to the {name}"
        yield Meaning(Window(**{**sides, name: None}).dense(s), text, hint, key)
    text, hint = "The sides of the window are exchanged.", "`(right, left)` for `(left, right)`"
    yield Meaning(Window(part.right, part.left).dense(s), text, hint)
    q, k, reach = np.arange(s.Lq)[:, None], np.arange(s.Lk), s.Lq + s.Lk
    for n in (*range(1, s.Lk), *range(1 - s.Lk, 0)):
        right = reach if part.right is None else part.right
        inside = (k <= q + n + right) & (k >= q + n - (reach if part.left is None else part.left))
        yield Meaning(inside, f"The window is moved by {n:+d} keys.", OFFSET)
