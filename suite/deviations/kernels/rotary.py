"""Right rotary embedding in NumPy, forward and backward, one method a step (see `attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.deviations.kernels.attention import DeclaredKernel
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    table_length,
)


@dataclass(frozen=True)
class RotaryCall:
    """One call: rotate `x` (B, H, L, D) by the positions (L,) or (B, L) of its tokens.

    - `entries`: the number of positions in a table of sines and cosines
    - `inverse`: True for a rotation by the negative angles, as of gradients
    """

    x: np.ndarray
    position: np.ndarray
    rotation: Rotation
    fmt: DType
    entries: int
    inverse: bool = False

    @property
    def work(self) -> type[np.floating[Any]]:
        """The NumPy type of angles and products."""
        return self.fmt.working

    @property
    def length(self) -> int:
        """The length of the sequence: the largest position plus one."""
        return int(self.position.max(initial=0)) + 1


class RotaryKernel(DeclaredKernel):
    """Angles, sines, cosines and products in float32; only the output is rounded."""

    operator = ROTARY
    features = FEATURES
    elections = {}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        rotation, fmt = Rotation.of(inputs.case, inputs.sizes.D), inputs.dtype
        entries = table_length(inputs.case)
        arguments = {
            "query": self.backend.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(inputs.arrays["position"], None),
        }

        def rotate(x: Rounded, position: Rounded, inverse: bool = False) -> Rounded:
            call = RotaryCall(x.values, position.values, rotation, fmt, entries, inverse)
            return self.deliver(self.rotate(call), fmt)

        def rotate_query(query: Rounded, position: Rounded) -> Rounded:
            return rotate(query, position)

        # A rotation is linear: tangents are rotated like the query, cotangents by the inverse rotation.
        def vjp(
            query: Rounded, position: Rounded, cotangent: Rounded, wrt: Sequence[str]
        ) -> dict[str, Any]:
            return {"query": rotate(cotangent, position, inverse=True)}

        def jvp(query: Rounded, position: Rounded, tangents: dict[str, Rounded]) -> Rounded:
            return rotate(tangents["query"], position)

        constants = (rotation, fmt.name, entries)
        return PreparedCall(rotate_query, arguments, vjp=vjp, jvp=jvp, constants=constants)

    def rotate(self, call: RotaryCall) -> np.ndarray:
        """Returns `call.x` rotated, (B, H, L, D), not yet rounded."""
        first, second = self.pairs(call)
        cosine, sine = self.table(call)
        sine = -sine if call.inverse else sine
        x = call.x.astype(call.work)
        out = x.copy()
        out[..., first], out[..., second] = self.rotated(
            x[..., first], x[..., second], cosine, sine, call
        )
        return out

    def pairs(self, call: RotaryCall) -> tuple[slice, slice]:
        """Returns the places of the first and of the second components of all pairs."""
        size = call.rotation.size
        if call.rotation.interleaved:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)

    def rotated(
        self, x1: np.ndarray, x2: np.ndarray, cosine: np.ndarray, sine: np.ndarray, call: RotaryCall
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and the second components of all pairs, rotated."""
        return x1 * cosine - x2 * sine, x2 * cosine + x1 * sine

    def table(self, call: RotaryCall) -> tuple[np.ndarray, np.ndarray]:
        """Returns cosines and sines, broadcastable to (B, H, L, r / 2); r components are rotated."""
        theta, factor = self.frequencies(call)
        angle = self.angle(self.position(call), theta, call)
        angle = angle if angle.ndim == 2 else angle[:, None]
        return np.cos(angle) * factor, np.sin(angle) * factor

    def frequencies(self, call: RotaryCall) -> tuple[np.ndarray, Any]:
        """Returns the frequencies (r / 2,), and the attention factor on sine and cosine."""
        reference = frequencies(call.rotation, call.position)
        return reference.theta.astype(call.work), call.work(reference.attention)

    def position(self, call: RotaryCall) -> np.ndarray:
        """Returns the positions of the tokens in working precision."""
        return call.position.astype(call.work)

    def angle(self, position: np.ndarray, theta: np.ndarray, call: RotaryCall) -> np.ndarray:
        return position[..., None] * theta

    def deliver(self, out: np.ndarray, fmt: DType) -> Any:
        return rounded_to(out, fmt)


class RotaryTableCast(RotaryKernel):
    """Sines and cosines are rounded to the query's dtype."""

    numerics = "fused"

    def table(self, call: RotaryCall) -> tuple[np.ndarray, np.ndarray]:
        cosine, sine = super().table(call)
        return tuple(round_to(x, call.fmt).astype(call.work) for x in (cosine, sine))  # type: ignore[return-value]


class RotaryByTable(RotaryKernel):
    """Positions are rows of a table. Raises ValueError for a position without a row."""

    features = FEATURES | {"position-table"}

    def position(self, call: RotaryCall) -> np.ndarray:
        """Returns the table's row of each position, in working precision, as the position. Raises
        ValueError for a row that the table lacks: negative, beyond its end, or no whole number."""
        rows = self.rows(call)
        is_missing = (rows < 0) | (rows >= call.entries) | (rows % 1 != 0)
        if is_missing.any():
            raise ValueError(f"a table of {call.entries} positions has no {rows[is_missing][0]:g}")
        return rows.astype(call.work)

    def rows(self, call: RotaryCall) -> np.ndarray:
        """Returns the row in the table of each position."""
        return call.position
