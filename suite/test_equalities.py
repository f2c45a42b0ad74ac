"""Promise: forms of one problem that must agree do agree. No reference is needed for these.

Two answers may differ by the sum of their bounds; where the arithmetic is the same they are equal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.judge.cell import Cell, check, in_every_dtype
from suite.spec.problem import Inputs
from suite.spec.recipes import generator


def compare(cell: Cell, one: Inputs, other: Inputs, what: str, undo=None) -> None:  # type: ignore[no-untyped-def]
    """Two forms agree within the sum of their bounds; `undo` maps the second answer to the first."""
    undo = undo or (lambda array: array)
    first = cell.run(one).values.copy()
    second = undo(cell.run(other).values)
    cell.expect_close(second, first, cell.bound(one) + undo(cell.bound(other)), what)


@check(
    in_every_dtype(
        "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense",
        "sdpa/bool.b11k/mha/{dt}/b5h3q5k17d8/dense",
        "sdpa/bool.qk/mha/{dt}/b3h3q11k17d8/dense",
    )
)
def test_boolean_equals_additive(cell: Cell) -> None:
    """A boolean mask equals a bias of 0 and -inf."""
    mask = cell.inputs.dense_mask
    bias = np.where(mask, 0.0, -np.inf)  # type: ignore[arg-type]
    additive = replace(cell.inputs, mask=None, bias=bias, bias_kind="inf")
    compare(cell, cell.inputs, additive, "boolean and additive mask")


@check(
    in_every_dtype(
        "sdpa/bool.b11k/mha/{dt}/b3h3q11k17d8/dense",
        "sdpa/bool.1hqk/mha/{dt}/b3h3q11k17d8/dense",
        "sdpa/bool.qk/mha/{dt}/b2h3q17k23d8/dense",
    )
)
def test_mask_ranks(cell: Cell) -> None:
    """A mask of a smaller broadcast rank equals the same mask written out as (B, H, Lq, Lk)."""
    s = cell.inputs.sizes
    full = np.broadcast_to(cell.inputs.dense_mask, (s.B, s.H, s.Lq, s.Lk)).copy()  # type: ignore[arg-type]
    compare(cell, cell.inputs, cell.inputs.with_dense(mask_array=full), "broadcast and full mask")


@check(
    in_every_dtype(
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/causal/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal+pad/mha/{dt}/b2h3q17k23d8",
        "sdpa/win4.0/mha/{dt}/b2h3q17k23d8",
        "sdpa/pad/mha/{dt}/b3h3q11k17d8",
    )
)
def test_flag_equals_dense(cell: Cell) -> None:
    """A mask passed by flags equals the same mask passed densely."""
    compare(cell, cell.inputs, replace(cell.inputs, form="dense"), "flag and dense mask")


@check(
    in_every_dtype(
        "sdpa/none/gqa4/{dt}/b2h8q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mqa/{dt}/b2h5q17k23d8/dense",
    )
)
def test_groups_equal_repeated_heads(cell: Cell) -> None:
    """Grouped queries equal key/value heads repeated one by one (0, 0, 1, 1)."""
    group = cell.inputs.sizes.H // cell.inputs.sizes.Hkv
    key, value = (np.repeat(x, group, axis=1) for x in (cell.inputs.key, cell.inputs.value))
    compare(cell, cell.inputs, replace(cell.inputs, key=key, value=value), "grouped and repeated")


@check(
    in_every_dtype(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/bool.b1qk/gqa2/{dt}/b2h6q17k23d8/dense",
    )
)
def test_key_permutation(cell: Cell) -> None:
    """The order of keys has no meaning."""
    inputs = cell.inputs
    order = generator(cell.case.id + "/order", cell.seed).permutation(inputs.sizes.Lk)
    changes = {"key": inputs.key[:, :, order], "value": inputs.value[:, :, order]}
    permuted = inputs.with_dense(mask_array=inputs.mask_in_order(-1, order), **changes)
    compare(cell, inputs, permuted, "permuted keys")


@check(
    in_every_dtype(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/pad/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mha/{dt}/b3h3q11k17d8/dense",
    )
)
def test_batch_independence(cell: Cell) -> None:
    """A sample's answer does not depend on its place in the batch."""
    inputs = cell.inputs
    order = np.arange(inputs.sizes.B)[::-1]
    mask = inputs.mask_in_order(-4, order)
    operands = {n: getattr(inputs, n)[order] for n in ("query", "key", "value")}
    reversed_batch = inputs.with_dense(mask_array=mask, **operands)
    compare(cell, inputs, reversed_batch, "reversed batch", lambda array: array[order])


