"""A layer of a Transformer's encoder (`suite.spec.operators.encoder`): forward, backward and along
tangents, with how far rounding can move them.

With a the attention of `references.multi_head`, n1 and n2 the norms of `references.norms`, and the
feed-forward network f(y) = g(y W1 + b1) W2 + b2:

    post   y = n1(x + a(x)),   z = n2(y + f(y))
    pre    y = x + a(n1(x)),   z = y + f(n2(y))

Bounds are those of the parts, one after the other. Besides:

    residuals   x + a(x) is stored in the case's dtype, and so is the sum of the two gradients that meet
                where a residual begins.
    relu        Exact, and no further from relu(h) than h is. Its derivative is 0 or 1, and not known
                where h may be of either sign.
    gelu        h Phi(h). Its derivative Phi(h) + h phi(h) lies between -0.13 and 1.13, and changes by
                phi(h) (2 - h^2), at most 0.8. Phi, (1 + erf) / 2, is off by 4 u_acc of 1: where h is
                negative two numbers cancel. Three steps, each stored where steps are, and the result.

Sources: Vaswani et al. 2017, section 3.1; Xiong et al., ICML 2020 (norms first); Hendrycks, Gimpel 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from references.multi_head import Chain, Layer
from references.norms import Norm, known
from references.outputs import Outputs, moving, wide
from references.projections import (
    bias_gradient,
    input_gradient,
    kernel_gradient,
    linear,
    linear_tangent,
)
from references.rounding import Bounded, Roundoffs, magnitude, narrowed, stored, together
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS

Moved = Mapping[str, np.ndarray]
"""Tangents by array."""


class FeedForward:
    """g(y W1 + b1) W2 + b2 of y (B, L, E)."""

    def __init__(self, y: Bounded, arrays: Moved, activation: str, u: Roundoffs) -> None:
        self.y, self.arrays, self.u = y, arrays, u
        self.bent = {"relu": relu, "gelu": gelu}[activation]

    @cached_property
    def hidden(self) -> Bounded:
        """y W1 + b1, (B, L, F)."""
        return linear(self.y, self.arrays["linear1_kernel"], self.arrays["linear1_bias"], self.u)

    @cached_property
    def activated(self) -> tuple[Bounded, Bounded]:
        """g(h) and g'(h), (B, L, F)."""
        return self.bent(self.hidden, self.u)

    @property
    def output(self) -> Bounded:
        active, _ = self.activated
        return linear(active, self.arrays["linear2_kernel"], self.arrays["linear2_bias"], self.u)

    def gradients(self, dz: Bounded) -> dict[str, Bounded]:
        """Those of the parameters and of y, for dz (B, L, E)."""
        u, (active, slope) = self.u, self.activated
        dg = input_gradient(dz, self.arrays["linear2_kernel"], u)
        dh = stored(dg * slope, u.output, u.floor)
        return {
            "y": input_gradient(dh, self.arrays["linear1_kernel"], u),
            "linear1_kernel": kernel_gradient(self.y, dh, u),
            "linear1_bias": bias_gradient(dh, u, "linear1_bias"),
            "linear2_kernel": kernel_gradient(active, dz, u),
            "linear2_bias": bias_gradient(dz, u, "linear2_bias"),
        }

    def tangent(self, y: Bounded | None, moved: Moved) -> Bounded | None:
        """How the output moves as y and the parameters do."""
        u, (active, slope) = self.u, self.activated
        dh = linear_tangent(
            self.y, self.arrays["linear1_kernel"], y,
            moved.get("linear1_kernel"), moved.get("linear1_bias"), u,
        )  # fmt: skip
        dg = None if dh is None else stored(dh * slope, u.output, u.floor)
        return linear_tangent(
            active, self.arrays["linear2_kernel"], dg,
            moved.get("linear2_kernel"), moved.get("linear2_bias"), u,
        )  # fmt: skip


