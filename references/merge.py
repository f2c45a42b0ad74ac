"""Merging of partial answers: a softmax over the parts, whose scores are the log-sum-exps and whose
values are the partial outputs. So reference and bounds are those of plain attention (`references.sdpa`)
with a bias and without queries, one row of P keys for every row that is merged.

Three things are added to what `references.softmax` counts. A kernel that merges part after part rounds up
to P - 1 times where one that merges all at once rounds once: u_acc is taken P - 1 times. What it merges
has a log-sum-exp up to log P larger than that of the part which weighs most, and rounds it before the
exponential. That moves the weight of a group by (P - 1) u_acc log P at most, relative to itself, and
that of the others in return; the output moves by twice that times the largest |o_i - o|, the
log-sum-exp by (P - 1) u_acc log P. And kernels write o1 + w (o2 - o1) for two parts, as ring attention
does: difference and product are rounded relative to |o2 - o1|, whatever the parts weigh, which is at most
4 (P - 1) u_acc times the largest |o_i - o|.

Where parts are themselves off, by d1 and d2 in their log-sum-exps and by beta1 and beta2 in their
outputs, the merged output is off by tanh((|d1| + |d2|) / 4) |o1 - o2| + beta1 + beta2 at most: the
weight of one of two parts is a logistic function of l1 - l2, and moves by at most tanh(d / 4) as its
argument moves by d.

Source: Dao et al., FlashAttention, NeurIPS 2022, appendix B. The bounds are derived here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from references import sdpa
from references.outputs import Outputs, moving
from references.rounding import Bounded, Roundoffs
from suite.spec.case import Case
from suite.spec.inputs import Inputs
from suite.spec.operators.sdpa import SDPA
from suite.spec.sizes import Sizes


@np.errstate(all="ignore")
def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """The merged output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes, and the log-sum-exp
    (B, H, Lq). Rows that no part has keys of answer 0 and -inf: `empty_rows` is of no influence.
    Raises NoExtendedPrecision."""
    rows, parts = _rows(inputs), inputs.sizes.Lk
    outputs = sdpa.forward(rows, _nested(rounding, parts))
    output, lse = (_back(outputs.arrays[name], inputs, name) for name in ("output", "lse"))
    merges = (parts - 1) * rounding.accumulate
    grown = merges * np.log(max(parts, 1))
    spread = np.abs(inputs.arrays["partial_output"] - output.value).max(0, initial=0.0)
    output = replace(
        output, error=output.error + (2 * grown + 4 * merges) * spread.astype(np.float64)
    )
    lse = replace(lse, error=lse.error + grown)
    deviation = outputs.deviation
    if deviation is not None:
        deviation = deviation.reshape(output.value.shape)
    return Outputs({"output": output, "lse": lse}, _keys(inputs), deviation)


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of partial_output and partial_lse, in their own shapes, for a cotangent of the
    output, (B, H, Lq, Dv)."""
    rows, parts = _rows(inputs), inputs.sizes.Lk
    received = cotangent.reshape(-1, 1, 1, inputs.sizes.Dv)
    gradients = sdpa.vjp(rows, received, _nested(rounding, parts)).arrays
    arrays = {
        "partial_output": _by_part(gradients["value"], inputs, "partial_output"),
        "partial_lse": _by_part(gradients["bias"], inputs, "partial_lse"),
    }
    return Outputs(arrays, _keys(inputs))


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, H, Lq, Dv), as partial outputs and log-sum-exps move along `tangents`.

    Raises ValueError for the tangent of an unknown array.
    """
    moving(inputs, tangents)
    own = {"partial_output": "value", "partial_lse": "bias"}
    moved = {own[name]: _by_row(tangent, inputs, name) for name, tangent in tangents.items()}
    outputs = sdpa.jvp(_rows(inputs), moved, _nested(rounding, inputs.sizes.Lk))
    return Outputs({"output": _back(outputs.arrays["output"], inputs, "output")}, _keys(inputs))


def _nested(u: Roundoffs, parts: int) -> Roundoffs:
    return replace(u, accumulate=max(parts - 1, 1) * u.accumulate)


def _rows(inputs: Inputs) -> Inputs:
    """Plain attention of one row and P keys for every row, with scores that are a bias alone."""
    s = inputs.sizes
    count = s.B * s.H * s.Lq
    sizes = Sizes(count, 1, 1, 1, s.Lk, 1, s.Dv)
    case = Case.of(SDPA, sizes, inputs.dtype, bias="bhqk", lse=True)
    arrays = {
        "query": np.zeros((count, 1, 1, 1)),
        "key": np.zeros((count, 1, s.Lk, 1)),
        "value": _by_row(inputs.arrays["partial_output"], inputs, "partial_output"),
        "bias": _by_row(inputs.arrays["partial_lse"], inputs, "partial_lse"),
    }
    return Inputs(case, arrays, sizes, seed=inputs.seed)


def _by_row(array: np.ndarray, inputs: Inputs, name: str) -> np.ndarray:
    """(P, B, H, Lq, Dv) as values (rows, 1, P, Dv); (P, B, H, Lq) as a bias (rows, 1, 1, P)."""
    s = inputs.sizes
    if name == "partial_output":
        return np.ascontiguousarray(np.moveaxis(array, 0, 3)).reshape(-1, 1, s.Lk, s.Dv)
    return np.ascontiguousarray(np.moveaxis(array, 0, 3)).reshape(-1, 1, 1, s.Lk)


def _by_part(array: Bounded, inputs: Inputs, name: str) -> Bounded:
    """The reverse of `_by_row`."""
    s = inputs.sizes
    shape = (s.B, s.H, s.Lq, s.Lk) + ((s.Dv,) if name == "partial_output" else ())
    return Bounded(*(np.moveaxis(x.reshape(shape), 3, 0) for x in (array.value, array.error)))


def _back(array: Bounded, inputs: Inputs, name: str) -> Bounded:
    shape = inputs.full_shape(name)
    return Bounded(array.value.reshape(shape), array.error.reshape(shape))


def _keys(inputs: Inputs) -> np.ndarray:
    """Ones: the answer of a row without keys is promised, and no election."""
    return np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int)
