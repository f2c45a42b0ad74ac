"""The actions of a script of attention with a cache: values, and their words in ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from attention_conformance.suite.spec.masks import Tree

SUFFIX = r"(?:of\d+)?"
ACTION = rf"(?:\d+(?:\+\d+)*{SUFFIX}|back\d+{SUFFIX}|reset{SUFFIX}|pick\d+|tree[1-9]+{SUFFIX}|keep[\dx]+)"

Samples = tuple[int, ...] | None
"""Some samples; None for all."""

Concat = Callable[[list[Any], int], Any]


class IdWord:
    """Base class of actions: `repr` is the word in an id, since digests of inputs contain options."""

    def __repr__(self) -> str:
        return repr(str(self))


def digits(numbers: Iterable[int]) -> str:
    """Returns the text of numbers below 10, one digit each; x for -1."""
    return "".join("x" if n < 0 else str(n) for n in numbers)


def samples_suffix(samples: Samples) -> str:
    """Returns the end of an action's word that names its samples, such as "of02"; "" for all samples."""
    return "" if samples is None else f"of{digits(samples)}"


@dataclass(frozen=True, repr=False)
class Chunk(IdWord):
    """Tokens that arrive, `count` for each of the samples, and their queries.

    - `documents`: the numbers, within the chunk, of tokens that begin a document.
    - `tree`: the mask of the tokens if they are a tree.
    - `starts`, `before`: the index of the first token of each of the samples, and the number of tokens of
      every sample without a query. Only `scripts.play_script` sets them.
    """

    count: int
    samples: Samples = None
    documents: tuple[int, ...] = ()
    tree: Tree | None = None
    starts: tuple[int, ...] = ()
    before: int = 0

    def __str__(self) -> str:
        counts = (last - first for first, last in pairwise((0, *self.documents, self.count)))
        body = "+".join(map(str, counts)) if self.tree is None else self.tree.token
        return body + samples_suffix(self.samples)

    @property
    def has_queries(self) -> bool:
        """True if the chunk has queries, and so rows in the output."""
        return min(self.starts) >= self.before

    @property
    def sample_ids(self) -> Sequence[int]:
        """The numbers of the samples that the tokens arrive for."""
        return range(len(self.starts)) if self.samples is None else self.samples

    @property
    def depths(self) -> np.ndarray:
        """The positions of the tokens, relative to the first token, (count,): depths in a tree."""
        return np.arange(self.count) if self.tree is None else self.tree.depths(self.count)

    @property
    def rows(self) -> np.ndarray:
        """The index of each token's row in the output, (b, count): its place in the sample minus
        `before`. Negative for tokens without a query."""
        return np.array(self.starts)[:, None] - self.before + np.arange(self.count)

    def biases(self, bias: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Returns the part (b, H, tokens, keys) of a bias (B or 1, H, Lq, Lk), whose columns are
        positions.

        `keys` (b, keys): the positions of the keys. Negative positions and tokens without a query get
        arbitrary numbers.
        """
        sample_ids = np.array(self.sample_ids)[:, None] if bias.shape[0] > 1 else 0
        chunk_bias = np.moveaxis(bias[sample_ids, :, np.maximum(self.rows, 0)], 2, 1)
        return np.take_along_axis(chunk_bias, np.maximum(keys, 0)[:, None, None], 3)

    def cut(self, array: Any, concat: Concat, axis: int = 2, queries: bool = False) -> Any:
        """Returns the part of an array that belongs to the chunk. The array has samples along axis 0, and
        tokens along `axis`, or with `queries` only tokens with a query. `concat(arrays, axis)`: the array
        library's concatenation."""
        starts = [start - self.before * queries for start in self.starts]
        samples = slice(len(starts))
        indices = [
            (samples, *(slice(None),) * (axis - 1), slice(n, n + self.count)) for n in starts
        ]
        if self.samples is None and len(set(starts)) == 1:
            return array[indices[0]]
        sample_parts = zip(self.sample_ids, indices, strict=True)
        return concat([array[b : b + 1][part] for b, part in sample_parts], 0)


@dataclass(frozen=True, repr=False)
class Crop(IdWord):
    """The last `count` tokens leave the cache."""

    count: int
    samples: Samples = None

    def __str__(self) -> str:
        return f"back{self.count}{samples_suffix(self.samples)}"


@dataclass(frozen=True, repr=False)
class Reset(IdWord):
    """All tokens leave the cache."""

    samples: Samples = None

    def __str__(self) -> str:
        return f"reset{samples_suffix(self.samples)}"


@dataclass(frozen=True, repr=False)
class Pick(IdWord):
    """Sample n goes on with the history of sample `samples[n]`."""

    samples: tuple[int, ...]

    def __str__(self) -> str:
        return f"pick{digits(self.samples)}"


@dataclass(frozen=True, repr=False)
class Keep(IdWord):
    """Each sample of a tree keeps one node with its ancestors; all other nodes leave the cache.

    - `nodes`: one node for all samples, or a node for each sample of the tree; -1 for no node.
    - `paths`, `count`, `samples`: the nodes that each of the samples keeps, of the last `count` tokens.
      Only `scripts.play_script` sets them.
    """

    nodes: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...] = ()
    count: int = 0
    samples: Samples = None

    def __str__(self) -> str:
        return f"keep{digits(self.nodes)}"

    @property
    def sample_ids(self) -> Sequence[int]:
        """The numbers of the samples of the tree."""
        return range(len(self.paths)) if self.samples is None else self.samples

    @property
    def table(self) -> np.ndarray:
        """The kept nodes of each sample, int32 (b, longest path), with -1 behind shorter paths."""
        longest = max(map(len, self.paths))
        padded = [(*path, *(-1,) * (longest - len(path))) for path in self.paths]
        return np.array(padded, np.int32).reshape(len(self.paths), longest)


Action = Chunk | Crop | Reset | Pick | Keep


@lru_cache(maxsize=1024)
def action_of(word: str) -> Action:
    """Returns the action of a word in an id, such as "back2of1"."""
    body, _, sample_digits = word.partition("of")
    samples = tuple(map(int, sample_digits)) or None
    name = body.rstrip("0123456789x+")
    numbers = body.removeprefix(name)
    if not name:
        *document_starts, count = accumulate(map(int, numbers.split("+")))
        return Chunk(count, samples, tuple(document_starts))
    if name == "reset":
        return Reset(samples)
    if name == "back":
        return Crop(int(numbers), samples)
    node_numbers = tuple(-1 if n == "x" else int(n) for n in numbers)
    if name == "tree":
        return Chunk(len(node_numbers), samples, tree=Tree(node_numbers))
    return Pick(node_numbers) if name == "pick" else Keep(node_numbers)


def script_of(text: str) -> tuple[Action, ...]:
    """Returns the actions of a script such as "5.back2.1"."""
    return tuple(map(action_of, text.split(".")))


def arrivals(script: Iterable[Action], samples: int) -> list[int]:
    """Returns the number of tokens that arrive for each sample in a script."""
    chunks = [action for action in script if isinstance(action, Chunk)]
    return [sum(x.count for x in chunks if b in (x.samples or (b,))) for b in range(samples)]
