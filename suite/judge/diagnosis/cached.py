"""Attention with a cache: other scripts, masks, windows and scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.references.blocked import attention
from attention_conformance.references.cached import turned
from attention_conformance.references.rounding import NO_ROUNDING, Bounded
from attention_conformance.references.tape import Leaf
from attention_conformance.suite.judge.diagnosis.layers import (
    Another,
    Guess,
    made,
    of_scale,
    of_softcap,
    of_window,
)
from attention_conformance.suite.judge.diagnosis.masks import of_tree
from attention_conformance.suite.judge.diagnosis.split import COUNTS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.scripts import (
    Chunk,
    Keep,
    actions,
    capacity,
    has_documents,
    paddings,
    rotation,
)
from attention_conformance.suite.spec.operators.views import View, views

Turns = Callable[[View], tuple[np.ndarray, np.ndarray]]
"""The positions by which the queries (b, rows) and the keys (b, keys) of a chunk are rotated."""

Seen = Callable[[View, int], np.ndarray]
"""The mask (B, rows, keys) of a chunk, from what it sees and its number."""


def positions(view: View) -> tuple[np.ndarray, np.ndarray]:
    """The positions of a chunk's rows (b, rows, 1), and of its keys (b, 1, keys)."""
    return view.at[:, :, None], view.positions[:, None]


def first(view: View) -> np.ndarray:
    """The position of a chunk's first token (b, 1, 1)."""
    return view.at[:, :1, None]


def of_the_chunk(view: View) -> np.ndarray:
    """The keys (b, 1, keys) that are the chunk's own tokens."""
    return view.positions[:, None] >= first(view)


def answer(
    inputs: Inputs,
    seen: Seen = lambda view, n: view.mask,
    features: Callable[[View, int], Mapping[str, Any]] | None = None,
    values: Callable[[View], np.ndarray] | None = None,
    read: Callable[[View, int], View] = lambda view, n: view,
    turns: Turns = lambda view: (view.at, view.positions),
) -> Mapping[str, np.ndarray]:
    """The output of chunks with other masks, features, values (B, Hkv, keys, Dv), views, or positions by
    which queries and keys are rotated."""
    s, turn = inputs.sizes, rotation(inputs.case)
    out = np.zeros((s.B, s.H, s.Lq, s.Dv))
    for n, each in enumerate(views(inputs.case)):
        view = read(each, n)
        v = view.gathered(inputs.value) if values is None else values(view)
        own = view.features(inputs.features) if features is None else features(view, n)
        q, k = view.queries(inputs.query), view.gathered(inputs.key)
        if turn is not None:
            leaves = (Leaf(NO_ROUNDING, Bounded.exact(x.astype(float))) for x in (q, k))
            ats = zip(leaves, turns(view), strict=True)
            q, k = (turned(leaf, at, turn).output.value for leaf, at in ats)
        operands = q, k, v
        mask = seen(view, n)[:, None]
        bias = view.bias(inputs.bias)
        made = attention(*operands, mask=mask, bias=bias, scale=inputs.scale, features=own)
        view.put(out, np.asarray(made.output, float))
    return {"output": out}


