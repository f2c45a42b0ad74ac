"""Batch norm: (x - mean) / sqrt(variance + epsilon) gain + offset. Mean and variance (divided by B L) are
those of each feature over samples and positions in training, and those it has learned in evaluation: E
statistics, whatever B and L.

query (B, L, E) is x; key and value are not looked at; mean, variance, gain and offset (E,), the last two
or neither. Learned statistics are constants to a derivative. See `references.norms`.

Source: Ioffe, Szegedy, ICML 2015, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import norms
from references.norms import Norm
from references.outputs import Outputs, wide
from references.rounding import Roundoffs
from suite.spec.inputs import Inputs


def _norm(inputs: Inputs, u: Roundoffs) -> Norm:
    x = wide(inputs)
    learned = None if inputs.training else (x["mean"], x["variance"])
    return norms.of(inputs, (0, 1), learned, inputs.epsilon, u)


@np.errstate(all="ignore")
def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """The output (B, L, E) with its bound. Raises NoExtendedPrecision.

    There are no rows without keys: `empty_rows` is of no influence.
    """
    return norms.forward(_norm(inputs, rounding))


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, gain and offset, in their shapes, for a cotangent (B, L, E)."""
    return norms.vjp(_norm(inputs, rounding), inputs, cotangent)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, L, E), as any of query, gain and offset move along `tangents`.

    Raises ValueError for the tangent of a statistic or an unknown array.
    """
    return norms.jvp(_norm(inputs, rounding), inputs, tangents)