def relu(h: Bounded, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """max(h, 0) and its derivative."""
    positive = h.value > 0
    active = Bounded(np.where(positive, h.value, 0), h.error)
    unsure = magnitude(h.value) <= h.error
    slope = positive.astype(h.value.dtype)
    return active, Bounded(slope, np.where(unsure, 1.0, 0.0))


def gelu(h: Bounded, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """h Phi(h) and its derivative."""
    share = normal_distribution(h.value)
    density = np.exp(-np.square(h.value) / 2) / np.sqrt(2 * np.pi)
    slope = share + h.value * density
    roundings = 4 * u.accumulate + 3 * u.step
    steepest = np.minimum(magnitude(slope) + 0.8 * h.error, 1.13)
    active = Bounded(h.value * share, h.error * steepest + roundings * h.size)
    bend = Bounded(slope, 0.8 * h.error + 2 * roundings * (1 + h.size))
    return stored(active, u.output, u.floor), bend


def normal_distribution(x: np.ndarray) -> np.ndarray:
    """Phi(x) in the precision of x: (1 + erf(x / sqrt 2)) / 2, with a series whose terms have one sign
    (Abramowitz and Stegun 1964, 26.2.11)."""
    clipped = np.clip(x, -12, 12)
    term = total = clipped
    for n in range(3, 401, 2):
        term = term * np.square(clipped) / n
        total = total + term
    half = total * np.exp(-np.square(clipped) / 2) / np.sqrt(2 * np.asarray(np.pi, x.dtype))
    return np.clip(x.dtype.type(0.5) + half, 0, 1)


class _Encoder:
    """The parts of the layer, one after the other."""

    def __init__(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> None:
        self.inputs, self.u, self.arrays = inputs, u, wide(inputs)
        self.pre = bool(inputs.case.option("pre"))
        x = narrowed(self.arrays["query"], u)
        if self.pre:
            self.norm1 = self._norm(x, "norm1")
            heads, self.attended = self._attention(self.norm1.output).forward(empty_rows)
            self.middle = self._joined(x, heads)
            self.norm2 = self._norm(self.middle, "norm2")
            self.network = self._network(self.norm2.output)
        else:
            heads, self.attended = self._attention(x).forward(empty_rows)
            self.norm1 = self._norm(self._joined(x, heads), "norm1")
            self.middle = self.norm1.output
            self.network = self._network(self.middle)
            self.norm2 = self._norm(self._joined(self.middle, self.network.output), "norm2")

    def _attention(self, x: Bounded) -> Layer:
        return Layer(self.inputs, self.u, x)

    def _norm(self, x: Bounded, name: str) -> Norm:
        gain, offset = self.arrays[f"{name}_gain"], self.arrays[f"{name}_offset"]
        return Norm(x, gain, offset, (2,), None, self.inputs.epsilon, self.u)

    def _network(self, y: Bounded) -> FeedForward:
        return FeedForward(y, self.arrays, self.inputs.case.option("activation"), self.u)

    def _joined(self, x: Bounded, y: Bounded) -> Bounded:
        return stored(x + y, self.u.output, self.u.floor)

    @property
    def output(self) -> Bounded:
        if self.pre:
            return self._joined(self.middle, self.network.output)
        return self.norm2.output


class _Differentiable(_Encoder):
    """The same with derivatives; `empty_rows` is what rows without keys are to these."""

    def __init__(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> None:
        self.empty_rows = empty_rows
        super().__init__(inputs, u, "zeros" if empty_rows == "zeros" else "uniform")

    def _attention(self, x: Bounded) -> Chain:
        self.attention = Chain(self.inputs, self.u, self.empty_rows, x)
        return self.attention

    def gradients(self, dz: Bounded) -> dict[str, Bounded]:
        """Those of the input, as "query", and of every parameter, for dz (B, L, E)."""
        arrays: dict[str, Bounded] = {}

        def through(norm: Norm, name: str, dy: Bounded) -> Bounded:
            gradients = norm.gradients(dy)
            arrays[f"{name}_gain"] = gradients["gain"]
            arrays[f"{name}_offset"] = gradients["offset"]
            return gradients["query"]

        def network(d: Bounded) -> Bounded:
            gradients = self.network.gradients(d)
            dy = gradients.pop("y")
            arrays.update(gradients)
            return dy

        def attention(d: Bounded) -> Bounded:
            gradients = self.attention.gradients(d)
            dx = gradients.pop("query")
            arrays.update(gradients)
            return dx

        if self.pre:
            dy = self._joined(dz, through(self.norm2, "norm2", network(dz)))
            arrays["query"] = self._joined(dy, through(self.norm1, "norm1", attention(dy)))
        else:
            ds = through(self.norm2, "norm2", dz)
            dt = through(self.norm1, "norm1", self._joined(ds, network(ds)))
            arrays["query"] = self._joined(dt, attention(dt))
        return arrays

    def tangent(self, moved: Moved) -> Bounded:
        """How the output moves, (B, L, E)."""
        u = self.u
        x = narrowed(moved["query"], u) if "query" in moved else None

        def normed(norm: Norm, name: str, x: Bounded | None) -> Bounded | None:
            gain, offset = (
                narrowed(moved[n], u) if n in moved else None
                for n in (f"{name}_gain", f"{name}_offset")
            )
            if x is None and gain is None and offset is None:
                return None
            return norm.tangent(x, gain, offset)

        def attended(x: Bounded | None) -> Bounded | None:
            operands = {} if x is None else dict.fromkeys(OPERANDS, x)
            own = {n for n in moved if n.startswith(("query_", "key_", "value_", "output_"))}
            if not operands and not own:
                return None
            return self.attention.tangent(operands, {n: moved[n] for n in own})

        def joined(x: Bounded | None, y: Bounded | None) -> Bounded | None:
            return together([x, y], u.output, u.floor)

        if self.pre:
            y = joined(x, attended(normed(self.norm1, "norm1", x)))
            z = joined(y, self.network.tangent(normed(self.norm2, "norm2", y), moved))
        else:
            y = normed(self.norm1, "norm1", joined(x, attended(x)))
            z = normed(self.norm2, "norm2", joined(y, self.network.tangent(y, moved)))
        return Bounded.exact(np.zeros_like(self.output.value)) if z is None else z


@np.errstate(all="ignore")
def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """The output (B, L, E) with its bound.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    encoder = _Encoder(inputs, rounding, empty_rows)
    return Outputs({"output": known(encoder.output)}, encoder.attended.keys)


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of the input, as "query", and of every parameter, in their shapes, for a cotangent
    (B, L, E).

    `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises ValueError for another one,
    and NoExtendedPrecision.
    """
    encoder = _Differentiable(inputs, rounding, empty_rows)
    dz = narrowed(wide(inputs, {"cotangent": cotangent})["cotangent"], rounding)
    gradients = {name: known(x) for name, x in encoder.gradients(dz).items()}
    return Outputs(gradients, encoder.attention.pairs.keys)


@np.errstate(all="ignore")
def jvp(inputs: Inputs, tangents: Moved, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """How the output moves, (B, L, E), as the input and the parameters move along `tangents`.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    encoder = _Differentiable(inputs, rounding, empty_rows)
    output = encoder.tangent(moving(inputs, tangents))
    return Outputs({"output": known(output)}, encoder.attention.pairs.keys)
