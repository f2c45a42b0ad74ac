"""Operations and bytes that a case asks for, counted from its mask.

P is the number of pairs of a query and a key that attend, summed over samples and heads. Attention's
forward pass multiplies and adds 2 P (D + Dv) times; its backward pass 2.5 times as much where the
scores are computed again, as fused kernels do (Dao 2023, section 4: five products for two). Bytes are
those of every operand and the output, once: the least that has to move. Published figures follow other
conventions (causal counted in full, or multiplications alone), and are not to be compared with these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.spec.layers import LayerInputs
from suite.spec.problem import Inputs

BLOCK = 256
"""Query rows whose mask is held at a time."""

BACKWARD = 2.5
"""Operations of a backward pass that computes the scores again, over those of the forward pass."""


@dataclass(frozen=True)
class Work:
    """Floating-point operations and bytes moved at least; `pairs` that attend."""

    pairs: int
    flops: float
    bytes: int

    @classmethod
    def of(cls, inputs: Inputs | LayerInputs, direction: str) -> Work:
        """The work of one call. Raises ValueError for operators whose work nobody counted."""
        return _of_attention(inputs, direction) if isinstance(inputs, Inputs) else _of_layer(inputs)


def _of_attention(inputs: Inputs, direction: str) -> Work:
    s, pairs = inputs.sizes, count_pairs(inputs)
    forward = 2.0 * pairs * (s.D + s.Dv)
    factor = {"forward": 1.0, "backward": BACKWARD, "forward+backward": 1.0 + BACKWARD}[direction]
    operands = inputs.query.size + inputs.key.size + inputs.value.size
    output = s.B * s.H * s.Lq * s.Dv
    # Backward reads the operands, the output and its cotangent, and writes three gradients.
    numbers = operands + output
    if direction != "forward":
        numbers = 2 * operands + 2 * output
    if inputs.bias is not None:
        numbers += inputs.bias.size
    return Work(pairs, forward * factor, numbers * inputs.dtype.itemsize)


def _of_layer(inputs: LayerInputs) -> Work:
    s, w = inputs.sizes, inputs.widths
    pairs = int(inputs.attends.sum())
    if inputs.operator == "additive":
        # A sum, a tanh (counted as one) and a product with its sum for every unit of a pair.
        flops = 2.0 * s.B * (s.Lq * w.query + s.Lk * w.key) * s.D + pairs * (4.0 * s.D + 2.0 * s.Dv)
    elif inputs.operator in ("multi-head", "self-attention"):
        projected = s.Lq * w.query * s.H * s.D + s.Lk * w.key * s.Hkv * s.D
        projected += s.Lk * w.value * s.Hkv * s.Dv + s.Lq * s.H * s.Dv * w.output
        flops = 2.0 * s.B * projected + 2.0 * pairs * (s.D + s.Dv)
    else:
        raise ValueError(f"the work of {inputs.operator} is not counted")
    arrays: list[Any] = [inputs.query, inputs.key, inputs.value, *inputs.parameters.values()]
    numbers = sum(np.size(a) for a in arrays) + s.B * s.Lq * w.output
    return Work(pairs, flops, numbers * inputs.dtype.itemsize)


def count_pairs(inputs: Inputs) -> int:
    """Pairs of a query and a key that attend, over samples and heads; a bias of -inf hides, too."""
    s = inputs.sizes
    if inputs.bias is not None and np.isneginf(inputs.bias).any():
        return int(inputs.attends.sum())
    allowed = inputs.allowed
    if allowed is None:
        return s.B * s.H * s.Lq * s.Lk
    total = 0
    for start in range(0, s.Lq, BLOCK):
        rows = min(BLOCK, s.Lq - start)
        block = allowed(slice(start, start + rows))
        total += int(np.broadcast_to(block, (s.B, s.H, rows, s.Lk)).sum())
    return total
