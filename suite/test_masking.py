"""Promise: what a mask hides has exactly no influence, finite poison or NaN; the future changes
nothing in the past."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.judge.cell import Cell, NotElected, check
from suite.judge.verdict import Deviation
from suite.spec.catalogue import cases
from suite.spec.dtypes import round_to
from suite.spec.problem import Case, Inputs

RECIPES = ("normal", "ties", "integers", "onehot")


def masked(level: str) -> list[Case]:
    """Masked cases of ordinary values: poison must be what stands out."""
    return [
        case
        for case in cases(level)
        if case.problem.mask is not None
        and case.recipe in RECIPES
        and case.problem.sizes.Lk > 1
        and case.problem.sizes.B
        and case.problem.sizes.Lq
    ]


def poisoned(
    inputs: Inputs, hidden: np.ndarray, key: np.ndarray | float, value: np.ndarray | float
) -> Inputs:
    """Inputs whose hidden slots hold poison. `hidden` is boolean (B, Hkv, Lk)."""
    k = np.where(hidden[..., None], key, inputs.key)
    v = np.where(hidden[..., None], value, inputs.value)
    return replace(inputs, key=round_to(k, inputs.dtype), value=round_to(v, inputs.dtype))


def never_attended(inputs: Inputs) -> np.ndarray:
    """Boolean (B, Hkv, Lk): slots that no query of any head of the group attends."""
    s = inputs.sizes
    seen = inputs.attends.any(2).reshape(s.B, s.Hkv, s.H // s.Hkv, s.Lk)
    return np.logical_not(seen.any(2))


def last_seen_by_some(inputs: Inputs) -> np.ndarray:
    """Boolean (B, Hkv, Lk): per batch and head the slot that fewest rows attend, but some."""
    s = inputs.sizes
    rows = inputs.attends.sum(2).reshape(s.B, s.Hkv, s.H // s.Hkv, s.Lk).sum(2)
    chosen = np.argmin(np.where(rows > 0, rows, np.iinfo(np.int64).max), axis=-1)
    return np.arange(s.Lk) == chosen[..., None]


def expect_unmoved(cell: Cell, changed: Inputs, hidden: np.ndarray, what: str) -> None:
    """Rows that attend none of the hidden slots keep their bits; rows without keys are excused.

    Where a row without keys averages all values, or ignores the mask, it sees hidden slots by
    election.
    """
    inputs = cell.inputs
    s = inputs.sizes
    per_head = np.repeat(hidden, s.H // s.Hkv, axis=1)[:, :, None]
    judged = ~(inputs.attends & per_head).any(-1)
    if cell.empty_rows(inputs) in ("uniform", "unmasked"):
        judged &= inputs.attends.any(-1)
    before = cell.run(inputs).values.copy()
    after = cell.run(changed).values
    rows = np.broadcast_to(judged[..., None], before.shape)
    cell.expect_bitwise(np.where(rows, after, 0.0), np.where(rows, before, 0.0), "leak", what)


@check(masked)
def test_poison(cell: Cell) -> None:
    """Large finite values in slots that rows cannot see leave these rows as they are."""
    half = cell.dtype.name == "f16"
    hidden = never_attended(cell.inputs)
    if not hidden.any():
        hidden = last_seen_by_some(cell.inputs)
    sign = np.where(np.arange(cell.inputs.sizes.Lk) % 2, -1.0, 1.0)[:, None]
    changed = poisoned(
        cell.inputs, hidden, sign * (100.0 if half else 1e4), sign * (1e4 if half else 1e10)
    )
    expect_unmoved(cell, changed, hidden, "poison in masked slots")


@check(masked)
def test_nan(cell: Cell) -> None:
    """NaN in slots that no query sees stays there, where the implementation elects so."""
    implementation = cell.implementation
    if "mask" in implementation.lacks:
        raise NotElected(implementation.lacks["mask"])
    if cell.inputs.bias is not None and implementation.merges_mask_into_bias:
        raise NotElected("the mask is passed as -inf in the bias, and NaN - inf is NaN")
    declared = implementation.elected("nan-in-masked-key", cell.dtype)
    if declared is None and cell.inputs.form != "dense":
        raise NotElected("declares nothing, and what is observed holds for boolean masks")
    elected = {n: cell.elected(f"nan-in-masked-{n}") for n in ("key", "value")}
    if "blocked" not in elected.values():
        raise NotElected("elects that a NaN in a masked key or value leaks")
    hidden = never_attended(cell.inputs)
    if not hidden.any():
        raise NotElected("the mask hides no key from every query")
    for poison in (np.nan, np.inf):
        changed = poisoned(
            cell.inputs,
            hidden,
            poison if elected["key"] == "blocked" else 1.0,
            poison if elected["value"] == "blocked" else 1.0,
        )
        expect_unmoved(cell, changed, hidden, f"{poison} in masked slots")


FUTURE = [
    Case.parse(f"sdpa/{mask}/{heads}/{dt}/{sizes}")
    for dt in ("f32", "bf16", "f16", "f64")
    for mask in ("causal", "causal+pad", "win4.0")
    for heads, sizes in (("gqa2", "b2h6q17k23d8"), ("mha", "b3h3q23k17d10"))
]


@check(lambda level: FUTURE[:6] if level == "smoke" else FUTURE)
def test_future(cell: Cell) -> None:
    """Other keys and values from position t on change no row before t, bit by bit."""
    inputs = cell.inputs
    t = inputs.sizes.Lq // 2

    def renewed(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array[:, :, :t], -2.0 * array[:, :, t:]], axis=2)

    other = replace(inputs, key=renewed(inputs.key), value=renewed(inputs.value))
    before = cell.run(inputs).values[:, :, :t].copy()
    after_all = cell.run(other).values
    cell.expect_bitwise(after_all[:, :, :t], before, "leak", f"rows before {t}, new future")
    reached = inputs.attends[:, :, t:, t:].any()
    if reached and np.array_equal(after_all, cell.run(inputs).values):
        raise Deviation("leak", "changing the future changed nothing at all, not even the future")
