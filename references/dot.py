"""Dot-product (Luong) attention: scores s q . k with a scalar `scale` s, 1 where absent.

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev); see `references.products`.

Source: Luong, Pham, Manning, EMNLP 2015.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import products
from references.one_head import number
from references.outputs import Outputs
from references.rounding import Roundoffs
from suite.spec.inputs import Inputs


def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """Output (B, Lq, Ev) and weights, where they are asked for, with their bounds.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    return products.forward(inputs, number(inputs, "scale"), rounding, empty_rows)


def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, key, value and scale, in their shapes; cotangent (B, Lq, Ev).

    `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises ValueError for another one,
    and NoExtendedPrecision.
    """
    return products.vjp(inputs, cotangent, number(inputs, "scale"), rounding, empty_rows)


def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, Lq, Ev), as any of query, key, value and scale move along `tangents`.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    return products.jvp(inputs, tangents, number(inputs, "scale"), rounding, empty_rows)
