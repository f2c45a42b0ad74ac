"""Scaled dot-product attention without heads: scores q . k / sqrt(D), no parameters.

query (B, Lq, D), key (B, Lk, D), value (B, Lk, Ev); see `references.products`.

Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import products
from references.outputs import Outputs
from references.rounding import Roundoffs, precision_for
from suite.spec.inputs import Inputs


def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """Output (B, Lq, Ev) and weights, where they are asked for, with their bounds.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    return products.forward(inputs, _scale(inputs), rounding, empty_rows)


def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, key and value, in their shapes; cotangent (B, Lq, Ev).

    `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises ValueError for another one,
    and NoExtendedPrecision.
    """
    return products.vjp(inputs, cotangent, _scale(inputs), rounding, empty_rows)


def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, Lq, Ev), as any of query, key and value move along `tangents`.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    return products.jvp(inputs, tangents, _scale(inputs), rounding, empty_rows)


def _scale(inputs: Inputs) -> np.floating:
    scale: np.floating = 1 / np.sqrt(precision_for(inputs.dtype)(inputs.sizes.D or 1))
    return scale
