"""Pairs: which queries attend which keys, in the answer and in its derivatives."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.composition import Problem
from references.rounding import Bounded


class Pairs:
    """Pairs of a query and a key, (B, H, Lq, Lk), by a mask and by what a bias hides with -inf, either of
    which may be absent and broadcasts.

    `rows` and `gradient_rows` are those of `references.tape.Problem`. Rows with a finite sink, of `sinks`
    (H,), follow no election.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], mask: np.ndarray | None, bias: np.ndarray | None = None,
        rows: str = "zeros", gradient_rows: str = "zeros", sinks: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.mask, self.rows = shape, mask, rows
        self.averages = gradient_rows == "uniform"
        self.shows = None if bias is None or not np.isneginf(bias).any() else ~np.isneginf(bias)
        self.sunk = np.zeros((1, 1), bool) if sinks is None else np.isfinite(sinks)[:, None]
        self.equal_scores = gradient_rows == "scores"

    @classmethod
    def of(cls, problem: Problem, bias: np.ndarray | None = None) -> Pairs:
        """Those of a problem, by default with the bias that it has."""
        s, arrays = problem.sizes, problem.arrays
        bias = arrays.get("bias") if bias is None else bias
        shape = (s.B, s.H, s.Lq, s.Lk)
        return cls(
            shape, problem.inputs.dense_mask, bias, problem.rows, problem.gradient_rows,
            arrays.get("sinks"),
        )  # fmt: skip

    @cached_property
    def shown(self) -> np.ndarray | None:
        """What attends in the answer, broadcastable; None where all do."""
        if self.mask is None or self.shows is None:
            return self.shows if self.mask is None else self.mask
        return self.mask & self.shows

    @cached_property
    def keys(self) -> np.ndarray:
        """How many keys a row has, (B, H, Lq)."""
        shown = True if self.shown is None else self.shown
        return np.asarray(np.broadcast_to(shown, self.shape).sum(-1))

    @cached_property
    def blank(self) -> np.ndarray:
        """Rows (B, H, Lq, 1) that the mask leaves without keys and whose scores are equal numbers to a
        derivative."""
        if not self.equal_scores or self.mask is None:
            return np.zeros((*self.shape[:3], 1), bool)
        fully_masked_rows = ~np.broadcast_to(self.mask, self.shape).any(-1, keepdims=True)
        return np.asarray(fully_masked_rows & ~self.sunk[:, :, None])

    @cached_property
    def allowed(self) -> np.ndarray:
        """What attends to a derivative, (B, H, Lq, Lk)."""
        allowed = np.broadcast_to(True if self.mask is None else self.mask, self.shape) | self.blank
        return allowed if self.shows is None else allowed & self.shows

    @cached_property
    def rows_of_keys(self) -> np.ndarray:
        """How many rows attend a key, (B, H, Lk, 1)."""
        return self.allowed.swapaxes(-1, -2).sum(-1)[..., None]

    def by_head(self, x: Bounded) -> Bounded:
        """Keys or values (B, Hkv, Lk, .) repeated for the query heads of a group."""
        return x.repeated(self.shape[1] // max(x.shape[1], 1), 1)

    def seen(self, x: Bounded) -> Bounded:
        """The same with zeros for those that no row attends: these may be NaN."""
        return self.by_head(x).where(np.asarray(self.allowed.any(-2))[..., None])

    def attended(self, x: Bounded) -> Bounded:
        """x (B, H, Lq, Lk) with zeros for pairs that do not attend."""
        return x.where(self.allowed)