@check(
    in_every_dtype(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/bool.1hqk/mha/{dt}/b3h3q11k17d8/dense",
    )
)
def test_head_independence(cell: Cell) -> None:
    """A head's answer does not depend on its place among the heads."""
    inputs = cell.inputs
    order = np.arange(inputs.sizes.H)[::-1]
    mask = inputs.mask_in_order(-3, order)
    operands = {n: getattr(inputs, n)[:, order] for n in ("query", "key", "value")}
    reversed_heads = inputs.with_dense(mask_array=mask, **operands)
    compare(cell, inputs, reversed_heads, "reversed heads", lambda array: array[:, order])


@check(in_every_dtype("sdpa/none/mha/{dt}/b2h3q17k23d8", "sdpa/causal/gqa2/{dt}/b2h6q17k23d8"))
def test_padding_invariance(cell: Cell) -> None:
    """Nine more keys that the mask hides change nothing but rounding."""
    inputs, s = cell.inputs, cell.inputs.sizes
    rng = generator(cell.case.id + "/padding", cell.seed)
    # Existing keys appended again: values exact in the dtype, and plausible enough to be taken.
    more = rng.integers(0, s.Lk, 9)
    key, value = (np.concatenate([x, x[:, :, more]], 2) for x in (inputs.key, inputs.value))
    visible = np.ones((s.Lq, s.Lk), bool) if inputs.dense_mask is None else inputs.dense_mask
    mask = np.concatenate([visible, np.zeros((*visible.shape[:-1], 9), bool)], -1)
    compare(cell, inputs, inputs.with_dense(mask_array=mask, key=key, value=value), "padded keys")


@check(in_every_dtype("sdpa/win40.40/mha/{dt}/b2h3q17k23d8", "sdpa/win29.0/gqa2/{dt}/b2h6q17k23d8"))
def test_wide_window(cell: Cell) -> None:
    """A window at least as wide as the sequence equals no window (or causal, where it ends at 0)."""
    from suite.spec.masks import Causal

    plain = Causal() if cell.inputs.mask.right == 0 else None  # type: ignore[union-attr]
    compare(cell, cell.inputs, replace(cell.inputs, mask=plain), "wide window and none")


@check(
    in_every_dtype(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/none/mha/{dt}/b3h3q23k17d10",
    )
)
def test_default_scale(cell: Cell) -> None:
    """No scale equals the scale 1 / sqrt(D)."""
    explicit = replace(cell.inputs, scale=float(1.0 / np.sqrt(cell.inputs.sizes.D)))
    compare(cell, cell.inputs, explicit, "default and explicit scale")


@check(
    in_every_dtype(
        "sdpa/none/mha/{dt}/b2h3q17k23d8",
        "sdpa/causal/gqa2/{dt}/b2h6q17k23d8",
        "sdpa/bool.bhqk/mha/{dt}/b1h3q129k127d64/dense",
    )
)
def test_constant_value(cell: Cell) -> None:
    """Weights sum to one: a constant value comes back as that constant."""
    constant = replace(cell.inputs, value=np.full_like(cell.inputs.value, 0.75))
    got = cell.run(constant).values
    cell.expect_close(got, np.full_like(got, 0.75), cell.bound(constant), "constant value")


@check(in_every_dtype("sdpa/none/mha/{dt}/b2h3q17k23d8", "sdpa/causal/mqa/{dt}/b2h5q17k23d8"))
def test_equal_rows(cell: Cell) -> None:
    """Queries that are equal and see the same keys give answers that are equal."""
    inputs = cell.inputs
    # Row 0 repeated, and every row given row 0's mask.
    query = np.repeat(inputs.query[:, :, :1], inputs.sizes.Lq, axis=2)
    mask = inputs.dense_mask
    if mask is not None:
        mask = np.broadcast_to(mask[..., -1:, :], mask.shape).copy()
    same = inputs.with_dense(query=query, mask_array=mask)
    got = cell.run(same).values
    cell.expect_close(
        got, np.broadcast_to(got[:, :, :1], got.shape), 2 * cell.bound(same), "equal rows"
    )
