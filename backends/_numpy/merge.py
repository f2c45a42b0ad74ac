"""Merge of partial outputs by definition."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.merge import FEATURES, MERGE


class WeightedSum(Implementation):
    """The sum of the parts, weighted by exp(l_i - log sum_j exp(l_j)), rounded once to the case's
    dtype.

    float64 is computed in extended precision.
    """

    name = "weighted-sum"
    operator = MERGE
    declared = Declared(
        numerics="exact",
        features=FEATURES,
        refusals={"gradient": "NumPy differentiates nothing"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, fmt = self.backend, inputs.dtype
        arguments = {
            "partial_output": backend.array(inputs.arrays["partial_output"], fmt),
            "partial_lse": backend.array(inputs.arrays["partial_lse"], fmt.widened),
        }
        precision = np.longdouble if fmt.name == "f64" else np.float64

        def call(partial_output: Rounded, partial_lse: Rounded) -> tuple[Rounded, Rounded]:
            parts: np.ndarray = partial_output.values.astype(precision)
            lse: np.ndarray = partial_lse.values.astype(precision)
            total = np.logaddexp.reduce(lse, 0)
            with np.errstate(invalid="ignore"):
                weights = np.where(np.isneginf(lse), 0, np.exp(lse - total))
            merged = (weights[..., None] * parts).sum(0)
            return (
                Rounded(round_to(merged, fmt), fmt),
                Rounded(round_to(total, fmt.widened), fmt.widened),
            )

        return PreparedCall(call, arguments, inputs.outputs)
