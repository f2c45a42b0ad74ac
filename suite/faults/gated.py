"""Faults of gated self-attention."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.spec.operators.gated import GATED
from attention_conformance.suite.spec.operators.layers import PARAMETERS

FAMILY = "layer"


class GatedKernel(MultiHeadKernel):
    """Multi-head self-attention whose merged heads are gated."""

    operator = GATED
    features = MultiHeadKernel.features - {"qk-norm"}
    parameters = (*PARAMETERS, "gate_kernel", "gate_bias")
    dropout = ""
    elections = {}
    refusals = {"weights": "returns no weights", "gradient": "differentiates nothing"}

    def gate(self, call: LayerCall) -> np.ndarray:
        """The gates (B, Lq, H Dv)."""
        x, kernel = self.load(call.query, call), self.kernel("gate", call)
        y = self.keep(x @ kernel.reshape(len(kernel), -1), "features", call)
        return self.keep(self.squashed(self.with_bias(y, "gate", call)), "features", call)

    def squashed(self, y: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-y))

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(super().merge(attended, call) * self.gate(call), "features", call)


@fault("values", "`w_o(heads)`; it is `w_o(heads * sigmoid(w_g(x)))`")
class GateLeftOut(GatedKernel):
    """The heads are not gated."""

    def gate(self, call: LayerCall) -> np.ndarray:
        return np.ones_like(super().gate(call))


@fault("values", "`heads * w_g(x)`; it is `heads * sigmoid(w_g(x))`")
class GateNotSquashed(GatedKernel):
    """The gate has no sigmoid."""

    def squashed(self, y: np.ndarray) -> np.ndarray:
        return y


@fault("values", "`gate[:, h - 1]`; head h has `gate[:, h]`", family="heads")
class GateOfTheNextHead(GatedKernel):
    """Every head has the gate of the head before it."""

    def gate(self, call: LayerCall) -> np.ndarray:
        return np.roll(super().gate(call), call.sizes.Dv, axis=-1)


@fault("values", "`gate[:, :1]` for all rows; every token has its own gate")
class GateOfTheFirstRow(GatedKernel):
    """All rows of a sample have the gate of its first row."""

    def gate(self, call: LayerCall) -> np.ndarray:
        gate = super().gate(call)
        return np.broadcast_to(gate[:, :1], gate.shape)


@fault("values", "`F.linear(x, w_g)` without `b_g`; use `x @ w_g + b_g`")
class GateWithoutItsBias(GatedKernel):
    """The bias of the gate is left out."""

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return y if name == "gate" else super().with_bias(y, name, call)


@fault("values", "`w_o(heads) * gate`; it is `w_o(heads * gate)`")
class GateBehindTheMixing(GatedKernel):
    """The output is gated, not the heads before the output projection."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return MultiHeadKernel.merge(self, attended, call)

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        y = super().output(merged, call)
        return y * self.gate(call)[..., : y.shape[-1]]
