"""Promise: an attention sink is one more key with its logit and the value 0, and nothing else.

The checks `values` and `gradients` compare outputs and gradients with the reference.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.catalogue import cases_of
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.test_equalities import expect_equal

PLAIN = "sdpa/none/mha/{dt}/b2h3q17k23d8/sinks"
GROUPED = "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/sinks"
EMPTY = (
    "sdpa/padempty/mha/{dt}/b2h3q17k23d8/sinks",
    "sdpa/bool.qk.empty/mha/{dt}/b2h3q17k23d8/sinks/dense",
)


@check(cases_of(PLAIN, GROUPED), needs=("bias",))
def test_sink_equals_key(cell: Cell) -> None:
    """A sink equals a zero key with a bias of the sink and a zero value."""
    inputs, s = cell.inputs, cell.inputs.sizes
    key, value = (np.concatenate([x, 0 * x[:, :, :1]], 2) for x in (inputs.key, inputs.value))
    bias = np.zeros((1, s.H, s.Lq, s.Lk + 1))
    bias[0, :, :, -1] = np.asarray(inputs.feature("sinks"))[:, None]
    visible = np.ones((s.Lq, s.Lk), bool) if inputs.dense_mask is None else inputs.dense_mask
    mask = np.concatenate([visible, np.ones((*visible.shape[:-1], 1), bool)], -1)
    changed_mask = (
        {} if inputs.dense_mask is None else {"mask_array": mask, "form": "dense", "mask": None}
    )
    with_key = inputs.replace(sinks=None, key=key, value=value, bias=bias, **changed_mask)
    expect_equal(cell, inputs, with_key, "a sink and a key with the same logit")


@check(cases_of(PLAIN, GROUPED))
def test_sink_of_nothing(cell: Cell) -> None:
    """A sink of -inf changes nothing but rounding."""
    without_weight = cell.inputs.replace(sinks=np.full(cell.inputs.sizes.H, -np.inf))
    without_sink = cell.inputs.replace(sinks=None)
    expect_equal(cell, without_weight, without_sink, "a sink of -inf and no sink")


@check(cases_of(*EMPTY), single_answer=True)
def test_sink_without_keys(cell: Cell) -> None:
    """A row that attends only its sink is exactly 0, whatever the election for fully masked rows."""
    rows = ~cell.inputs.attends.any(-1)
    got = cell.run().values[np.broadcast_to(rows, cell.inputs.full_shape("output")[:3])]
    if (got != 0).any():
        raise WrongAnswer(
            "value", f"a row that attends only its sink is {got.ravel()[:3]}, must be 0"
        )


@check(cases_of("sdpa/none/mha/{dt}/b2h3q17k23d8/sinks/offset"))
def test_high_sink(cell: Cell) -> None:
    """A sink as large as the scores does not overflow: the maximum is subtracted from the sink, too."""
    inputs = cell.inputs
    level = 8.0 * float(inputs.key.flat[0]) * inputs.effective_scale
    high = inputs.replace(sinks=round_to(np.asarray(inputs.feature("sinks")) + level, cell.dtype))
    cell.judge(cell.run(high), high)
