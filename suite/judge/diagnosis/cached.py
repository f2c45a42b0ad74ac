"""Attention with a cache: other scripts, masks, windows and scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from references.blocked import attention
from suite.judge.diagnosis.layers import Another, Guess, made, of_scale, of_softcap, of_window
from suite.spec.inputs import Inputs
from suite.spec.operators.scripts import View, views

Seen = Callable[[View, int], np.ndarray]
"""The mask (B, rows, keys) of a chunk, from what it sees and its number."""


def positions(view: View) -> tuple[np.ndarray, np.ndarray]:
    """The positions of a chunk's rows (rows, 1), and of its keys (keys,)."""
    count, of = view.mask.shape[1:]
    return np.arange(of - count, of)[:, None], np.arange(of)


def answer(
    inputs: Inputs,
    seen: Seen = lambda view, n: view.mask,
    features: Callable[[View, int], Mapping[str, Any]] | None = None,
    values: Callable[[View], np.ndarray] | None = None,
) -> Mapping[str, np.ndarray]:
    """The output of chunks with other masks, features, or values (B, Hkv, keys, Dv)."""
    parts = []
    for n, view in enumerate(views(inputs.case)):
        v = view.gathered(inputs.value) if values is None else values(view)
        own = inputs.features if features is None else features(view, n)
        operands = inputs.query[:, :, view.rows], view.gathered(inputs.key), v
        mask = seen(view, n)[:, None]
        made = attention(*operands, mask=mask, scale=inputs.scale, features=own)
        parts.append(np.asarray(made.output, float))
    return {"output": np.concatenate(parts, 2)}


def aligned(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return np.broadcast_to(rows - rows[0] >= keys, view.mask.shape)


def whole_chunk(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return view.mask | np.broadcast_to((keys >= rows[0]) & (rows[0] > 0), view.mask.shape)


def early(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return view.mask & (rows - (rows[0] > 0) >= keys)


def own_chunk(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return view.mask & (keys >= rows[0])


def frozen(inputs: Inputs) -> Seen:
    """Of what arrives later than the first chunk only a chunk's own tokens are seen."""
    first = inputs.sizes.Lk - inputs.sizes.Lq or int(inputs.case.option("script")[0])

    def seen(view: View, n: int) -> np.ndarray:
        rows, keys = positions(view)
        return view.mask & ((keys < first) | (keys >= rows[0]))

    return seen


def narrowed(inputs: Inputs, less: int, decoding: bool) -> Seen:
    """A window with fewer keys, in steps of one token (`decoding`) or in longer chunks alone."""
    left = inputs.case.option("left")

    def seen(view: View, n: int) -> np.ndarray:
        rows, keys = positions(view)
        if left is None or (len(rows) == 1) != decoding:
            return view.mask
        wide = (rows >= keys) & (rows - keys <= left - less)
        return np.broadcast_to(wide, view.mask.shape)

    return seen


def without(inputs: Inputs, name: str, where: Callable[[View, int], bool]) -> Mapping[str, Any]:
    """The answer without a feature in some chunks."""

    def features(view: View, n: int) -> Mapping[str, Any]:
        own = inputs.features
        return {k: x for k, x in own.items() if k != name} if where(view, n) else own

    return answer(inputs, features=features)


def other_script(inputs: Inputs, words: Callable[[str], str | None]) -> Inputs:
    """The inputs with other operations; None leaves an operation out."""
    script = (words(word) for word in inputs.case.option("script"))
    return inputs.replace(script=tuple(word for word in script if word), capacity=None)


def back(more: int) -> Callable[[str], str | None]:
    """Rollbacks of `more` tokens more."""

    def words(word: str) -> str | None:
        if not word.startswith("back"):
            return word
        count = int(word[4:]) + more
        return f"back{count}" if count else None

    return words


def dropped(prefix: str) -> Callable[[str], str | None]:
    return lambda word: None if word.startswith(prefix) else word


def returned(word: str) -> str:
    """A reordering, the other way round: sample `samples[n]` goes on with the history of sample n."""
    if not word.startswith("pick"):
        return word
    order = [int(n) for n in word[4:]]
    inverse = [order.index(n) if n in order else n for n in range(len(order))]
    return f"pick{''.join(map(str, inverse))}"


def of_cached(inputs: Inputs) -> Iterator[Another]:
    """Other scripts, masks, windows, features and scales."""
    own = np.arange(inputs.sizes.B)[:, None]
    guesses: tuple[Guess, ...] = (
        (lambda: answer(inputs, aligned),
         "The causal mask is aligned at the first token of a chunk.", "mask",
         "`tril` of (chunk, keys) without the length of the cache as diagonal"),
        (lambda: answer(inputs, whole_chunk),
         "Rows of a later chunk attend the whole chunk, its future included.", "mask",
         "`is_causal` for the first chunk alone"),
        (lambda: answer(inputs, early),
         "Rows of later chunks do not attend their own token.", "cache",
         "positions that begin at `length - 1`"),
        (lambda: answer(inputs, own_chunk), "Later chunks attend their own tokens alone.", "cache",
         "the state of `step` is not used"),
        (lambda: answer(inputs, frozen(inputs)), "Only the first chunk is kept.", "cache",
         "a copy that is written, a position that is not advanced"),
        *of_window(inputs, capacity=None),
        *(
            (lambda less=less, step=step: answer(inputs, narrowed(inputs, less, step)),
             f"In {'steps of one token' if step else 'longer chunks'} the window sees one key "
             f"{'less' if less > 0 else 'more'}.", "mask", "two ways to count a window")
            for less in (1, -1) for step in (True, False)
        ),
        (lambda: inputs.replace(padding=None), "Left padding is attended.", "mask", ""),
        (lambda: other_script(inputs, dropped("back")), "Rollbacks do nothing.", "cache", ""),
        (lambda: other_script(inputs, back(-1)), "Of tokens that are taken back one stays.", "cache",
         "`[: length - n + 1]`"),
        (lambda: other_script(inputs, back(1)), "One token too many is taken back.", "cache", ""),
        (lambda: other_script(inputs, dropped("reset")), "Resets do nothing.", "cache", ""),
        (lambda: other_script(inputs, dropped("pick")), "Samples are not reordered.", "cache", ""),
        (lambda: other_script(inputs, returned), "Samples are reordered the other way round.", "cache",
         "`cache[order] = cache` for `cache[order]`"),
        (lambda: answer(inputs, values=lambda view: np.moveaxis(
            inputs.value[own + 0 * view.samples, :, view.places], 1, 2)),
         "Keys are reordered, and values are not.", "cache", ""),
        of_softcap(inputs),
        (lambda: without(inputs, "softcap", lambda view, n: view.mask.shape[1] == 1),
         "Steps of one token have no softcap.", "scores", ""),
        (lambda: inputs.replace(sinks=None), "The sinks are ignored.", "sinks", ""),
        (lambda: without(inputs, "sinks", lambda view, n: n > 0), "Only the first chunk has sinks.",
         "sinks", ""),
        (lambda: inputs.replace(alibi_slopes=None), "The slopes are ignored.", "scores", ""),
        *of_scale(inputs),
    )  # fmt: skip
    yield from made(inputs, guesses)
