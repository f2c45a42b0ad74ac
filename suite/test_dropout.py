"""Promise: dropout of the weights keeps each with probability 1 - rate and scales it by 1 / (1 - rate),
in training alone.

The layer is made to show its weights: queries and keys are projected to zero, so that weights are
uniform, the values are unit vectors, each feature there twice (so that dropout of the output is told
from dropout of the weights), and every projection after them is the identity. What is random is judged
by the exact tail of the binomial distribution, with a probability of `FALSE_ALARM` for each comparison
to fail where the layer is right.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, bdtrc

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.case import Case
from suite.spec.catalogue import parsed
from suite.spec.inputs import Inputs
from suite.spec.masks import parse_mask

FALSE_ALARM = 1e-9

CASES = (
    "multi-head/none/mha/f32/b32h2q4k4d8/e16.16.16.16/self",
    "multi-head/none/mha/bf16/b32h2q4k4d8/e16.16.16.16/self",
    "dot/none/mha/f32/b64h1q4k4d8/e8.8.8.8/unscaled",
    "additive/none/mha/f32/b64h1q4k4d8/e8.8.8.8/identity",
)


def cases(level: str) -> list[Case]:
    """float32 at smoke."""
    return [c for c in parsed(CASES) if level != "smoke" or c.dtype.name == "f32"]


def readable(inputs: Inputs, rate: float) -> Inputs:
    """Inputs whose output, (B, Lq, H, 2, Lk) flattened, is the weights, twice: uniform before dropout."""
    s = inputs.sizes
    unit = np.tile(np.eye(s.Lk), 2)
    if "output_kernel" not in inputs.arrays:
        arrays = {
            "query": np.zeros_like(inputs.query),
            "key": np.zeros_like(inputs.key),
            "value": np.broadcast_to(unit, (s.B, s.Lk, s.Dv)).copy(),
        }
        return inputs.replace(rate=rate, training=True, **arrays)
    x = np.zeros_like(inputs.query)
    x[:, :, : s.Lk] = np.eye(s.Lk)
    arrays = {n: np.zeros_like(a) for n, a in inputs.parameters.items()}
    for h in range(s.H):
        arrays["value_kernel"][: s.Lk, h] = unit
    arrays["output_kernel"] = np.eye(s.H * s.Dv).reshape(s.H, s.Dv, -1)
    return inputs.replace(rate=rate, training=True, query=x, key=x, value=x, **arrays)


def tail(n: int, p: float, count: int) -> float:
    """Two-sided tail probability of `count` successes of `n` with probability `p`."""
    return float(2 * min(bdtr(count, n, p), bdtrc(count - 1, n, p)))


def expect_probable(n: int, p: float, count: int, what: str) -> None:
    """Raise Deviation "dropout" where `count` of `n` is less likely than `FALSE_ALARM`."""
    chance = tail(n, p, count)
    if chance < FALSE_ALARM:
        raise Deviation(
            "dropout",
            f"{what}: {count} of {n}, expected {p:.4g} of them; the chance of that is {chance:.1g}",
        )


def kept(cell: Cell, inputs: Inputs) -> np.ndarray:
    """Which weights were kept, boolean (B, Lq, H, Lk). Raises Deviation where others are off."""
    s = inputs.sizes
    twice = cell.run(inputs).values.reshape(s.B, s.Lq, s.H, 2, s.Lk)
    if not np.array_equal(twice[:, :, :, 0], twice[:, :, :, 1]):
        raise Deviation("dropout", "two features of one value are not dropped together")
    got = twice[:, :, :, 0]
    want = 1.0 / (s.Lk * (1.0 - inputs.rate))
    # Weight, rescaling and the product with ones: at most three roundings above those of the bound.
    limit = cell.bound(inputs.replace(rate=0.0, training=False))
    limit = (
        limit.reshape(twice.shape)[:, :, :, 0] / (1.0 - inputs.rate)
        + 3 * cell.dtype.unit_roundoff * want
    )
    zero, whole = got == 0, np.abs(got - want) <= limit
    wrong = ~(zero | whole)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Deviation(
            "dropout",
            f"a kept weight is {float(got[at]):.6g}, expected 0 or {want:.6g} = weight / (1 - rate); "
            f"{int(wrong.sum())} of {wrong.size}",
        )
    return whole


@check(cases)
def test_dropout(cell: Cell) -> None:
    pattern = cell.implementation.declared.dropout
    if not pattern:
        raise NotApplicable("has no dropout")
    rate = 0.25
    inputs = readable(cell.inputs, rate)
    first = kept(cell, inputs)
    B, Lq, H, Lk = first.shape
    alone = first[:1, :, :1] if pattern == "shared" else first
    if pattern == "shared" and not (first == alone).all():
        raise Deviation("dropout", "declared one pattern for all samples and heads, got several")
    expect_probable(alone.size, 1 - rate, int(alone.sum()), "weights kept")
    if pattern == "elements":
        alike = rate**2 + (1 - rate) ** 2
        for what, one, other in (
            ("alike between two heads", first[:, :, 0], first[:, :, -1]),
            ("alike between two samples", first[::2], first[1::2]),
        ):
            if one is not other and (H > 1 or "heads" not in what):
                expect_probable(one.size, alike, int((one == other).sum()), what)
    for what, one, other in (
        ("alike between two queries", alone[:, ::2], alone[:, 1::2]),
        ("alike between two keys", alone[..., ::2], alone[..., 1::2]),
    ):
        alike = rate**2 + (1 - rate) ** 2
        expect_probable(one.size, alike, int((one == other).sum()), what)
    if not np.array_equal(kept(cell, inputs), first):
        raise Deviation("dropout", "the same seed gave another pattern")
    if np.array_equal(kept(cell, inputs.replace(dropout_seed=1)), first):
        raise Deviation("dropout", "another seed gave the same pattern")
    for masked in with_masks(cell, inputs):
        got = cell.run(masked).values.reshape(B, Lq, H, 2, Lk)[:, :, :, 0]
        hidden = np.logical_not(masked.attends).transpose(0, 2, 1, 3)
        if got[hidden].any():
            raise Deviation("leak", "while dropout is on a hidden pair has a weight")


def with_masks(cell: Cell, inputs: Inputs) -> list[Inputs]:
    """The inputs under those of a causal and a padding mask that the layer takes."""
    variations = [inputs.replace(mask=parse_mask(token)) for token in ("causal", "pad")]
    return [x for x in variations if cell.implementation.missing(x.needs) is None]


@check(cases)
def test_dropout_off(cell: Cell) -> None:
    """In evaluation, and at rate 0, dropout changes nothing, with masks or without; at rate 1 it leaves
    zeros."""
    if not cell.implementation.declared.dropout:
        raise NotApplicable("has no dropout")
    inputs = cell.inputs
    for plain in (inputs, *with_masks(cell, inputs)):
        for what, changed in (
            ("in evaluation", plain.replace(rate=0.5)),
            ("at rate 0", plain.replace(rate=0.0, training=True)),
        ):
            try:
                cell.judge(cell.run(changed), plain)
            except Deviation as deviation:
                raise Deviation(deviation.kind, f"{what}: {deviation.message}") from deviation
    if not cell.implementation.declared.whole_dropout:
        return
    got = cell.run(readable(inputs, 1.0)).values
    if (got != 0).any():
        raise Deviation("dropout", f"at rate 1 an output is {float(got[got != 0][0])!r}, not 0")
