"""softmax(scores) value, its VJP and its JVP, with rounding bounds.

For a cotangent dO of the output O = P V, P = softmax(S), and for tangents S' and V' (Dao et al.,
NeurIPS 2022, section 3.1 and appendix B.2; the tangent by the chain rule):

    dV_j  = sum_i P_ij dO_i          summed over the query heads of a group
    dP_ij = dO_i . V_j
    D_i   = sum_j P_ij dP_ij = dO_i . O_i
    dS_ij = P_ij (dP_ij - D_i)
    O'_i  = sum_j P_ij (S'_ij - sum_l P_il S'_il) V_j + sum_j P_ij V'_j

A cotangent g of the log-sum-exp L_i = log sum_j e^S_ij gives dS_ij = P_ij g_i. An extra `column` of
scores is one more key with V = 0 (a sink), so its dP is 0.

Bounds by running error analysis in the notation of `references.rounding`; |.| is elementwise, and delta
bounds an error. The output: `references.primitives.softmax`. The derivatives:

    P        Recomputed weights, see `references.primitives.softmax`.
    dP       gamma_Dv(u_acc) sum_c |dO_c V_jc|, stored like a score (u_s).
    D        The larger of two bounds. From P: sum_j (delta P |dP| + P delta dP) + gamma_n sum_j P |dP|,
             with products and sum stored like steps of the softmax (u_e, and e_e for each of the n + 1).
             From the returned O (u_o): sum_c |dO_c| delta O_c + gamma_Dv sum |dO O|.
    dS       delta P |dP - D| + P (delta dP + delta D), and the roundings of a difference (relative to
             |dP| + |D|, because some implementations compute P dP - P D), a product and a store. dS is
             stored like a score (`eager`) or narrowed before the products (u_p). P dP and P D are
             steps, and lose e_e each. After cancellation (dP - D near 0) delta dP and delta D remain.
    dV       sum_i delta P |dO| + gamma_{n+2}(u_acc) sum_i |P dO|, stored once (u_o). Grouped heads and
             stored running sums as for dK (`references.primitives.scores`).
    lse      delta P |g| and the roundings of a product and a store, as for dS.
    column   Its weight may be computed as one minus those of the keys (derivative of a sigmoid),
             which adds u_acc times the weights of the keys.
    O'       S' - sum P S' is stored like a step of the softmax, P (S' - sum P S') like dS, both products
             with values, and their sum, in the case's dtype.

Underflow. Every store loses up to half the smallest subnormal of its dtype; here a whole one is
counted. e_e is the subnormal of the dtype in which steps are stored, or else of the accumulator. Sums
and differences of stored numbers lose nothing, because they are multiples of the smallest subnormal. If
V is near the smallest normal number, dP is, too; P dP is about n times smaller, and may underflow
completely. If an implementation flushes subnormals, the smallest normal number stands for the smallest
subnormal, and a product loses the subnormal parts of its operands, too: of |a b| at most |b| for a
subnormal a, and |a| for a subnormal b (`references.rounding.matrix_product`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import key_or_value_gradient
from attention_conformance.references.primitives.softmax import (
    NEGLIGIBLE_WEIGHT,
    Softmax,
    WeightsAndOutput,
    attend,
    lse_error,
    recomputed_weights,
    score_error,
)
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    gamma,
    magnitude,
    matrix_product,
    perturbed,
    stored,
    stored_mean,
    sum_of_present,
)
from attention_conformance.references.tape import Gradients, Node


class Attend(Node):
    """softmax(scores) value, (B, H, Lq, Dv).

    scores (B, H, Lq, Lk), value (B, Hkv, Lk, Dv), column (B, H, Lq, 1): scores of a key of value 0, or
    None
    """

    def __init__(
        self, u: Roundoffs, scores: Node, value: Node, pairs: Pairs, column: Node | None = None
    ) -> None:
        super().__init__(u, scores, value, column)
        self.scores, self.value, self.pairs, self.column = scores, value, pairs, column

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.pairs.shape[:3], self.value.shape[-1])

    @cached_property
    def answer(self) -> WeightsAndOutput:
        """The output and weights of the forward pass, including the weight of the column's key."""
        pairs, scores, output_mask = self.pairs, self.scores.output, self.pairs.output_mask
        value = pairs.without_hidden_nan(self.value.output)
        if self.column is not None:
            scores, value = scores.concatenated(self.column.output, -1), _with_zeros(value)
            full = np.broadcast_to(True if output_mask is None else output_mask, pairs.shape)
            output_mask = np.concatenate([full, self._has_finite_column], -1)
        return attend(
            scores, value, output_mask, self.u, pairs.empty_rows, int(self.column is not None)
        )

    @property
    def output(self) -> Bounded:
        return self.answer.output

    @cached_property
    def recomputed(self) -> Bounded:
        value = self.pairs.by_head(self.value.output)
        return stored(self.average_values(value), self.u.results)

    @property
    def _has_finite_column(self) -> np.ndarray:
        """Boolean (B, H, Lq, 1): rows whose score in the column is finite."""
        assert self.column is not None
        return np.isfinite(self.column.recomputed.value)

    @cached_property
    def allowed(self) -> np.ndarray:
        """Attending pairs in derivatives, boolean (B, H, Lq, Lk), or Lk + 1 with a column."""
        if self.column is None:
            return self.pairs.allowed
        return np.concatenate([self.pairs.allowed, self._has_finite_column], -1)

    @cached_property
    def keys(self) -> np.ndarray:
        """Number of attended keys per row in derivatives, including the column's, (B, H, Lq)."""
        return np.asarray(self.allowed.sum(-1))

    @cached_property
    def attended_values(self) -> Bounded:
        """The values (B, H, Lk, Dv), zero if no row attends them; with a column one more value, 0."""
        value = self.pairs.without_unattended(self.value.output)
        return value if self.column is None else _with_zeros(value)

    def without_column(self, x: Bounded) -> Bounded:
        """Returns x (B, H, Lq, Lk): without the last entry of each row if there is a column."""
        return x if self.column is None else x[..., :-1]

    @cached_property
    def weights(self) -> Bounded:
        """P as derivatives recompute it, (B, H, Lq, Lk), or (B, H, Lq, Lk + 1) with a column."""
        scores = self.scores.recomputed
        # Fully masked rows whose scores are all equal: scores of 0 give their uniform weights.
        if self.pairs.equal_score_rows.any():
            scores = scores.where(~self.pairs.equal_score_rows)
        if self.column is not None:
            scores = scores.concatenated(self.column.recomputed, -1)
        p = recomputed_weights(scores.value, scores.error, self.allowed, self.keys, self.u)
        if self.column is not None:
            key_weights = np.where(
                self.allowed[..., -1], 1 - p.value[..., -1].astype(np.float64), 0.0
            )
            p.error[..., -1] += self.u.accumulate * key_weights
        return p

    @cached_property
    def value_weights(self) -> tuple[Bounded, np.ndarray]:
        """The weights of the values, (B, H, Lq, Lk), and boolean (B, H, Lq, 1) the fully masked rows that
        average all values with equal weights."""
        u, p = self.u, self.weights
        averaging = (self.keys == 0)[..., None]
        Lk = self.pairs.shape[-1]
        if not self.pairs.averages_values or not Lk:
            return self.without_column(p), np.zeros_like(averaging)
        share = p.value.dtype.type(1) / Lk
        error = 2 * (u.weight + 4 * u.accumulate) * float(share)
        weights = np.where(averaging, share, p.value), np.where(averaging, error, p.error)
        return self.without_column(Bounded(*weights)), averaging

    def average_values(self, value: Bounded) -> Bounded:
        """Returns sum_j P_ij V_j (B, H, Lq, .) before the store, for any `value` V (B, H, Lk, .)."""
        weights, averaging = self.value_weights
        summands = self.keys[..., None] + averaging * self.pairs.shape[-1]
        return matrix_product(weights, value, summands, self.u)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dS (B, H, Lq, Lk), dV (B, Hkv, Lk, Dv), and the column's cotangent (B, H, Lq, 1) or
        None."""
        dS = self.score_gradient(cotangent)
        column = None if self.column is None else dS[..., -1:]
        return self.without_column(dS), self.value_gradient(cotangent), column

    def value_gradient(self, cotangent: Bounded) -> Bounded:
        """Returns dV (B, Hkv, Lk, Dv) for the cotangent dO (B, H, Lq, Dv)."""
        weights, averaging = self.value_weights
        rows = self.pairs.rows_of_keys + averaging.sum(-2, keepdims=True)
        return key_or_value_gradient(weights, cotangent, rows, self.value.shape[1], self.u)

    def weight_gradient(self, cotangent: Bounded) -> Bounded:
        """Returns dP = dO V^T, stored like a score; 0 for pairs that do not attend."""
        u = self.u
        dP = matrix_product(cotangent, self.attended_values.mT, self.attended_values.shape[-1], u)
        return stored(dP, u.scores).where(self.allowed)

    def mean_weight_gradient(self, dP: Bounded, cotangent: Bounded) -> Bounded:
        """Returns D = sum_j P_ij dP_ij = dO_i . O_i, (B, H, Lq, 1), with the larger bound of both
        sums."""
        u, p = self.u, self.weights
        D = self.weighted_mean(dP)
        output = p.magnitude @ self.attended_values.magnitude  # bounds |O|
        error = (
            p.error @ self.attended_values.magnitude
            + magnitude(p.value) @ self.attended_values.error
        )
        error += (
            gamma(self.keys + 4, u.accumulate)[..., None] * output + u.output * output + u.floor
        )
        width = self.attended_values.shape[-1]
        products = (cotangent.magnitude * output).sum(-1, keepdims=True)
        by_output = (cotangent.magnitude * error + cotangent.error * output).sum(-1, keepdims=True)
        by_output += gamma(width, u.accumulate) * products + (width + 1) * u.step_floor
        return perturbed(Bounded(D.value, np.maximum(D.error, by_output)))

    def weighted_mean(self, x: Bounded) -> Bounded:
        """Returns sum_j P_ij x_ij over the keys, (B, H, Lq, 1), for x of the weights' shape."""
        u, p = self.u, self.weights
        inherited = (p.error * x.magnitude + magnitude(p.value) * x.error).sum(-1, keepdims=True)
        sums = (p.magnitude * x.magnitude).sum(-1, keepdims=True)
        rounding = gamma(self.keys + 2, u.accumulate)[..., None] + 2 * u.step
        error = inherited + rounding * sums + (self.keys[..., None] + 1) * u.step_floor
        return Bounded((p.value * x.value).sum(-1, keepdims=True), error)

    def score_gradient(self, cotangent: Bounded) -> Bounded:
        """Returns dS = P (dP - D), stored, with the column's cotangent as last entry of each row."""
        u, p = self.u, self.weights
        dP = self.weight_gradient(cotangent)
        D = self.mean_weight_gradient(dP, cotangent)
        difference = dP.value - D.value
        distance = magnitude(difference)
        inherited = dP.error + D.error
        # Implementations compute P (dP - D) or P dP - P D. The second has larger parts.
        parts = np.maximum(distance, dP.magnitude + D.magnitude)
        difference_error = (u.accumulate + u.step) * (parts + inherited)
        value = np.where(self.allowed, p.value * difference, 0)
        error = p.error * distance + p.magnitude * (inherited + difference_error)
        error += (u.accumulate + u.step) * (magnitude(value) + error) + 2 * u.step_floor
        dS = stored(Bounded(value, error), Store(max(u.score, u.weight), u.score_floor))
        return dS.where(self.allowed)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, (score_tangent, value_tangent, column_tangent) = self.u, tangents
        parts: list[Bounded | None] = []
        if score_tangent is not None or column_tangent is not None:
            weights = self._weight_tangent(self._score_tangent(score_tangent, column_tangent))
            products = matrix_product(weights, self.attended_values, self.keys[..., None], u)
            parts.append(stored(products, u.results))
        if value_tangent is not None:
            average = self.average_values(self.pairs.by_head(value_tangent))
            parts.append(stored(average, u.results))
        return sum_of_present(parts, u.results)

    def _score_tangent(
        self, score_tangent: Bounded | None, column_tangent: Bounded | None
    ) -> Bounded:
        """Returns S' and the tangent of the column as one array; 0 for pairs that do not attend."""
        B, H, Lq, Lk = self.pairs.shape
        dtype = self.attended_values.value.dtype
        if score_tangent is None:
            score_tangent = Bounded.exact(np.zeros((B, H, Lq, Lk), dtype))
        if self.column is not None:
            column_tangent = column_tangent or Bounded.exact(np.zeros((B, H, Lq, 1), dtype))
            score_tangent = score_tangent.concatenated(column_tangent, -1)
        return score_tangent.where(self.allowed)

    def _weight_tangent(self, score_tangent: Bounded) -> Bounded:
        """Returns P' = P (S' - sum P S'), stored."""
        u, p = self.u, self.weights
        mean = self.weighted_mean(score_tangent)
        centred = score_tangent.value - mean.value
        distance, centred_error = magnitude(centred), score_tangent.error + mean.error
        centred_error = centred_error + (u.accumulate + u.step) * (distance + centred_error)
        error = p.error * distance + p.magnitude * centred_error + 2 * u.step_floor
        unit = max(u.score, u.weight, u.step) + u.accumulate
        return stored(Bounded(p.value * centred, error), Store(unit, u.score_floor)).where(
            self.allowed
        )


