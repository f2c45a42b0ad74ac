"""Promise: equivalent forms of one problem give equal outputs. No reference is needed.

Two outputs may differ by the sum of their bounds. With identical arithmetic they are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_close
from attention_conformance.suite.judge.verdict import NotApplicable
from attention_conformance.suite.spec.catalogue import cases_of, has_axes, with_plain_cases
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Window
from attention_conformance.suite.spec.recipes import generator

Undo = Callable[[np.ndarray], np.ndarray]
"""A function that maps an output of the second form to the order of the first."""


def identity(array: np.ndarray) -> np.ndarray:
    return array


def expect_equal(
    cell: Cell, first: Inputs, second: Inputs, what: str, undo: Undo = identity
) -> None:
    """Raise WrongAnswer "unequal" if the outputs for two forms of one problem differ by more than the sum
    of their bounds. `undo` maps the second output to the order of the first. `what` names the forms.

    A layer that makes its own parameters has no bounds, so it is tested in float64 only, to float32's
    roundoff of the largest output. Rounding errors are 2^29 times smaller, and faults are larger.
    """
    makes_parameters = not cell.implementation.declared.takes_parameters
    if makes_parameters and cell.dtype.name != "f64":
        raise NotApplicable(
            "the layer makes its own parameters: forms are compared in float64 only"
        )
    output = cell.run(first).values.copy()
    other_output = undo(cell.run(second).values)
    if makes_parameters:
        size = np.abs(output).max(initial=0.0) * DTYPES["f32"].unit_roundoff
        limit = np.full(output.shape, size)
    else:
        limit = cell.bound(first) + undo(cell.bound(second))
    expect_close(other_output, output, limit, what)


def undo_order(inputs: Inputs, letter: str, order: np.ndarray) -> Undo:
    """Returns a function that undoes the new order of the axis `letter` in an output for `inputs`. It
    changes nothing if the output does not have this axis."""
    axes = inputs.operator.outputs(inputs.case)["output"]
    inverse = np.argsort(order)
    return (lambda a: np.take(a, inverse, axes.index(letter))) if letter in axes else identity


@check(
    cases_of(
        "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense",
        "sdpa/bool.b11k/mha/{dt}/b5h3q5k17d8/dense",
        "sdpa/bool.qk/mha/{dt}/b3h3q11k17d8/dense",
    )
)
def test_boolean_equals_additive(cell: Cell) -> None:
    """A boolean mask equals a bias of 0 and -inf."""
    bias = np.where(np.asarray(cell.inputs.dense_mask), 0.0, -np.inf)
    additive = cell.inputs.replace(mask=None, form="native", bias=bias)
    expect_equal(cell, cell.inputs, additive, "boolean and additive mask")


@check(
    cases_of(
        "sdpa/bool.b11k/mha/{dt}/b3h3q11k17d8/dense",
        "sdpa/bool.1hqk/mha/{dt}/b3h3q11k17d8/dense",
        "sdpa/bool.qk/mha/{dt}/b2h3q17k23d8/dense",
    )
)
def test_mask_ranks(cell: Cell) -> None:
    """A mask of smaller broadcast rank equals the same mask expanded to (B, H, Lq, Lk)."""
    s = cell.inputs.sizes
    expanded = np.broadcast_to(np.asarray(cell.inputs.dense_mask), (s.B, s.H, s.Lq, s.Lk)).copy()
    expect_equal(
        cell, cell.inputs, cell.inputs.with_dense(mask_array=expanded), "broadcast and full mask"
    )


@check(
    cases_of(
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/causal/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal+pad/mha/{dt}/b2h3q17k23d8",
        "sdpa/win4.0/mha/{dt}/b2h3q17k23d8",
        "sdpa/pad/mha/{dt}/b3h3q11k17d8",
    )
)
def test_flag_equals_dense(cell: Cell) -> None:
    """A mask passed by flags equals the same mask passed densely."""
    expect_equal(cell, cell.inputs, cell.inputs.replace(form="dense"), "flag and dense mask")


@check(
    cases_of(
        "sdpa/none/gqa4/{dt}/b2h8q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mqa/{dt}/b2h5q17k23d8/dense",
    )
)
def test_groups_equal_repeated_heads(cell: Cell) -> None:
    """Grouped queries equal repeated key/value heads (0, 0, 1, 1)."""
    group = cell.inputs.sizes.group
    key, value = (np.repeat(x, group, axis=1) for x in (cell.inputs.key, cell.inputs.value))
    expect_equal(
        cell, cell.inputs, cell.inputs.replace(key=key, value=value), "grouped and repeated"
    )


LAYERS = (
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.b1qk/mha/{dt}/b2h3q5k9d4/e12.12.12.12/dense",
    "multi-head/bool.bhqk/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self/dense",
    "multi-head/pad/mha/{dt}/b2h2q5k9d6/e12.10.14.12",
    "multi-head/none/gqa3/{dt}/b2h6q5k9d4/e12.10.10.12",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14/head",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity/head",
    "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
)


@check(
    cases_of(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/bool.b1qk/gqa2/{dt}/b2h6q17k23d8/dense",
        *LAYERS,
    )
)
def test_key_permutation(cell: Cell) -> None:
    """The order of keys has no influence. If query, key and value are one tensor, rows move with the
    keys."""
    inputs = cell.inputs
    order = generator(cell.case.id + "/order", cell.seed).permutation(inputs.sizes.Lk)
    if inputs.self_attention:
        permuted = inputs.select("k", order, "q")
        expect_equal(cell, inputs, permuted, "permuted tokens", undo_order(inputs, "q", order))
    else:
        expect_equal(cell, inputs, inputs.select("k", order), "permuted keys")


@check(
    with_plain_cases(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/pad/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mha/{dt}/b3h3q11k17d8/dense",
        *LAYERS,
        keep=has_axes("b"),
    )
)
def test_batch_independence(cell: Cell) -> None:
    """The output of a sample does not depend on its place in the batch."""
    inputs = cell.inputs
    order = np.arange(inputs.sizes.B)[::-1]
    expect_equal(
        cell, inputs, inputs.select("b", order), "reversed batch", undo_order(inputs, "b", order)
    )


@check(
    cases_of(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/bool.1hqk/mha/{dt}/b3h3q11k17d8/dense",
        *LAYERS,
    )
)
def test_head_independence(cell: Cell) -> None:
    """Permuted heads, with their parameters and masks, give permuted outputs."""
    inputs, s = cell.inputs, cell.inputs.sizes
    if s.H == 1:
        raise NotApplicable("has one head")
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters, so heads cannot be permuted")
    groups = np.arange(s.Hkv)[::-1]
    order = np.arange(s.H).reshape(s.Hkv, -1)[::-1].ravel()
    permuted = inputs.select("g", groups).select("h", order)
    expect_equal(cell, inputs, permuted, "reversed heads", undo_order(inputs, "h", order))


@check(cases_of("sdpa/none/mha/{dt}/b2h3q17k23d8", "sdpa/causal/gqa2/{dt}/b2h6q17k23d8"))
def test_padding_invariance(cell: Cell) -> None:
    """Nine more keys that the mask hides change the output only by rounding."""
    inputs, s = cell.inputs, cell.inputs.sizes
    rng = generator(cell.case.id + "/padding", cell.seed)
    # Copies of existing keys: exact in the dtype, and of normal size, so a fault would use them.
    copied = rng.integers(0, s.Lk, 9)
    key, value = (np.concatenate([x, x[:, :, copied]], 2) for x in (inputs.key, inputs.value))
    visible = np.ones((s.Lq, s.Lk), bool) if inputs.dense_mask is None else inputs.dense_mask
    mask = np.concatenate([visible, np.zeros((*visible.shape[:-1], 9), bool)], -1)
    expect_equal(
        cell, inputs, inputs.with_dense(mask_array=mask, key=key, value=value), "padded keys"
    )


@check(cases_of("sdpa/win40.40/mha/{dt}/b2h3q17k23d8", "sdpa/win29.0/gqa2/{dt}/b2h6q17k23d8"))
def test_wide_window(cell: Cell) -> None:
    """A window at least as wide as the sequence equals no window, or causal if the window ends at 0."""
    window = cell.inputs.mask
    ends_at_query = isinstance(window, Window) and window.right == 0
    unwindowed = cell.inputs.replace(mask=Causal() if ends_at_query else None)
    if (cell.inputs.attends != unwindowed.attends).any():
        raise NotApplicable("in these sizes the window is narrower than the sequence")
    alignment = elections.alignment(unwindowed, cell.implementation) if ends_at_query else ""
    if alignment not in ("", "top-left"):
        raise NotApplicable("a window that ends at 0 has another alignment than the causal flag")
    expect_equal(cell, cell.inputs, unwindowed, "wide window and none")


@check(
    cases_of(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/none/mha/{dt}/b3h3q23k17d10",
    )
)
def test_default_scale(cell: Cell) -> None:
    """The default scale equals the explicit scale 1 / sqrt(D)."""
    explicit = cell.inputs.replace(scale=float(1.0 / np.sqrt(cell.inputs.sizes.D)))
    expect_equal(cell, cell.inputs, explicit, "default and explicit scale")


@check(
    cases_of(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mha/{dt}/b1h3q129k127d64/dense",
    )
)
def test_constant_value(cell: Cell) -> None:
    """Weights sum to one: constant values give this constant."""
    constant = cell.inputs.replace(value=np.full_like(cell.inputs.value, 0.75))
    got = cell.run(constant).values
    expect_close(got, np.full_like(got, 0.75), cell.bound(constant), "constant value")


@check(cases_of("sdpa/none/mha/{dt}/b2h3q17k23d8", "sdpa/causal/mqa/{dt}/b2h5q17k23d8"))
def test_equal_rows(cell: Cell) -> None:
    """Equal queries with equal masks give equal outputs."""
    inputs = cell.inputs
    # Every row is row 0, with the mask of row 0.
    query = np.repeat(inputs.query[:, :, :1], inputs.sizes.Lq, axis=2)
    mask = inputs.dense_mask
    if mask is not None:
        mask = np.broadcast_to(mask[..., -1:, :], mask.shape).copy()
    equal_rows = inputs.with_dense(query=query, mask_array=mask)
    got = cell.run(equal_rows).values
    want = np.broadcast_to(got[:, :, :1], got.shape)
    expect_close(got, want, 2 * cell.bound(equal_rows), "equal rows")
