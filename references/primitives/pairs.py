"""Pairs: which queries attend which keys, in the output and in derivatives."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.composition import Problem
from attention_conformance.references.rounding import Bounded


class Pairs:
    """The attending pairs of query and key, (B, H, Lq, Lk): the pairs that neither the mask nor a bias of
    -inf hides.

    Mask and bias broadcast to this shape, or are None. For `empty_rows` and `gradient_rows` see
    `references.composition.Problem`. `sink` (1, H, 1, 1): scores of a sink. Rows of heads with a finite
    score follow no election.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], mask: np.ndarray | None, bias: np.ndarray | None = None,
        empty_rows: str = "zeros", gradient_rows: str = "zeros", sink: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.mask, self.empty_rows = shape, mask, empty_rows
        self.averages_values = gradient_rows == "uniform"
        self.bias_allows = (
            None if bias is None or not np.isneginf(bias).any() else ~np.isneginf(bias)
        )
        self.has_sink = finite_heads(sink)
        self.equal_scores = gradient_rows == "scores"

    @classmethod
    def of(cls, problem: Problem, sink: np.ndarray | None = None) -> Pairs:
        """Returns the pairs of a problem, with its mask and bias."""
        s, bias = problem.sizes, problem.arrays.get("bias")
        shape = (s.B, s.H, s.Lq, s.Lk)
        return cls(
            shape, problem.inputs.dense_mask, bias, problem.empty_rows,
            problem.gradient_rows, sink,
        )  # fmt: skip

    @cached_property
    def output_mask(self) -> np.ndarray | None:
        """Attending pairs in the forward pass, broadcastable, True attends; None if all pairs attend."""
        if self.mask is None or self.bias_allows is None:
            return self.bias_allows if self.mask is None else self.mask
        return self.mask & self.bias_allows

    @cached_property
    def keys(self) -> np.ndarray:
        """Number of attended keys per row in the forward pass, (B, H, Lq)."""
        output_mask = True if self.output_mask is None else self.output_mask
        return np.asarray(np.broadcast_to(output_mask, self.shape).sum(-1))

    @cached_property
    def equal_score_rows(self) -> np.ndarray:
        """Fully masked rows that derivatives treat as rows of equal scores, boolean (B, H, Lq, 1)."""
        if not self.equal_scores or self.output_mask is None:
            return np.zeros((*self.shape[:3], 1), bool)
        fully_masked_rows = ~np.broadcast_to(self.output_mask, self.shape).any(-1, keepdims=True)
        return np.asarray(fully_masked_rows & ~self.has_sink[:, :, None])

    @cached_property
    def allowed(self) -> np.ndarray:
        """Attending pairs in derivatives, boolean (B, H, Lq, Lk)."""
        output_mask = True if self.output_mask is None else self.output_mask
        return np.broadcast_to(output_mask, self.shape) | self.equal_score_rows

    @cached_property
    def rows_of_keys(self) -> np.ndarray:
        """Number of rows that attend a key, (B, H, Lk, 1)."""
        return self.allowed.swapaxes(-1, -2).sum(-1)[..., None]

    def by_head(self, x: Bounded) -> Bounded:
        """Returns keys or values x (B, Hkv, Lk, .) repeated for the query heads of their group, (B, H,
        Lk, .)."""
        return x.repeat(self.shape[1] // max(x.shape[1], 1), 1)

    def without_hidden_nan(self, x: Bounded) -> Bounded:
        """Returns `by_head(x)` with zeros for tokens that are not finite and that no row attends in the
        forward pass."""
        x = self.by_head(x)
        finite = np.isfinite(x.value).all(-1)
        if self.output_mask is None or finite.all():
            return x
        is_attended = np.broadcast_to(self.output_mask, self.shape).any(-2)
        return x.where((finite | is_attended)[..., None])

    def without_unattended(self, x: Bounded) -> Bounded:
        """Returns `by_head(x)` with zeros for tokens that no row attends in derivatives. These may be
        NaN."""
        return self.by_head(x).where(np.asarray(self.allowed.any(-2))[..., None])

    def without_hidden(self, x: Bounded) -> Bounded:
        """Returns x (B, H, Lq, Lk) with zeros for pairs that do not attend in derivatives."""
        return x.where(self.allowed)


def finite_heads(sink: np.ndarray | None) -> np.ndarray:
    """Returns, boolean (H, 1), the heads whose score of a `sink` (1, H, 1, 1) is finite. Without a sink
    False (1, 1)."""
    return np.zeros((1, 1), bool) if sink is None else np.isfinite(sink).reshape(-1, 1)
