"""The actions of a script of attention with a cache: values, and their words in ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from attention_conformance.suite.spec.masks import Tree

OF = r"(?:of\d+)?"
ACTION = rf"(?:\d+(?:\+\d+)*{OF}|back\d+{OF}|reset{OF}|pick\d+|tree[1-9]+{OF}|keep[\dx]+)"

Samples = tuple[int, ...] | None
"""Some samples; None for all."""

Concat = Callable[[list[Any], int], Any]


class Written:
    """An action. Its representation is its word in an id, since digests of inputs contain options."""

    def __repr__(self) -> str:
        return repr(str(self))


def digits(numbers: Iterable[int]) -> str:
    """Numbers below 10 without anything between them, x for -1."""
    return "".join("x" if n < 0 else str(n) for n in numbers)


def suffix(samples: Samples) -> str:
    """The samples of an action, as at the end of its word."""
    return "" if samples is None else f"of{digits(samples)}"


@dataclass(frozen=True, repr=False)
class Chunk(Written):
    """Tokens that arrive, `count` for each of the samples, and their queries.

    - `documents`: the numbers, within the chunk, of tokens that begin a document.
    - `tree`: the mask of the tokens if they are a tree.
    - `starts`, `before`: the first token of each of the samples, and the tokens of every sample that have
      no query. Only chunks that are played have them.
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
        return body + suffix(self.samples)

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


@dataclass(frozen=True, repr=False)
class Crop(Written):
    """The last `count` tokens leave the cache."""

    count: int
    samples: Samples = None

    def __str__(self) -> str:
        return f"back{self.count}{suffix(self.samples)}"


@dataclass(frozen=True, repr=False)
class Reset(Written):
    """All tokens leave the cache."""

    samples: Samples = None

    def __str__(self) -> str:
        return f"reset{suffix(self.samples)}"


@dataclass(frozen=True, repr=False)
class Pick(Written):
    """Sample n goes on with the history of sample `samples[n]`."""

    samples: tuple[int, ...]

    def __str__(self) -> str:
        return f"pick{digits(self.samples)}"


@dataclass(frozen=True, repr=False)
class Keep(Written):
    """Of a tree each sample keeps a node and its ancestors.

    - `nodes`: the node of every sample, or that of each of the samples of the tree; -1 for none.
    - `paths`, `count`, `samples`: what each of the samples keeps of the last `count` tokens. Only actions
      that are played have them.
    """

    nodes: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...] = ()
    count: int = 0
    samples: Samples = None

    def __str__(self) -> str:
        return f"keep{digits(self.nodes)}"

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


@lru_cache(maxsize=1024)
def action_of(word: str) -> Action:
    """The action of a word in an id, such as "back2of1"."""
    body, _, of = word.partition("of")
    samples = tuple(map(int, of)) or None
    name = body.rstrip("0123456789x+")
    numbers = body.removeprefix(name)
    if not name:
        *ends, count = accumulate(map(int, numbers.split("+")))
        return Chunk(count, samples, tuple(ends))
    if name == "reset":
        return Reset(samples)
    if name == "back":
        return Crop(int(numbers), samples)
    each = tuple(-1 if n == "x" else int(n) for n in numbers)
    if name == "tree":
        return Chunk(len(each), samples, tree=Tree(each))
    return Pick(each) if name == "pick" else Keep(each)


def script_of(text: str) -> tuple[Action, ...]:
    """The actions of a script such as "5.back2.1"."""
    return tuple(map(action_of, text.split(".")))


def arrivals(script: Iterable[Action], samples: int) -> list[int]:
    """The number of tokens that each sample takes in a script."""
    chunks = [action for action in script if isinstance(action, Chunk)]
    return [sum(x.count for x in chunks if b in (x.samples or (b,))) for b in range(samples)]