class Weights(Node):
    """The returned weights, (B, H, Lq, Lk), or their average over the heads."""

    def __init__(self, attend: Attend, averages: bool) -> None:
        super().__init__(attend.u, attend)
        self.attend, self.averages = attend, averages

    @cached_property
    def output(self) -> Bounded:
        weights = self.attend.without_column(self.attend.answer.weights)
        return stored_mean(weights, 1, self.u) if self.averages else weights


class LogSumExp(Node):
    """The log-sum-exp of attended scores, (B, H, Lq), without a column; -inf for fully masked rows. It
    has no JVP."""

    def __init__(self, attend: Attend) -> None:
        assert attend.column is None, "frameworks disagree on keys of value 0 in the log-sum-exp"
        super().__init__(attend.u, attend.scores)
        self.attend = attend

    @cached_property
    def output(self) -> Bounded:
        u, pairs, scores = self.u, self.attend.pairs, self.attend.scores.output
        output_mask = np.broadcast_to(
            True if pairs.output_mask is None else pairs.output_mask, pairs.shape
        )
        softmax = Softmax.of(np.where(output_mask, scores.value, -np.inf))
        d = score_error(scores.error, softmax.distance, u)
        peak = np.where(softmax.weights > NEGLIGIBLE_WEIGHT, d, 0.0).max(-1, initial=0.0)
        largest = np.where(softmax.empty, 0, softmax.largest)[..., 0]
        error = lse_error(peak, pairs.keys, largest, np.where(pairs.keys, softmax.lse, 0), u)
        return Bounded(softmax.lse, error)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dS = P g, stored, for the cotangent g (B, H, Lq)."""
        u, p, allowed = self.u, self.attend.weights, self.attend.allowed
        g = Bounded.exact(cotangent.value[..., None])  # no matrix product narrows g
        value = np.where(allowed, p.value * g.value, 0)
        error = p.error * g.magnitude + p.magnitude * g.error
        error += (u.accumulate + u.step) * (magnitude(value) + error) + u.step_floor
        dS = stored(Bounded(value, error), Store(max(u.score, u.weight), u.score_floor))
        return (dS.where(allowed),)


def _with_zeros(value: Bounded) -> Bounded:
    """Returns values (B, H, Lk, Dv) with one more value, of zeros, at the end."""
    B, H, _, Dv = value.shape
    return value.concatenated(Bounded.exact(np.zeros((B, H, 1, Dv), value.value.dtype)), -2)
