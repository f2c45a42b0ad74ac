"""Honest merging of partial answers in NumPy, one method a step (see `attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.faults.kernels.attention import Stated
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


def shares(lse: np.ndarray, largest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights (P, ...) of parts with log-sum-exps (P, ...), of which `largest` (...) is taken off
    before the exponential, and the log-sum-exp (...) of all."""
    sizes = np.exp(lse - largest)
    total = sizes.sum(0)
    return sizes / np.where(total == 0, 1, total), np.log(total) + largest


class MergeKernel(Stated):
    """All parts at once in float32, rounded once."""

    operator = MERGE
    features = FEATURES
    elections = {}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, fmt = self.backend, inputs.dtype
        arguments = {
            "partial_output": backend.array(inputs.arrays["partial_output"], fmt),
            "partial_lse": backend.array(inputs.arrays["partial_lse"], fmt.widened),
        }

        def call(partial_output: Rounded, partial_lse: Rounded) -> tuple[Rounded, Rounded]:
            with np.errstate(all="ignore"):
                output, lse = self.merged(
                    partial_output.values.astype(fmt.working),
                    partial_lse.values.astype(fmt.working),
                    fmt,
                )
            return (
                Rounded(round_to(output, fmt), fmt),
                Rounded(round_to(lse, fmt.widened), fmt.widened),
            )

        def vjp(
            partial_output: Rounded, partial_lse: Rounded, cotangent: Rounded, wrt: Sequence[str]
        ) -> dict[str, Any]:
            outputs, lse = (x.values.astype(fmt.working) for x in (partial_output, partial_lse))
            gradients = self.gradients(outputs, lse, cotangent.values.astype(fmt.working))
            fmts = {"partial_output": fmt, "partial_lse": fmt.widened}
            return {n: Rounded(round_to(gradients[n], fmts[n]), fmts[n]) for n in wrt}

        return PreparedCall(call, arguments, inputs.outputs, vjp=vjp, constants=(fmt.name,))

    def merged(
        self, outputs: np.ndarray, lse: np.ndarray, fmt: DType
    ) -> tuple[np.ndarray, np.ndarray]:
        """Output (B, H, Lq, Dv) and log-sum-exp (B, H, Lq) of parts (P, B, H, Lq, Dv), (P, B, H, Lq)."""
        weights, total = self.weights(lse)
        return (weights[..., None] * outputs).sum(0), total

    def weights(self, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weights of parts, and the log-sum-exp of all."""
        return shares(lse, self.largest(lse))

    def largest(self, lse: np.ndarray) -> np.ndarray:
        """What is taken off log-sum-exps before the exponential."""
        maximum: np.ndarray = lse.max(0)
        return np.where(np.isneginf(maximum), lse.dtype.type(0), maximum)

    def gradients(
        self, outputs: np.ndarray, lse: np.ndarray, cotangent: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Gradients of the partial outputs and log-sum-exps."""
        weights, _ = self.weights(lse)
        products = (outputs * cotangent).sum(-1)
        mean = (weights * products).sum(0)
        return {
            "partial_output": weights[..., None] * cotangent,
            "partial_lse": weights * (products - mean),
        }


class MergeInTurn(MergeKernel):
    """Part after part: each is merged with what was merged before, and normalised."""

    def merged(
        self, outputs: np.ndarray, lse: np.ndarray, fmt: DType
    ) -> tuple[np.ndarray, np.ndarray]:
        output, total = super().merged(outputs[:1], lse[:1], fmt)
        for o, one in zip(outputs[1:], lse[1:], strict=True):
            output, total = super().merged(np.stack([output, o]), np.stack([total, one]), fmt)
        return output, total
