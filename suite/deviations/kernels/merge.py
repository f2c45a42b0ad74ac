"""Right merging of partial answers in NumPy, one method a step (see `attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import Array, DeclaredKernel
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
