"""Promise: outputs are exact for one key, one-hot weights and empty arrays. Means are rounded to
nearest."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_close
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.recipes import generator


def expect_exactly(cell: Cell, got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Raise WrongAnswer "value" unless every element of `got` equals that of `want`. A zero may have
    either sign."""
    wrong = ~(got == want)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise WrongAnswer(
            "value",
            f"{what}: element {index} is {float(got[index])!r}, must be exactly {float(want[index])!r}; "
            f"{int(wrong.sum())} of {wrong.size} elements differ",
        )


@check(cases_of("sdpa/none/mha/{dt}/b2h3q17k16d8", "sdpa/none/mqa/{dt}/b2h5q17k16d8"))
def test_one_hot_weights(cell: Cell) -> None:
    """All weights but one underflow, so the output is exactly one value.

    Scores are multiples of a gap with exp(-gap) below half an ulp of any sum (2^-160; 2^-1075 for
    float64). The largest score is within float16's range.
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    gap = 1024.0 if cell.dtype.name == "f64" else 128.0
    order = generator(cell.case.id + "/order", cell.seed).permutation(s.Lk)
    key = np.zeros_like(inputs.key)
    key[..., 0] = order
    query = np.zeros_like(inputs.query)
    query[..., 0] = gap
    got = cell.run(inputs.replace(query=query, key=key, scale=1.0)).values
    value = np.repeat(inputs.value, s.group, axis=1)[:, :, [int(np.argmax(order))]]
    expect_exactly(cell, got, np.broadcast_to(value, got.shape), "one-hot weights")


@check(
    cases_of("sdpa/none/mha/{dt}/b2h3q17k1d8", "sdpa/none/mqa/{dt}/b2h5q17k1d8"),
    single_answer=True,
)
def test_single_key(cell: Cell) -> None:
    """With one key the weight is 1, so the output is exactly the value."""
    s = cell.inputs.sizes
    got = cell.run().values
    value = np.repeat(cell.inputs.value, s.group, axis=1)
    expect_exactly(cell, got, np.broadcast_to(value, got.shape), "single key")


@check(
    cases_of("sdpa/causal/mha/{dt}/b2h3q17k23d8", "sdpa/causal/gqa2/{dt}/b2h6q17k23d8"),
    single_answer=True,
)
def test_first_row(cell: Cell) -> None:
    """Under a causal mask the first row attends only the first key: its output is exactly that value."""
    s = cell.inputs.sizes
    if not (cell.inputs.attends[:, :, 0].sum(-1) == 1).all():
        raise NotApplicable("with the causal flag the first row does not attend exactly one key")
    got = cell.run().values[:, :, 0]
    want = np.repeat(cell.inputs.value, s.group, axis=1)[:, :, 0]
    expect_exactly(cell, got, want, "first causal row")


@check(
    cases_of("sdpa/none/mha/{dt}/b2h3q17k16d8/integers", "sdpa/none/mqa/{dt}/b2h5q17k16d8/integers")
)
def test_dyadic_mean(cell: Cell) -> None:
    """Zero queries average integer values over 2^n keys, within the bound.

    The output need not be exact: kernels that merge chunks of keys by log-sum-exp (split-KV decoding)
    round log(2^n).
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    zeros = inputs.replace(query=np.zeros_like(inputs.query))
    got = cell.run(zeros).values
    mean = np.repeat(inputs.value, s.group, axis=1).mean(2, keepdims=True)
    want = np.broadcast_to(mean, got.shape)
    expect_close(got, want, cell.bound(zeros), "dyadic mean")


@check(cases_of(Ask("sdpa/none/mha/bf16/b2h3q17k16d8", "sdpa/none/mha/f16/b2h3q17k16d8")))
def test_nearest(cell: Cell) -> None:
    """A mean three quarters of an ulp up is rounded up: the output is rounded to nearest, not
    truncated.

    Zero queries over 16 keys make every weight 1/16. 4 of the values are a number of the dtype, and 12
    the next number, so products and sums are exact in float32 and only the output is rounded. Only for
    16-bit dtypes, and implementations that sum in float32.
    """
    if not cell.dtype.is_half:
        raise NotApplicable("the sum is exact only for 16-bit dtypes")
    if cell.numerics == "working":
        raise NotApplicable("sums in the case's dtype, where this sum is not exact")
    inputs, s = cell.inputs, cell.inputs.sizes
    ulp = 2.0 * cell.dtype.unit_roundoff
    sign = np.where(inputs.value[:, :, :1] < 0, -1.0, 1.0)
    base = 1.0 + ulp * np.floor(np.abs(inputs.value[:, :, :1]) * 16)
    value = sign * (base + ulp * (np.arange(s.Lk) % 4 != 0)[:, None])
    got = cell.run(inputs.replace(query=np.zeros_like(inputs.query), value=value)).values
    want = np.repeat(sign * (base + ulp), s.Lq, axis=2)
    expect_exactly(cell, got, want, "mean rounded to nearest")


@check(
    cases_of(
        "sdpa/none/mha/{dt}/b0h3q5k7d8",
        "sdpa/causal/mha/{dt}/b0h3q5k7d8",
        "sdpa/none/gqa2/{dt}/b2h4q0k7d8",
        "sdpa/pad/mha/{dt}/b2h4q0k7d8",
    ),
    single_answer=True,
)
def test_empty(cell: Cell) -> None:
    """No samples or no queries give an empty output of the right shape."""
    got = cell.run().values
    if got.size:
        raise WrongAnswer("shape", f"expected an empty output, got shape {got.shape}")
