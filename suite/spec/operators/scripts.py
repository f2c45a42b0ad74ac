"""Scripts of attention with a cache: chunks and operations, and what they leave in the cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import BASE, Rotation
from attention_conformance.suite.spec.operators.steps import (
    Action,
    Chunk,
    Concat,
    Crop,
    Keep,
    Pick,
    Reset,
)
from attention_conformance.suite.spec.vocabulary import OPERANDS

SPARE = 2
"""Slots beyond the largest number of tokens, if a case has no capacity."""


@dataclass(frozen=True)
class Contents:
    """The tokens in a cache, in the order in which they joined it.

    - `samples`, `places`, `positions` (B, n): slot j of sample b holds token `places[b, j]` of sample
      `samples[b, j]`; its position is -1 behind the last token.
    - `begins` (B, n): the position of the first token that each token attends without a window: behind
      left padding, or at the beginning of its document.
    """

    samples: np.ndarray
    places: np.ndarray
    positions: np.ndarray
    begins: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens (B,)."""
        return np.asarray((self.positions >= 0).sum(1))

    def newest(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """Returns the index (samples, slots) of a chunk's tokens in these arrays, after the chunk has
        joined the cache. Both parts broadcast to (b, count)."""
        sample_ids = np.array(chunk.sample_ids)[:, None]
        return sample_ids, self.lengths[sample_ids] - chunk.count + np.arange(chunk.count)


def actions(case: Case) -> tuple[Action, ...]:
    """Returns the actions of `play_script` with `lenient`, for scripts that may be invalid."""
    return tuple(action for action, _ in play_script(case, lenient=True))


def play_script(case: Case, lenient: bool = False) -> tuple[tuple[Action, Contents], ...]:
    """Returns each action of a script, with the contents of the cache after it (read-only). Tokens in the
    cache before the script are a first chunk.

    Raises ValueError for an invalid script. With `lenient`, a rollback of too many tokens removes all,
    samples that do not exist are left out, and in place of a history that does not exist stands that of
    the nearest sample.
    """
    prompts = tuple(map(tuple, paddings(case).tolist()))
    arguments = case.option("script"), case.sizes.Lk - case.sizes.Lq, prompts
    try:
        return _played(*arguments)
    except ValueError as error:
        if lenient:
            return _played(*arguments, lenient=True)
        raise ValueError(f"{error}: {case.id}") from None


PADDED = "every prompt has a token behind its left padding"


@lru_cache(maxsize=4096)
def _played(
    script: tuple[Action, ...],
    before: int,
    prompts: tuple[tuple[int, ...], ...],
    lenient: bool = False,
) -> tuple[tuple[Action, Contents], ...]:
    """Returns `play_script` of a script after `before` tokens. `prompts`: the left paddings of each
    sample."""
    B, history = len(prompts), list[tuple[Action, Contents]]()
    tokens, arrived = [np.zeros((4, 0), int)] * B, [0] * B  # the arrays of `Contents`
    later_prompts = [iter(own_paddings) for own_paddings in prompts]
    padding = [next(own_paddings) for own_paddings in later_prompts]
    tree: Chunk | None = None  # the last chunk, while it is a tree of which no path is kept

    def expect(is_valid: bool, message: str) -> None:
        if not is_valid and not lenient:
            raise ValueError(message)

    for action in (Chunk(before), *script) if before else script:
        samples = range(B) if action.samples is None else action.samples
        chosen = [b for b in samples if 0 <= b < B]
        expect(len(chosen) == len(samples), f"samples are numbers below {B}")
        is_valid = isinstance(action, Pick) or len({*chosen}) == len(chosen)
        expect(is_valid, "a sample steps once at a time")
        is_valid = tree is None or _may_follow_tree(tree, action, chosen)
        expect(is_valid, "after a tree stands keep, reset, or a rollback of all its nodes")
        match action:
            case Chunk(count=count, documents=documents):
                action = replace(action, starts=tuple(arrived[b] for b in chosen), before=before)
                ends, depths = (*documents, count), action.depths
                is_valid = count > 0 and len({*ends}) == len(ends)
                expect(is_valid, "a chunk has one token or more in each document")
                for b in chosen:
                    length, begin = tokens[b].shape[1], padding[b]
                    expect(action.tree is None or length >= begin, PADDED)
                    begins = np.full(count, tokens[b][3, -1] if length else begin)
                    for first in documents:
                        begins[first:] = length + first
                    token_ids = arrived[b] + np.arange(count)
                    new = [np.full(count, b), token_ids, length + depths, begins]
                    tokens[b], arrived[b] = np.concatenate([tokens[b], new], 1), arrived[b] + count
            case Crop(count=count):
                for b in chosen:
                    remaining = tokens[b].shape[1] - count
                    is_valid = count >= 0 and remaining >= padding[b]
                    expect(is_valid, f"there are not {count} tokens to take back")
                    tokens[b] = tokens[b][:, : max(remaining, 0)]
            case Reset():
                for b in chosen:
                    expect(not tokens[b].shape[1] <= padding[b] > 0, PADDED)
                    tokens[b], padding[b] = tokens[b][:, :0], next(later_prompts[b], 0)
            case Pick(samples=order):
                expect(len(order) == B, f"pick has a number for each of {B} samples")
                nearest = [min(max(n, 0), B - 1) for n in order]
                tokens, padding = [tokens[n] for n in nearest], [padding[n] for n in nearest]
            case Keep():
                action = _with_paths(action, tree)
                for b, path in zip(action.sample_ids, action.paths, strict=True):
                    first = tokens[b].shape[1] - action.count
                    tokens[b] = tokens[b][:, [*range(first), *(first + node for node in path)]]
        if not isinstance(action, Pick):  # branches of a tree may keep paths of their own
            tree = action if isinstance(action, Chunk) and action.tree else None
        history.append((action, Contents(*_padded(tokens))))
    expect(not any(x.shape[1] <= n > 0 for x, n in zip(tokens, padding, strict=True)), PADDED)
    return tuple(history)


def _may_follow_tree(tree: Chunk, action: Action, samples: Collection[int]) -> bool:
    """Returns True if an action of these samples may follow the chunk `tree`, whose paths are not chosen
    yet."""
    if isinstance(action, Pick):
        return tree.samples is None
    is_rollback = isinstance(action, Crop) and action.count >= tree.count
    removes_tree = (isinstance(action, Reset) or is_rollback) and {*samples} >= {*tree.sample_ids}
    return isinstance(action, Keep) or removes_tree


def _with_paths(keep: Keep, chunk: Chunk | None) -> Keep:
    """Returns the action `keep` with the paths of its nodes in the tree `chunk`. Raises ValueError if the
    chunk is no tree, or lacks a node."""
    if chunk is not None and chunk.tree is not None:
        nodes = keep.nodes * (len(chunk.sample_ids) if len(keep.nodes) == 1 else 1)
        if len(nodes) == len(chunk.sample_ids) and max(nodes) < chunk.count:
            paths_of_nodes = chunk.tree.paths(chunk.count)
            paths = (np.flatnonzero(paths_of_nodes[n]).tolist() if n >= 0 else () for n in nodes)
            return Keep(keep.nodes, tuple(map(tuple, paths)), chunk.count, chunk.samples)
    raise ValueError(f"keep has a node of the tree before it for each sample: {keep}")


def _padded(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the tokens (4, n) of all samples as one array (4, B, longest), with the position -1 behind
    the last token of a sample. The first axis has the arrays of `Contents`."""
    longest = max((x.shape[1] for x in tokens), default=0)
    out = np.zeros((4, len(tokens), longest), int)
    out[2] = -1
    for b, x in enumerate(tokens):
        out[:, b, : x.shape[1]] = x
    out.flags.writeable = False
    return out


def concatenate_chunks(parts: Sequence[tuple[Chunk, Any]], concat: Concat, axis: int = 2) -> Any:
    """Returns the rows of all chunks as one array: samples along axis 0, and the rows of each sample
    along `axis`, in the order of its chunks. `parts`: each chunk with its rows."""
    if all(chunk.samples is None for chunk, _ in parts):
        return concat([rows for _, rows in parts], axis)
    samples = sorted({b for chunk, _ in parts for b in chunk.sample_ids})
    rows_of = [
        [rows[n : n + 1] for chunk, rows in parts for n, s in enumerate(chunk.sample_ids) if s == b]
        for b in samples
    ]
    return concat([concat(sample_rows, axis) for sample_rows in rows_of], 0)


def most_tokens(case: Case) -> int:
    """Returns the largest number of tokens that a sample ever has in a cache whose window removes
    none."""
    return max(after.positions.shape[1] for _, after in play_script(case, lenient=True))


def samples_differ(case: Case) -> bool:
    """Returns True if an action is of some samples only, or samples differ in their number of tokens."""
    history = play_script(case, lenient=True)
    has_partial_step = any(
        action.samples is not None and not isinstance(action, Pick) for action, _ in history
    )
    return has_partial_step or any(len({*after.lengths.tolist()}) > 1 for _, after in history)


def paddings(case: Case) -> np.ndarray:
    """Returns the left padding (B, prompts) of each sample's prompts: the first prompt, the prompt after
    the first reset, and so on. Later prompts have no padding."""
    samples = case.sizes.B
    return np.array(case.option("padding") or (0,) * samples).reshape(-1, samples).T


def rotation(case: Case) -> Rotation | None:
    """Returns the rotation of queries and keys by their positions; None without one."""
    pairs, base = case.option("rotary"), case.option("base") or BASE
    return None if pairs == "none" else Rotation(case.sizes.D, pairs != "halves", base, "none")


def with_other_options(inputs: Inputs) -> Inputs:
    """Returns the inputs with all float options doubled, and all arrays but query, key and value
    halved."""
    case = inputs.case
    values = {option.name: case.option(option.name) for option in inputs.operator.options}
    doubled = {name: 2 * value for name, value in values.items() if isinstance(value, float)}
    halved = {name: array / 2 for name, array in inputs.arrays.items() if name not in OPERANDS}
    return inputs.replace(**doubled, **halved)


def has_documents(case: Case) -> bool:
    """Returns True if a chunk of the script begins another document."""
    return any(isinstance(action, Chunk) and action.documents for action in case.option("script"))


def capacity(case: Case) -> int:
    """Returns the number of slots of the cache."""
    slots: int | None = case.option("capacity")
    return most_tokens(case) + SPARE if slots is None else slots


def unwritten_slots(case: Case, *shape: int) -> np.ndarray:
    """Returns an array of `shape` for slots into which no token was written: large numbers of both
    signs."""
    return np.resize(case.dtype.large * np.array([1.0, -1.0, -1.0]), shape)


def is_ring(case: Case) -> bool:
    """Returns True if the cache has fewer slots than a sample has tokens."""
    return capacity(case) < most_tokens(case)


def freed_tokens(case: Case) -> np.ndarray:
    """Returns, boolean (B, Lk), the tokens that a rollback, a reset or `keep` removes from the cache."""
    s = case.sizes
    is_freed, earlier = np.zeros((s.B, s.Lk), bool), None
    for action, after in play_script(case):
        if earlier is not None and not isinstance(action, Chunk | Pick):
            for cache, has_left in ((earlier, True), (after, False)):
                sample, slot = np.nonzero(cache.positions >= 0)
                is_freed[cache.samples[sample, slot], cache.places[sample, slot]] = has_left
        earlier = after
    return is_freed
