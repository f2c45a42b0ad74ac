"""The operations of textbook code in NumPy: each computes in float64 and rounds once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attention_conformance.backends._numpy.engine import Rounded, rounded
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.dtypes import CODES, DTYPES

FORMATS = {
    fmt.long_name: fmt for fmt in (*DTYPES.values(), CODES["e5m2"], CODES["e4m3"], CODES["int8"])
}
"""The formats to which textbook code casts. int4 codes lie in bytes, as int8 codes do."""


def rounding(function: Callable[..., Any]) -> Callable[..., Rounded]:
    """Returns `function` of NumPy arrays as a function of `Rounded`. Its result has the format of the
    first argument."""

    def rounded_function(x: Rounded, *further: Any) -> Rounded:
        return rounded(function, x.fmt, x, *further)

    return rounded_function


def softmax(x: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis; NaN if all scores are -inf."""
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def take(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns slices along the first axis. Raises IndexError for negative indices, which NumPy would
    count from the end."""
    if indices.min(initial=0) < 0:
        raise IndexError(f"an index is 0 or more, got {indices.min()}")
    return x[indices]


def put(x: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns a copy of x with `values` at `indices` of its first axis."""
    written = x.copy()
    written[indices] = values
    return written


def concat(arrays: Sequence[Rounded], axis: int) -> Rounded:
    """Returns the concatenated arrays, in the format of the first."""
    arrays = list(arrays)
    return Rounded(np.concatenate([x.values for x in arrays], axis), arrays[0].fmt)


class Namespace:
    """NumPy's functions, rounded."""

    def __getattr__(self, name: str) -> Callable[..., Rounded]:
        return rounding(getattr(np, name))


def operations() -> Operations:
    """Returns the operations of textbook code in NumPy."""
    return operations_of(
        Namespace(),
        softmax=rounding(softmax),
        fill=rounding(lambda x, hidden, number: np.where(hidden, number, x)),
        mask_scores=rounding(lambda scores, mask: np.where(mask, scores, -np.inf)),
        logsumexp=lambda x: rounded(
            lambda scores: np.logaddexp.reduce(scores, -1), x.fmt and x.fmt.widened, x
        ),
        take=rounding(take),
        put=rounding(put),
        astype=lambda x, dtype: rounded(np.asarray, FORMATS[dtype], x),
        cast_like=lambda x, other: rounded(np.asarray, other.fmt, x),
        arange_like=lambda n, x: Rounded(np.arange(n, dtype=np.float64), x.fmt),
        concat=concat,
    )
