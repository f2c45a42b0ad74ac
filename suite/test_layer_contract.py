"""Promise: a layer is a function of its inputs and parameters: the same bits on a second call and from
a fresh instance, and nothing handed in is changed, nor anything attached to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from suite.judge.cell import check
from suite.judge.layers import LayerCell
from suite.judge.verdict import Deviation
from suite.spec.layer_catalogue import layer_cases
from suite.spec.layers import LayerCase


def every_third(level: str) -> tuple[LayerCase, ...]:
    """The smoke cases and every third of the others: what is promised here does not depend on values."""
    smoke, found = layer_cases("smoke"), layer_cases(level)
    return smoke + tuple(c for c in found[::3] if c not in smoke)


def attached(array: Any) -> Any:
    """What Keras keeps on a tensor: the mask that travels with it."""
    return getattr(array, "_keras_mask", None)


@check(every_third, LayerCell)
def test_layer_contract(cell: LayerCell) -> None:
    backend, inputs = cell.implementation.backend, cell.inputs
    prepared = cell.prepare(inputs)
    arrays = {n: a for n, a in prepared.arguments.items() if backend.is_array(a)}
    before = {name: backend.to_numpy(a).copy() for name, a in arrays.items()}
    masks = {name: attached(a) for name, a in arrays.items()}
    first = cell.read(cell.call(prepared), inputs)
    kept = first.values.copy()
    for name, array in arrays.items():
        if not np.array_equal(backend.to_numpy(array), before[name], equal_nan=True):
            raise Deviation("mutated-input", f"the call changed its argument {name}")
        if attached(array) is not masks[name]:
            raise Deviation("mutated-input", f"the call changed the mask attached to {name}")
    again = cell.read(cell.call(prepared), inputs)
    cell.expect_bitwise(again.values, kept, "not-deterministic", "a second call")
    if first.weights is not None and again.weights is not None:
        cell.expect_bitwise(again.weights, first.weights, "not-deterministic", "second weights")
    if not cell.has_parameters:
        return
    fresh = cell.read(cell.call(cell.prepare(inputs)), inputs)
    cell.expect_bitwise(fresh.values, kept, "not-deterministic", "a fresh layer's first call")
    value = -inputs.value
    other = replace(inputs, value=value, query=value, key=value) if inputs.own else replace(
        inputs, value=value
    )  # fmt: skip
    cell.call(cell.prepare(other))
    same = backend.to_numpy(first.native).reshape(kept.shape)
    cell.expect_bitwise(same, kept, "overwritten", "an answer after a later layer's call")
