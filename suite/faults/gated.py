"""Faults of gated heads."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel

FAMILY = "layer"


@fault("values", "`w_o(heads)`; it is `w_o(heads * sigmoid(w_g(x)))`")
class GateLeftOut(MultiHeadKernel):
    """The heads are not gated."""

    def gate(self, call: LayerCall) -> np.ndarray:
        return np.ones_like(super().gate(call))


@fault("values", "`heads * w_g(x)`; it is `heads * sigmoid(w_g(x))`")
class GateNotSquashed(MultiHeadKernel):
    """The gate has no sigmoid."""

    def squashed(self, y: np.ndarray) -> np.ndarray:
        return y


@fault("values", "`gate[:, h - 1]`; head h has `gate[:, h]`", family="heads")
class GateOfTheNextHead(MultiHeadKernel):
    """Every head has the gate of the head before it."""

    def gate(self, call: LayerCall) -> np.ndarray:
        return np.roll(super().gate(call), 1, axis=1)


@fault("values", "`gate[:, :1]` for all rows; every token has its own gate")
class GateOfTheFirstRow(MultiHeadKernel):
    """All rows of a sample have the gate of its first row."""

    def gate(self, call: LayerCall) -> np.ndarray:
        gate = super().gate(call)
        return np.broadcast_to(gate[:, :, :1], gate.shape)


@fault("values", "`F.linear(x, w_g)` without `b_g`; use `x @ w_g + b_g`")
class GateWithoutItsBias(MultiHeadKernel):
    """The bias of the gate is left out."""

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return y if name == "gate" else super().with_bias(y, name, call)


@fault("values", "`w_o(heads) * gate`; it is `w_o(heads * gate)`")
class GateBehindTheMixing(MultiHeadKernel):
    """The output is gated, not the heads before the output projection."""

    def gated(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        y = super().output(merged, call)
        if "gate_kernel" not in call.parameters:
            return y
        return y * self.merge(self.gate(call), call)[..., : y.shape[-1]]
