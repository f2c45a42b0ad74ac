"""Promise: what a mask hides has no influence on a layer, nor has the future on the past; the order of
keys, samples and heads has no meaning. The first two need no reference and no parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from suite.judge.cell import check
from suite.judge.layers import LayerCell
from suite.judge.verdict import Deviation, NotElected
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.layer_catalogue import in_dtypes, layer_cases
from suite.spec.layers import LayerCase, LayerInputs
from suite.spec.recipes import generator


def masked(level: str) -> list[LayerCase]:
    """Layers with a mask, or a causal flag, of several keys."""
    return [c for c in layer_cases(level) if c.mask is not None and c.sizes.Lk > 1]


def replaced(inputs: LayerInputs, keys: np.ndarray, by: Callable) -> LayerInputs:  # type: ignore[type-arg]
    """Inputs whose keys and values are `by(array)` where `keys`, boolean (B, Lk), says so.

    Where query, key and value are one tensor the query changes with them.
    """
    k, v = (
        round_to(np.where(keys[..., None], by(x), x), inputs.dtype)
        for x in (inputs.key, inputs.value)
    )
    return replace(inputs, query=k if inputs.own else inputs.query, key=k, value=v)


def expect_unmoved(cell: LayerCell, changed: LayerInputs, keys: np.ndarray, what: str) -> None:
    """Rows that attend none of `keys`, and are none of them themselves, keep their bits."""
    inputs = cell.inputs
    judged = np.logical_not((inputs.attends & keys[:, None, None]).any((1, 3)))  # (B, Lq)
    if inputs.own:
        judged &= ~keys
    judged &= np.asarray(inputs.attends.any(-1)).all(1)
    if not judged.any():
        raise NotElected("every row sees what would be changed")
    before = cell.run(inputs).values.copy()
    after = cell.run(changed).values
    rows = np.broadcast_to(judged[..., None], before.shape)
    cell.expect_bitwise(np.where(rows, after, 0.0), np.where(rows, before, 0.0), "leak", what)


@check(masked, LayerCell)
def test_layer_poison(cell: LayerCell) -> None:
    """Large values in positions that rows cannot see leave these rows as they are."""
    seen = np.asarray(cell.inputs.attends.any((1, 2)))  # (B, Lk)
    hidden = np.logical_not(seen)
    if not hidden.any():
        # The position that fewest rows attend: those that do are left out.
        count = cell.inputs.attends.any(1).sum(1)
        hidden = np.arange(seen.shape[1]) == count.argmin(-1)[:, None]
    size = 30.0 if cell.dtype.name == "f16" else 1e3
    sign = np.where(np.arange(seen.shape[1]) % 2, -size, size)[:, None]
    changed = replaced(cell.inputs, hidden, lambda x: sign + x)
    expect_unmoved(cell, changed, hidden, "poison in masked positions")


@check(
    in_dtypes(
        "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
        "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
        "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
        "multi-head/causal/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
        "multi-head/causal/gqa3/{dt}/b2h6q5k5d4/e12.12.12.12/self",
        "multi-head/causal/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single",
        "self-attention/causal/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self/head",
        "additive/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/identity",
        "concat/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/unscaled",
        "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
        "masked/causal/mha/{dt}/b2h1q7k7d8/e8.8.8.8/head",
    ),
    LayerCell,
)
def test_layer_future(cell: LayerCell) -> None:
    """Other tokens from position t on change no row before t, bit by bit, and do change a row after."""
    inputs = cell.inputs
    t = inputs.sizes.Lq // 2
    future = np.broadcast_to(np.arange(inputs.sizes.Lk) >= t, (inputs.sizes.B, inputs.sizes.Lk))
    other = replaced(inputs, future, lambda x: -2.0 * x)
    before = cell.run(inputs).values.copy()
    after = cell.run(other).values
    cell.expect_bitwise(after[:, :t], before[:, :t], "leak", f"rows before {t}, new future")
    if np.array_equal(after, before):
        raise Deviation("leak", "changing the future changed nothing at all, not even the future")


def compare(cell: LayerCell, other: LayerInputs, what: str, undo: Callable | None = None) -> None:  # type: ignore[type-arg]
    """Two forms agree within the sum of their bounds; `undo` maps the second output to the first.

    A layer with parameters of its own has no bounds. It is asked in float64, and its two answers must
    agree to float32's roundoff of the largest output: rounding would have to be amplified by 2^29 to
    get there, and no fault is that small.
    """
    undo = undo or (lambda array: array)
    if not cell.has_parameters:
        if cell.dtype.name != "f64":
            raise NotElected("the layer takes no parameters: forms are compared in float64 alone")
        first = cell.run(cell.inputs).values.copy()
        second = undo(cell.run(other).values)
        size = np.abs(first).max(initial=0.0) * DTYPES["f32"].unit_roundoff
        cell.expect_close(second, first, np.full(first.shape, size), what)
        return
    limit = cell.bound(cell.inputs) + undo(cell.bound(other))
    first = cell.run(cell.inputs).values.copy()
    second = undo(cell.run(other).values)
    cell.expect_close(second, first, limit, what)


PERMUTED = in_dtypes(
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.b1qk/mha/{dt}/b2h3q5k9d4/e12.12.12.12/dense",
    "multi-head/bool.bhqk/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self/dense",
    "multi-head/pad/mha/{dt}/b2h2q5k9d6/e12.10.14.12",
    "multi-head/none/gqa3/{dt}/b2h6q5k9d4/e12.10.10.12",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14/head",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity/head",
    "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
)


@check(PERMUTED, LayerCell)
def test_layer_key_permutation(cell: LayerCell) -> None:
    """The order of keys has no meaning; in self-attention rows are reordered with them."""
    inputs, s = cell.inputs, cell.inputs.sizes
    order = generator(cell.case.id + "/order", cell.seed).permutation(s.Lk)
    changes = {"key": inputs.key[:, order], "value": inputs.value[:, order]}
    if inputs.own:
        if inputs.dense_mask is not None:
            raise NotElected("query, key and value are one tensor, and a mask tells rows apart")
        back = np.argsort(order)
        changes["query"] = changes["key"]
        other = inputs.with_dense(**changes)
        return compare(cell, other, "permuted tokens", lambda array: array[:, back])
    mask = inputs.mask_in_order(-1, order)
    compare(cell, inputs.with_dense(mask_array=mask, **changes), "permuted keys")


@check(PERMUTED, LayerCell)
def test_layer_batch_permutation(cell: LayerCell) -> None:
    """A sample's answer does not depend on its place in the batch."""
    inputs = cell.inputs
    order = np.arange(inputs.sizes.B)[::-1]
    mask = inputs.mask_in_order(-4, order)
    operands = {n: getattr(inputs, n)[order] for n in ("query", "key", "value")}
    compare(
        cell, inputs.with_dense(mask_array=mask, **operands), "reversed batch", lambda a: a[order]
    )


@check(PERMUTED, LayerCell)
def test_layer_head_permutation(cell: LayerCell) -> None:
    """Heads in another order, with their parameters and masks, give the same output."""
    inputs, s = cell.inputs, cell.inputs.sizes
    if inputs.operator != "multi-head":
        raise NotElected("has one head")
    if not cell.has_parameters:
        raise NotElected("the layer takes no parameters whose heads could be exchanged")
    groups = np.arange(s.Hkv)[::-1]
    order = np.arange(s.H).reshape(s.Hkv, -1)[::-1].ravel()
    parameters = dict(inputs.parameters)
    for name, places in (("query", order), ("key", groups), ("value", groups)):
        parameters[f"{name}_kernel"] = parameters[f"{name}_kernel"][:, places]
        if f"{name}_bias" in parameters:
            parameters[f"{name}_bias"] = parameters[f"{name}_bias"][places]
    parameters["output_kernel"] = parameters["output_kernel"][order]
    mask = inputs.mask_in_order(-3, order)
    compare(cell, inputs.with_dense(mask_array=mask, parameters=parameters), "reversed heads")
