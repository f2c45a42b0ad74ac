"""Promise: a logit scale multiplies the scores of its query head, and nothing else.

The checks `values` and `gradients` compare outputs and gradients with the reference.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.spec.catalogue import cases_of
from attention_conformance.suite.test_equalities import expect_equal

PLAIN = "sdpa/none/mha/{dt}/b2h3q17k23d8/logitscale"
GROUPED = "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/logitscale"


@check(cases_of(PLAIN, GROUPED))
def test_logit_scale_equals_scaled_query(cell: Cell) -> None:
    """Logit scales that are powers of two equal scaled queries."""
    powers = 2.0 ** (np.arange(cell.inputs.sizes.H) % 3 - 1)
    with_scale = cell.inputs.replace(logit_scale=powers)
    query = cell.inputs.query * powers[:, None, None]
    scaled_query = cell.inputs.replace(logit_scale=None, query=query)
    expect_equal(cell, with_scale, scaled_query, "a logit scale and a query multiplied by it")
