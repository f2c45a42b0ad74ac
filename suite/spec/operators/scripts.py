"""Scripts of attention with a cache: chunks and operations, and what they leave in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.rotary import BASE, Rotation
from attention_conformance.suite.spec.vocabulary import OPERANDS

OF = r"(?:of\d+)?"
ACTION = rf"(?:\d+(?:\+\d+)*{OF}|back\d+{OF}|reset{OF}|pick\d+|tree[1-9]+{OF}|keep[\dx]+)"

SPARE = 2
"""Slots beyond the largest number of tokens, if a case has no capacity."""

Samples = tuple[int, ...] | None
"""Some samples; None for all."""

Concat = Callable[[list[Any], int], Any]


@dataclass(frozen=True)
class Chunk:
    """Tokens that arrive, `count` for each of the samples, and their queries.

    - `starts`: the first token of each of the samples.
    - `before`: the tokens of every sample that have no query.
    - `tree`: the mask of the tokens if they are a tree.
    - `documents`: the numbers, within the chunk, of tokens that begin a document.
    """

    samples: Samples
    starts: tuple[int, ...]
    count: int
    before: int
    tree: Tree | None = None
    documents: tuple[int, ...] = ()

    @property
    def asked(self) -> bool:
        """True if the chunk's rows are asked."""
        return min(self.starts) >= self.before

    @property
    def own(self) -> Sequence[int]:
        """The samples as numbers."""
        return range(len(self.starts)) if self.samples is None else self.samples

    @property
    def depths(self) -> np.ndarray:
        """The positions of the tokens (count,), counted from the first one."""
        return np.arange(self.count) if self.tree is None else self.tree.depths(self.count)

    @property
    def rows(self) -> np.ndarray:
        """The rows of the output (b, count); negative for tokens without a query."""
        return np.array(self.starts)[:, None] - self.before + np.arange(self.count)

    def biases(self, bias: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The part (b, H, tokens, keys) of a bias (B or 1, H, Lq, Lk) for keys at positions (b, keys).

        The columns of the bias are positions. Negative positions and tokens without a query have any
        numbers.
        """
        of = np.array(self.own)[:, None] if bias.shape[0] > 1 else 0
        own = np.moveaxis(bias[of, :, np.maximum(self.rows, 0)], 2, 1)
        return np.take_along_axis(own, np.maximum(keys, 0)[:, None, None], 3)

    def cut(self, array: Any, concat: Concat, axis: int = 2, queries: bool = False) -> Any:
        """The chunk's tokens, or their queries, in an array with samples along axis 0 and tokens along
        `axis`."""
        starts = [start - self.before * queries for start in self.starts]
        samples = slice(len(starts))
        parts = [(samples, *(slice(None),) * (axis - 1), slice(n, n + self.count)) for n in starts]
        if self.samples is None and len(set(starts)) == 1:
            return array[parts[0]]
        of = zip(self.own, parts, strict=True)
        return concat([array[b : b + 1][part] for b, part in of], 0)


@dataclass(frozen=True)
class Crop:
    """The last `count` tokens leave the cache."""

    count: int
    samples: Samples = None


@dataclass(frozen=True)
class Reset:
    """All tokens leave the cache."""

    samples: Samples = None


@dataclass(frozen=True)
class Pick:
    """Sample n goes on with the history of sample `samples[n]`."""

    samples: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """Of the last `count` tokens, a tree, the n-th of the samples keeps the nodes `paths[n]`."""

    paths: tuple[tuple[int, ...], ...]
    count: int
    samples: Samples = None

    @property
    def own(self) -> Sequence[int]:
        """The samples as numbers."""
        return range(len(self.paths)) if self.samples is None else self.samples

    @property
    def table(self) -> np.ndarray:
        """The nodes (b, longest path), int32, with -1 behind shorter paths."""
        longest = max(map(len, self.paths))
        padded = [(*path, *(-1,) * (longest - len(path))) for path in self.paths]
        return np.array(padded, np.int32).reshape(len(self.paths), longest)


Action = Chunk | Crop | Reset | Pick | Keep


@dataclass(frozen=True)
class Held:
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
        """The index of a chunk's tokens (b, count) in these arrays, after the chunk has joined."""
        own = np.array(chunk.own)[:, None]
        return own, self.lengths[own] - chunk.count + np.arange(chunk.count)


def actions(case: Case) -> tuple[Action, ...]:
    """The script of a case. Tokens that are in the cache before the script begins are a first chunk.
    Samples that are picked behind a tree of all samples keep paths of this tree.

    Raises ValueError for a path that is kept of no tree, and for tokens of samples that do not exist.
    """
    return _actions(case.option("script") or (), case.sizes.B, case.sizes.Lk - case.sizes.Lq)


@lru_cache(maxsize=1024)
def _actions(script: tuple[str, ...], B: int, before: int) -> tuple[Action, ...]:
    return tuple(_read(script, B, before))


def _read(script: tuple[str, ...], B: int, before: int) -> Iterator[Action]:
    last, following = None, [before] * B
    if before:
        yield Chunk(None, (0,) * B, before, before)
    for word in script:
        body, _, of = word.partition("of")
        samples = tuple(map(int, of)) if of else None
        chunk = None
        if body == "reset":
            yield Reset(samples)
        elif body.startswith("back"):
            yield Crop(int(body[4:]), samples)
        elif body.startswith("pick"):
            yield Pick(tuple(-1 if n == "x" else int(n) for n in body[4:]))
            if last is not None and last.tree is not None and last.samples is None:
                chunk = last  # the branches may keep paths of the tree
        elif body.startswith("keep"):
            wrong = ValueError(f"keep has a node of the tree before it for each sample: {word}")
            if last is None or last.tree is None:
                raise wrong
            nodes = body[4:] if len(body) > 5 else body[4:] * len(last.own)
            numbers = [int(node) for node in nodes if node != "x"]
            if len(nodes) != len(last.own) or max(numbers, default=0) >= last.count:
                raise wrong
            paths = [np.flatnonzero(path).tolist() for path in last.tree.paths(last.count)]
            kept = (() if node == "x" else tuple(paths[int(node)]) for node in nodes)
            yield Keep(tuple(kept), last.count, last.samples)
        else:
            drafted = body.removeprefix("tree")
            tree = None if drafted == body else Tree(tuple(map(int, drafted)))
            ends = np.cumsum([int(n) for n in body.split("+")] if tree is None else len(drafted))
            count, documents = int(ends[-1]), tuple(ends[:-1].tolist())
            own = range(B) if samples is None else samples
            if max(own) >= B:
                raise ValueError(f"samples are numbers below {B}: {'.'.join(script)}")
            starts = tuple(following[n] for n in own)
            chunk = Chunk(samples, starts, count, before, tree, documents)
            for n in own:
                following[n] += count
            yield chunk
        last = chunk


def arrivals(script: Iterable[str], samples: int) -> list[int]:
    """The number of tokens that each sample takes in a script."""
    arrived = [0] * samples
    for word in script:
        body, _, of = word.partition("of")
        nodes = body.removeprefix("tree")
        if nodes[:1].isdigit():
            count = sum(map(int, nodes.split("+"))) if nodes == body else len(nodes)
            for b in map(int, of) if of else range(samples):
                arrived[b] += count
    return arrived


def played(case: Case, lenient: bool = False) -> tuple[tuple[Action, Held], ...]:
    """Each action with the cache after it; the arrays are read-only.

    Raises ValueError for a rollback of more tokens than there are, and for samples that do not exist,
    unless `lenient`: then all tokens go back, samples that do not exist are left out, and a history that
    does not exist is that of the nearest sample.
    """
    padding = tuple(map(tuple, paddings(case).tolist()))
    return _played(actions(case), padding, lenient)


@lru_cache(maxsize=1024)
def _played(
    actions: tuple[Action, ...], paddings: tuple[tuple[int, ...], ...], lenient: bool
) -> tuple[tuple[Action, Held], ...]:
    tokens = [np.zeros((4, 0), int) for _ in paddings]  # the arrays of `Held`
    prompts = [iter(padding) for padding in paddings]
    begin = [next(padding) for padding in prompts]
    history = []

    def existing(samples: Samples) -> Sequence[int]:
        everyone = range(len(tokens))
        some = everyone if samples is None else samples
        if not lenient and any(n not in everyone for n in some):
            raise ValueError(f"samples {some} of a batch of {len(everyone)}")
        return [n for n in some if n in everyone]

    for action in actions:
        match action:
            case Chunk(starts=starts, count=count, documents=documents):
                for b, start in zip(action.own, starts, strict=True):
                    length, places = tokens[b].shape[1], np.arange(count)
                    begins = np.full(count, tokens[b][3, -1] if length else begin[b])
                    for first in documents:
                        begins[first:] = length + first
                    new = [0 * places + b, start + places, length + action.depths, begins]
                    tokens[b] = np.concatenate([tokens[b], new], 1)
            case Crop(count=count, samples=samples):
                for b in existing(samples):
                    length = tokens[b].shape[1]
                    if not (lenient or 0 <= count <= length):
                        raise ValueError(f"a rollback of {count} tokens, and there are {length}")
                    tokens[b] = tokens[b][:, : max(length - count, 0)]
            case Reset(samples=samples):
                for b in existing(samples):
                    tokens[b], begin[b] = tokens[b][:, :0], next(prompts[b], 0)
            case Pick(samples=order):
                existing(order)
                tokens = [tokens[min(max(n, 0), len(tokens) - 1)] for n in order]
            case Keep(paths=paths, count=count):
                for b, path in zip(action.own, paths, strict=True):
                    first = tokens[b].shape[1] - count
                    kept = [*range(first), *(first + node for node in path)]
                    tokens[b] = tokens[b][:, kept]
        history.append((action, Held(*_padded(tokens))))
    return tuple(history)


def _padded(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """The tokens (4, n) of samples as one array (4, B, longest), with positions of -1 behind."""
    longest = max((x.shape[1] for x in tokens), default=0)
    out = np.zeros((4, len(tokens), longest), int)
    out[2] = -1
    for b, x in enumerate(tokens):
        out[:, b, : x.shape[1]] = x
    out.flags.writeable = False
    return out


def joined(parts: Sequence[tuple[Chunk, Any]], concat: Concat, axis: int = 2) -> Any:
    """The rows of chunks as one array, with samples along axis 0 and rows along `axis`: the rows of every
    sample in the order of its own chunks."""
    if all(chunk.samples is None for chunk, _ in parts):
        return concat([rows for _, rows in parts], axis)
    samples = sorted({b for chunk, _ in parts for b in chunk.own})
    rows_of = [
        [rows[n : n + 1] for chunk, rows in parts for n, of in enumerate(chunk.own) if of == b]
        for b in samples
    ]
    return concat([concat(own, axis) for own in rows_of], 0)


def held(case: Case) -> int:
    """The largest number of tokens of a sample in the cache, as if nothing left the window."""
    return max(after.positions.shape[1] for _, after in played(case, lenient=True))


def differ(case: Case) -> bool:
    """True if some samples step alone, or if samples differ in their number of tokens."""
    alone = any("of" in word for word in case.option("script"))
    lengths = (after.lengths.tolist() for _, after in played(case, lenient=True))
    return alone or any(len({*each}) > 1 for each in lengths)


def paddings(case: Case) -> np.ndarray:
    """The left padding (B, prompts) of each sample: of its first prompt, of that after its first reset,
    and so on. Later prompts have none."""
    samples = case.sizes.B
    return np.array(case.option("padding") or (0,) * samples).reshape(-1, samples).T


def rotation(case: Case) -> Rotation | None:
    """The rotation of queries and keys by their positions, or None."""
    pairs, base = case.option("rotary"), case.option("base") or BASE
    return None if pairs == "none" else Rotation(case.sizes.D, pairs != "halves", base, "none")


def with_other_options(inputs: Inputs) -> Inputs:
    """The inputs with twice each number among the options, and half of each array that is no operand."""
    case = inputs.case
    numbers = {option.name: case.option(option.name) for option in inputs.operator.options}
    doubled = {name: 2 * number for name, number in numbers.items() if isinstance(number, float)}
    halved = {name: array / 2 for name, array in inputs.arrays.items() if name not in OPERANDS}
    return inputs.replace(**doubled, **halved)


def has_documents(case: Case) -> bool:
    """True if a sample has several documents."""
    return any("+" in word for word in case.option("script"))


def capacity(case: Case) -> int:
    """The number of slots of the cache."""
    given: int | None = case.option("capacity")
    return held(case) + SPARE if given is None else given


def unwritten(case: Case, *shape: int) -> np.ndarray:
    """What lies in slots that no token was written into: large numbers of both signs."""
    return np.resize(case.dtype.large * np.array([1.0, -1.0, -1.0]), shape)


def is_ring(case: Case) -> bool:
    """True if there are fewer slots than tokens."""
    return capacity(case) < held(case)


def freed(case: Case) -> np.ndarray:
    """The tokens that leave the cache by an operation, boolean (B, Lk)."""
    s = case.sizes
    gone, before = np.zeros((s.B, s.Lk), bool), None
    for action, after in played(case):
        if before is not None and not isinstance(action, Chunk | Pick):
            for cache, left in ((before, True), (after, False)):
                sample, slot = np.nonzero(cache.positions >= 0)
                gone[cache.samples[sample, slot], cache.places[sample, slot]] = left
        before = after
    return gone
