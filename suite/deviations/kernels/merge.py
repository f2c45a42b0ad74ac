"""Right merging of partial answers in NumPy, alone and in split-KV decoding, one method a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import Array, DeclaredKernel
from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


def merge_weights(lse: Array, largest: Array) -> tuple[Array, Array]:
    """Returns the weights (P, ...) of parts with log-sum-exps `lse` (P, ...), and the merged log-sum-exp
    (...). `largest` (...) is subtracted before the exponential."""
    exponentials = np.exp(lse - largest)
    total = exponentials.sum(0)
    return exponentials / np.where(total == 0, 1, total), np.log(total) + largest


class MergeKernel(DeclaredKernel, OperatorFunction):
    """All parts are merged at once in float32; only the answer is rounded."""

    operator = MERGE
    features = FEATURES
    elections = {}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt, work = inputs.dtype, self.work(inputs.dtype)
        fmts = {"partial_output": fmt, "partial_lse": fmt.widened}

        def vjp(
            partial_output: Rounded, partial_lse: Rounded, cotangent: Rounded, wrt: Sequence[str]
        ) -> dict[str, Any]:
            arrays = partial_output, partial_lse, cotangent
            gradients = self.gradients(*(x.values.astype(work) for x in arrays))
            return {n: rounded_to(gradients[n], fmts[n]) for n in wrt}

        return replace(super().prepare(inputs), vjp=vjp, constants=(fmt.name,))

    def compute(self, x: dict[str, Rounded], inputs: Inputs) -> Any:
        fmt = inputs.dtype
        outputs, parts = (x[n].values for n in ("partial_output", "partial_lse"))
        work = self.work(fmt)
        with np.errstate(all="ignore"):
            output, lse = self.merged(outputs.astype(work), parts.astype(work), fmt)
        return rounded_to(output, fmt), rounded_to(lse, fmt.widened)

    def work(self, fmt: DType) -> type[np.floating[Any]]:
        """Returns the NumPy type of the arithmetic."""
        return fmt.working

    def merged(self, outputs: Array, lse: Array, fmt: DType) -> tuple[Array, Array]:
        """Returns output (B, H, Lq, Dv) and log-sum-exp (B, H, Lq), for the parts' outputs
        (P, B, H, Lq, Dv) and log-sum-exps (P, B, H, Lq)."""
        weights, merged_lse = self.weights(lse)
        return (weights[..., None] * outputs).sum(0), merged_lse

    def weights(self, lse: Array) -> tuple[Array, Array]:
        """Returns the weights (P, B, H, Lq) of the parts, and the merged log-sum-exp (B, H, Lq)."""
        return merge_weights(lse, self.largest(lse))

    def largest(self, lse: Array) -> Array:
        """Returns the largest log-sum-exp of each row, to be subtracted before the exponential; 0 for
        -inf."""
        maximum: Array = lse.max(0)
        return np.where(np.isneginf(maximum), lse.dtype.type(0), maximum)

    def gradients(self, outputs: Array, lse: Array, cotangent: Array) -> dict[str, Array]:
        """Returns the gradients of the partial outputs and log-sum-exps by name."""
        weights, _ = self.weights(lse)
        products = (outputs * cotangent).sum(-1)
        mean = (weights * products).sum(0)
        return {
            "partial_output": weights[..., None] * cotangent,
            "partial_lse": weights * (products - mean),
        }


Part = tuple[np.ndarray, np.ndarray]
"""An answer (H, rows, Dv) over a part of the keys, and its log-sum-exp (H, rows)."""


class SplitKernel(PagedKernel):
    """Paged attention over parts of the keys. The parts have one size, the same in all samples, so short
    samples have no keys in the last parts."""

    count = 3
    """The number of parts."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        segments = self.segments(pack)
        size = -(-max(keys.stop - keys.start for _, keys in segments) // self.count)
        for rows, keys in segments:
            if rows.stop > rows.start:
                parts = [self.part(pack, rows, keys, n * size, size) for n in range(self.count)]
                out[rows] = self.merged(pack, parts).transpose(1, 0, 2)
        return out

    def part(self, pack: Paged, rows: slice, keys: slice, start: int, size: int) -> Part:
        """Returns the answer over `size` keys of a sample from its key `start` on, and its
        log-sum-exp."""
        end = min(keys.start + start + size, keys.stop)
        part_keys = slice(min(keys.start + start, keys.stop), end)
        scores, value = self.scores(pack, rows, part_keys)
        part_mask = self.part_mask(pack, rows, keys, start, part_keys.stop - part_keys.start)
        scores = np.where(part_mask, scores, -np.inf)
        anchor = self.anchor(scores.max(-1, keepdims=True, initial=-np.inf))
        exponentials = np.exp(scores - anchor)
        total = exponentials.sum(-1, keepdims=True)
        answer = self.quotient(exponentials @ value, total)
        lse = (anchor + np.log(total))[..., 0]
        return self.stored(answer, pack), self.stored_lse(lse, pack)

    def part_mask(
        self, pack: Paged, rows: slice, keys: slice, start: int, count: int
    ) -> np.ndarray:
        """Returns the mask (rows, count) of `count` keys of a sample from its key `start` on, True
        attends."""
        return self.allowed(pack, rows, keys)[:, start : start + count]

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        """Returns the number to subtract from scores: the maximum of the row, or 0 for a fully masked
        row."""
        return np.where(np.isneginf(largest), 0, largest).astype(largest.dtype)

    def quotient(self, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Returns the answer of a part: weighted sums of values over the total weight; 0 without keys."""
        return np.asarray(sums / np.where(total == 0, 1, total))

    def stored(self, answer: np.ndarray, pack: Paged) -> np.ndarray:
        """Returns the answer of a part in the precision of the workspace."""
        return answer

    def stored_lse(self, lse: np.ndarray, pack: Paged) -> np.ndarray:
        """Returns the log-sum-exp of a part in the precision of the workspace."""
        return lse

    def merged(self, pack: Paged, parts: list[Part]) -> np.ndarray:
        """Returns the answer (H, rows, Dv) over all keys, from the parts of one sample."""
        lse = np.stack([part_lse for _, part_lse in parts])
        weights, _ = merge_weights(lse, self.largest_part(lse))
        answers = (answer for answer, _ in parts)
        return np.asarray(
            sum(weight[..., None] * part for weight, part in zip(weights, answers, strict=True))
        )

    def largest_part(self, lse: np.ndarray) -> np.ndarray:
        """Returns the largest log-sum-exp (H, rows) of the parts."""
        return np.asarray(lse.max(0))
