"""Honest rotations in NumPy, one method a step (see `attention`), forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends._numpy.rotary import rotation_call
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.deviations.kernels.attention import Stated
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    table_length,
)


@dataclass(frozen=True)
class Turn:
    """One call: what is turned, (B, H, L, D), where its tokens stand, (L,) or (B, L), and how. `work` is
    the precision in which angles are made, `entries` the number of positions that a table has."""

    x: np.ndarray
    position: np.ndarray
    rotation: Rotation
    fmt: DType
    entries: int
    back: bool = False

    @property
    def work(self) -> type[np.floating[Any]]:
        return self.fmt.working

    @property
    def length(self) -> int:
        """The length of the sequence: the largest position and one."""
        return int(self.position.max(initial=0)) + 1


class RotaryKernel(Stated):
    """Angles in float32, sine and cosine in float32, products in float32, one rounding at the end."""

    operator = ROTARY
    features = FEATURES
    elections = {}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        rotation, fmt = Rotation.of(inputs.case, inputs.sizes.D), inputs.dtype
        entries = table_length(inputs.case)
        arguments = {
            "query": self.backend.memory.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(inputs.arrays["position"], None),
        }

        def turned(x: Rounded, position: Rounded, back: bool = False) -> Rounded:
            turn = Turn(x.values, position.values, rotation, fmt, entries, back)
            return self.deliver(self.turned(turn), fmt)

        return rotation_call(turned, arguments, (rotation, fmt.name, entries))

    def turned(self, turn: Turn) -> np.ndarray:
        """The turned (B, H, L, D), not yet rounded."""
        one, two = self.pairs(turn)
        cosine, sine = self.table(turn)
        x = turn.x.astype(turn.work)
        out = x.copy()
        sine = -sine if turn.back else sine
        first, second = self.rotated(x[..., one], x[..., two], cosine, sine, turn)
        out[..., one], out[..., two] = first, second
        return out

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        """Where the first and the second components of all pairs are."""
        size = turn.rotation.size
        if turn.rotation.interleaved:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)

    def rotated(
        self, one: np.ndarray, two: np.ndarray, cosine: np.ndarray, sine: np.ndarray, turn: Turn
    ) -> tuple[np.ndarray, np.ndarray]:
        return one * cosine - two * sine, two * cosine + one * sine

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine, broadcastable to (B, H, L, r / 2)."""
        theta, factor = self.frequencies(turn)
        angle = self.angle(self.position(turn), theta, turn)
        angle = angle if angle.ndim == 2 else angle[:, None]
        return np.cos(angle) * factor, np.sin(angle) * factor

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        """Frequencies (r / 2,) and the factor on sine and cosine."""
        reference = frequencies(turn.rotation, turn.position)
        return reference.theta.astype(turn.work), turn.work(reference.attention)

    def position(self, turn: Turn) -> np.ndarray:
        """Where tokens stand."""
        return turn.position.astype(turn.work)

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        return position[..., None] * theta

    def deliver(self, out: np.ndarray, fmt: DType) -> Any:
        return Rounded(round_to(out, fmt), fmt)


class RotaryTableCast(RotaryKernel):
    """Sine and cosine stored in the query's dtype."""

    numerics = "fused"

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        cosine, sine = super().table(turn)
        return tuple(round_to(x, turn.fmt).astype(turn.work) for x in (cosine, sine))  # type: ignore[return-value]


class RotaryByTable(RotaryKernel):
    """Positions are rows of a table, and what is not in it is refused."""

    features = FEATURES | {"position-table"}

    def position(self, turn: Turn) -> np.ndarray:
        rows = self.rows(turn)
        missing = (rows < 0) | (rows >= turn.entries) | (rows % 1 != 0)
        if missing.any():
            raise ValueError(f"a table of {turn.entries} positions has no {rows[missing][0]:g}")
        return rows.astype(turn.work)

    def rows(self, turn: Turn) -> np.ndarray:
        """Which rows the positions are."""
        return turn.position
