"""Faults of gated heads."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel


def gate_of_the_first_row(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    gate = right.gate(call)
    return np.broadcast_to(gate[:, :, :1], gate.shape)


def gate_without_its_bias(
    right: MultiHeadKernel, y: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    return y if name == "gate" else right.with_bias(y, name, call)


def gate_behind_the_mixing_output(
    right: MultiHeadKernel, merged: np.ndarray, call: LayerCall
) -> np.ndarray:
    y = right.output(merged, call)
    if "gate_kernel" not in call.parameters:
        return y
    return y * right.merge(right.gate(call), call)[..., : y.shape[-1]]


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("gate-left-out", "values", "The heads are not gated.",
        "`w_o(heads)`; it is `w_o(heads * sigmoid(w_g(x)))`",
        gate=lambda right, call: np.ones_like(right.gate(call))),
    row("gate-not-squashed", "values", "The gate has no sigmoid.",
        "`heads * w_g(x)`; it is `heads * sigmoid(w_g(x))`", squashed=lambda right, y: y),
    row("gate-of-the-next-head", "values", "Every head has the gate of the head before it.",
        "`gate[:, h - 1]`; head h has `gate[:, h]`", family="heads",
        gate=lambda right, call: np.roll(right.gate(call), 1, axis=1)),
    row("gate-of-the-first-row", "values", "All rows of a sample have the gate of its first row.",
        "`gate[:, :1]` for all rows; every token has its own gate", gate=gate_of_the_first_row),
    row("gate-without-its-bias", "values", "The bias of the gate is left out.",
        "`F.linear(x, w_g)` without `b_g`; use `x @ w_g + b_g`", with_bias=gate_without_its_bias),
    row("gate-behind-the-mixing", "values",
        "The output is gated, not the heads before the output projection.",
        "`w_o(heads) * gate`; it is `w_o(heads * gate)`",
        gated=lambda right, attended, call: attended, output=gate_behind_the_mixing_output),
]  # fmt: skip