def aligned(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return np.broadcast_to((rows - first(view) >= keys) & (keys >= 0), view.mask.shape)


def whole_chunk(view: View, n: int) -> np.ndarray:
    later = of_the_chunk(view) & (first(view) > 0)
    return view.mask | np.broadcast_to(later, view.mask.shape)


def early(view: View, n: int) -> np.ndarray:
    rows, keys = positions(view)
    return view.mask & (rows - (first(view) > 0) >= keys)


def own_chunk(view: View, n: int) -> np.ndarray:
    return view.mask & of_the_chunk(view)


def frozen(inputs: Inputs) -> Seen:
    """Of what arrives later than the first chunk only a chunk's own tokens are seen."""
    arrived = next(chunk.count for chunk in actions(inputs.case) if isinstance(chunk, Chunk))

    def seen(view: View, n: int) -> np.ndarray:
        return view.mask & ((view.positions[:, None] < arrived) | of_the_chunk(view))

    return seen


def narrowed(inputs: Inputs, less: int, decoding: bool) -> Seen:
    """A window with fewer keys, in steps of one token (`decoding`) or in longer chunks alone."""
    left = inputs.case.option("left")

    def seen(view: View, n: int) -> np.ndarray:
        rows, keys = positions(view)
        if left is None or (rows.shape[1] == 1) != decoding:
            return view.mask
        wide = (rows >= keys) & (keys >= 0) & (rows - keys <= left - less)
        return np.broadcast_to(wide, view.mask.shape)

    return seen


def without(inputs: Inputs, name: str, where: Callable[[View, int], bool]) -> Mapping[str, Any]:
    """The answer without a feature in some chunks."""

    def features(view: View, n: int) -> Mapping[str, Any]:
        own = view.features(inputs.features)
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


def of_all(prefix: str) -> Callable[[str], str | None]:
    """Operations of some samples as operations of all."""
    return lambda word: word.partition("of")[0] if word.startswith(prefix) else word


def one_document(inputs: Inputs) -> Inputs:
    """The inputs if every sample is one document."""

    def words(word: str) -> str:
        count, *of = word.partition("of")
        return "".join([str(sum(map(int, count.split("+")))) if "+" in count else count, *of])

    return other_script(inputs, words)


def begun_earlier(inputs: Inputs) -> Seen:
    """Tokens of a document that began in an earlier chunk attend all earlier documents."""
    together = [view.mask for view in views(one_document(inputs).case)]

    def seen(view: View, n: int) -> np.ndarray:
        earlier = np.arange(view.chunk.count) < min(view.chunk.documents, default=view.chunk.count)
        return np.where(earlier[:, None], together[n], view.mask)

    return seen


def kept_as(nodes: Callable[[str], str]) -> Callable[[str], str | None]:
    """Other nodes whose paths are kept."""
    return lambda word: f"keep{nodes(word[4:])}" if word.startswith("keep") else word


def drafted(number: int, view: View, n: int) -> np.ndarray:
    """The mask with another one of `of_tree` among the nodes of a tree."""
    mask = view.mask.copy()
    if view.tree is not None:
        count = view.chunk.count
        mask[:, :, -count:] = of_tree(view.tree, count)[number][0]
    return mask


def among(inputs: Inputs) -> Iterator[Guess]:
    """Other masks among the nodes of a tree, in every tree of the script."""
    for chunk in actions(inputs.case):
        if isinstance(chunk, Chunk) and chunk.tree is not None:
            for number, (_, sentence, hint) in enumerate(of_tree(chunk.tree, chunk.count)):
                yield partial(answer, inputs, partial(drafted, number)), sentence, "mask", hint
            return


def first_nodes(inputs: Inputs) -> Mapping[str, np.ndarray]:
    """The answer if of a tree the first nodes stay, as many as the path has."""
    s, tables, last = inputs.sizes, [], None
    table = np.tile(np.arange(s.Lk), (s.B, 1))  # the token that is read for a token
    for action in actions(inputs.case):
        if isinstance(action, Chunk) and action.asked:
            tables.append(table.copy())
            last = action
        if isinstance(action, Keep):
            assert last is not None
            for b, start, path in zip(action.own, last.starts, action.paths, strict=True):
                for n, node in enumerate(path):
                    table[b, start + node] = start + n

    def read(view: View, n: int) -> View:
        return replace(view, places=tables[n][view.samples, view.places])

    return answer(inputs, read=read)


def returned(word: str) -> str:
    """A reordering, the other way round: sample `samples[n]` goes on with the history of sample n."""
    if not word.startswith("pick"):
        return word
    order = [int(n) for n in word[4:]]
    inverse = [order.index(n) if n in order else n for n in range(len(order))]
    return f"pick{''.join(map(str, inverse))}"


def of_rotation(inputs: Inputs) -> tuple[Guess, ...]:
    """Rotations by other positions."""
    case, s = inputs.case, inputs.sizes
    if rotation(case) is None:
        return ()
    other = {"halves": "interleaved", "interleaved": "halves"}[case.option("rotary")]
    place, slots = np.zeros((s.B, s.Lk), int), capacity(case)  # in its chunk
    for chunk in actions(case):
        if isinstance(chunk, Chunk):
            for b, start in zip(chunk.own, chunk.starts, strict=True):
                place[b, start : start + chunk.count] = chunk.depths
    padding = paddings(case)[:, 0]

    def of_chunks(view: View) -> tuple[np.ndarray, np.ndarray]:
        found = place[view.samples, view.places]
        return found[:, -view.chunk.count :], found

    def arrived(view: View) -> tuple[np.ndarray, np.ndarray]:
        return view.places[:, -view.chunk.count :], view.places

    def again(view: View) -> tuple[np.ndarray, np.ndarray]:
        return view.at, np.where(of_the_chunk(view)[:, 0], 1, 2) * view.positions

    ways: tuple[tuple[Turns, str, str], ...] = (
        (of_chunks, "The positions of a rotation begin at 0 in every chunk.",
         "`arange(chunk)` without the length of the cache"),
        (lambda view: (of_chunks(view)[0], view.positions),
         "Keys are rotated by their positions, and queries by their places in the chunk.", ""),
        (lambda view: (view.at % slots, view.positions % slots),
         "Positions of a rotation begin at 0 again once the ring went round.",
         "the slot of a token for its position"),
        (lambda view: (view.at + view.chunk.count, view.positions),
         "Queries are rotated by positions behind their chunk.",
         "`offset` read after the update of the cache"),
        (arrived, "The positions of a rotation count tokens that have left the cache, too.",
         "an offset that no rollback moves back"),
        (lambda view: (view.at - padding[view.of][:, None], view.positions),
         "Queries are rotated by positions behind the left padding, and keys by their slots.", ""),
        (again, "Keys in the cache are rotated again when they are read.", ""),
    )  # fmt: skip
    return (
        (lambda: inputs.replace(rotary="none"), "Nothing is rotated.", "rotary", ""),
        (lambda: inputs.replace(rotary=other),
         f"The pairs of a rotation are {other}, expected {case.option('rotary')}.", "rotary", ""),
        *((lambda way=way: answer(inputs, turns=way), sentence, "rotary", hint)
          for way, sentence, hint in ways),
    )  # fmt: skip


def of_cached(inputs: Inputs) -> Iterator[Another]:
    """Other scripts, masks, windows, features and scales."""
    own, trees = np.arange(inputs.sizes.B)[:, None], "keep" in "".join(inputs.case.option("script"))
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
        *among(inputs),
        (lambda: answer(inputs, features=lambda view, n: inputs.features)
         if "alibi_slopes" in inputs.arrays else inputs,
         "Distances in a tree count nodes, and not their depths.", "scores", "`arange(n)` as positions"),
        (lambda: other_script(inputs, kept_as(lambda nodes: nodes[:1])),
         "All samples keep the path of sample 0.", "cache", "`paths[0]`"),
        (lambda: first_nodes(inputs) if trees else inputs,
         "Of a tree the first nodes stay, as many as the path has.", "cache",
         "`cache[: length + accepted]`"),
        (lambda: other_script(inputs, of_all("reset")), "A reset of some samples is one of all.",
         "cache", "`length.zero_()`"),
        (lambda: other_script(inputs, of_all("back")), "A rollback of some samples is one of all.",
         "cache", ""),
        (lambda: inputs.replace(padding=None), "Left padding is attended.", "mask", ""),
        (lambda: one_document(inputs), "Tokens attend earlier documents of their sample.", "mask", ""),
        (lambda: answer(inputs, begun_earlier(inputs)) if has_documents(inputs.case) else inputs,
         "Later chunks of a document attend the documents before it.", "mask",
         "documents that are found in the positions of a chunk"),
        (lambda: other_script(inputs, dropped("back")), "Rollbacks do nothing.", "cache", ""),
        (lambda: other_script(inputs, back(-1)), "Of tokens that are taken back one stays.", "cache",
         "`[: length - n + 1]`"),
        (lambda: other_script(inputs, back(1)), "One token too many is taken back.", "cache", ""),
        (lambda: other_script(inputs, dropped("reset")), "Resets do nothing.", "cache", ""),
        (lambda: other_script(inputs, dropped("pick")), "Samples are not reordered.", "cache", ""),
        (lambda: other_script(inputs, returned), "Samples are reordered the other way round.", "cache",
         "`cache[order] = cache` for `cache[order]`"),
        (lambda: answer(inputs, values=lambda view: np.moveaxis(
            inputs.value[own[view.of] + 0 * view.samples, :, view.places], 1, 2)),
         "Keys are reordered, and values are not.", "cache", ""),
        *of_rotation(inputs),
        of_softcap(inputs),
        (lambda: without(inputs, "softcap", lambda view, n: view.mask.shape[1] == 1),
         "Steps of one token have no softcap.", "scores", ""),
        (lambda: inputs.replace(sinks=None), "The sinks are ignored.", "sinks", ""),
        *(
            # n sinks with one logit weigh as much as one whose logit is greater by log n
            (lambda n=n: inputs.replace(sinks=inputs.arrays["sinks"] + np.log(n))
             if "sinks" in inputs.arrays else inputs,
             f"The sinks count {n} times.", "sinks", "sinks in every part of the keys; they count once")
            for n in COUNTS
        ),
        (lambda: without(inputs, "sinks", lambda view, n: n > 0), "Only the first chunk has sinks.",
         "sinks", ""),
        (lambda: inputs.replace(bias=None), "The bias is ignored.", "scores", ""),
        (lambda: inputs.replace(alibi_slopes=None), "The slopes are ignored.", "scores", ""),
        *of_scale(inputs),
    )  # fmt: skip
    yield from made(inputs, guesses)
