"""Promise: hidden slots have exactly no influence, whether they hold large numbers or NaN.

The future does not change the past. No reference and no parameters are needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise, expect_close
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import Ask, cases, cases_of, plain_patterns
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import packed

RECIPES = ("normal", "ties", "integers", "onehot")
"""Recipes with ordinary values, from which poison differs."""


def has_hidden_keys(case: Case) -> bool:
    """True if a mask hides some of several keys, and values are ordinary. Keys in pages do not count."""
    has_mask = case.mask is not None and case.recipe in RECIPES
    has_keys = any("k" in axes for axes in case.axes.values())
    return has_mask and has_keys and case.sizes.Lk > 1 and min(case.sizes.B, case.sizes.Lq) > 0


def count_attending_rows(inputs: Inputs, rows: slice = slice(None)) -> np.ndarray:
    """Returns an integer array (B, Hkv, Lk): the number of rows that attend each slot, summed over the
    query heads that share it. Only the rows `rows` are counted.

    If keys have no head axis, the shape is (B, 1, Lk), and rows count that attend the slot in some head.
    """
    s, attends = inputs.sizes, inputs.attends[:, :, rows]
    if "g" not in inputs.axes(inputs.key_operands[0]):
        return attends.any(1, keepdims=True).sum(2)
    return attends.sum(2).reshape(s.B, s.Hkv, s.group, s.Lk).sum(2)


def never_attended(inputs: Inputs) -> np.ndarray:
    """Returns a boolean array in the shape of `count_attending_rows`: True for slots that no row
    attends."""
    return count_attending_rows(inputs) == 0


def least_attended(inputs: Inputs) -> np.ndarray:
    """Returns a boolean array in the shape of `count_attending_rows`. In each sample and head it is True
    for one slot: among the attended slots the one with the fewest attending rows."""
    counts = count_attending_rows(inputs)
    slot = np.argmin(np.where(counts > 0, counts, np.iinfo(np.int64).max), axis=-1)
    return np.arange(inputs.sizes.Lk) == slot[..., None]


def slot_mask(inputs: Inputs, name: str, slots: np.ndarray) -> np.ndarray:
    """Returns the slots (B, Hkv, Lk) as a boolean array that broadcasts to the array called `name`: keys,
    values, or latents, which have no heads."""
    return (slots if "g" in inputs.axes(name) else slots[:, 0])[..., None]


def with_slots(
    inputs: Inputs, slots: np.ndarray, key: Callable | float | np.ndarray,
    value: Callable | float | np.ndarray,
) -> Inputs:  # fmt: skip
    """Returns the inputs with other keys and values in `slots`, boolean (B, Hkv, Lk). `key` and `value`
    are the new numbers, or functions of the old ones. Latents count as keys.

    If query, key and value are one tensor, the query changes, too.
    """
    arrays = {}
    for name in inputs.key_operands:
        array, change = inputs.arrays[name], value if name == "value" else key
        new = change(array) if callable(change) else change
        changed = np.where(slot_mask(inputs, name, slots), new, array)
        arrays[name] = round_to(changed, inputs.dtype)
    return inputs.replace(**arrays, **({"query": arrays["key"]} if inputs.self_attention else {}))


def influence_roundings(cell: Cell, slots: np.ndarray) -> bool:
    """True if keys in `slots` may change the roundings of all rows. This is so if the implementation
    subtracts a constant from all keys (`DeclaredRounding.centred_keys`) that depends on these slots. It
    may depend on attended slots; it depends on hidden slots if NaN in them leaks.
    """
    if cell.dtype.name not in cell.implementation.declared.rounding.centred_keys:
        return False
    attended = slots & ~never_attended(cell.inputs)
    return bool(attended.any()) or cell.elected_answer("nan-in-masked-key") == "leaks"


def rows_touching(cell: Cell, inputs: Inputs, slots: np.ndarray) -> np.ndarray:
    """Returns a boolean array (B, H, Lq): True for rows that may depend on one of the `slots`. These rows
    attend a slot, or are fully masked and may see all keys by their election. In self-attention the rows
    of the slots count, too."""
    s = inputs.sizes
    heads = np.repeat(slots, s.H // max(slots.shape[1], 1), axis=1)
    rows = (cell.visible_keys(inputs) & heads[:, :, None]).any(-1)
    return rows | heads if inputs.self_attention else rows


def expect_same(
    cell: Cell, after: np.ndarray, before: np.ndarray, where: np.ndarray, what: str,
    name: str = "output",
) -> None:  # fmt: skip
    """Raise WrongAnswer "leak" if two outputs called `name` have different bits where `where` is True. If
    the implementation is not deterministic, raise WrongAnswer "unequal" beyond the bounds instead."""
    got, want = (np.where(where, array, 0.0) for array in (after, before))
    if cell.implementation.declared.deterministic:
        expect_bitwise(got, want, "leak", what)
    else:
        expect_close(got, want, 2 * cell.oracle(cell.inputs).bound(name), what)


def expect_rows_unmoved(cell: Cell, changed: Inputs, slots: np.ndarray, what: str) -> bool:
    """Compare the answer for `changed`, whose `slots` differ, with the answer for the cell's inputs.
    Raises WrongAnswer if rows change that attend none of the slots. If the slots influence roundings, the
    answer for `changed` is judged by its oracle instead. Returns True if any bit of the answer changed.
    Raises NotApplicable if every row attends a changed slot."""
    inputs = cell.inputs
    rows = rows_touching(cell, inputs, slots)
    outputs = inputs.operator.outputs(inputs.case)
    judged = {name: ~inputs.rows_along(rows, axes) for name, axes in outputs.items()}
    if not any(where.any() for where in judged.values()):
        raise NotApplicable("every row attends a changed slot")
    before = {name: array.copy() for name, array in cell.run(inputs).arrays.items()}
    answer = cell.run(changed)
    after = answer.arrays
    if influence_roundings(cell, slots):
        cell.judge(answer, changed)
    else:
        for name, where in judged.items():
            described = what if name == "output" else f"{what}, {name}"
            expect_same(cell, after[name], before[name], where, described, name)
    return not all(np.array_equal(after[name], before[name], equal_nan=True) for name in judged)


HIDDEN_CASES = cases.where(has_hidden_keys).share("hidden")


@check(HIDDEN_CASES)
def test_poison(cell: Cell) -> None:
    """Large finite values in hidden slots do not change rows that cannot attend these slots."""
    is_f16, inputs = cell.dtype.name == "f16", cell.inputs
    slots = never_attended(inputs)
    if not slots.any():
        slots = least_attended(inputs)
    sign = np.where(np.arange(inputs.sizes.Lk) % 2, -1.0, 1.0)[:, None]
    if inputs.operator.is_layer:
        # Smaller poison for layers, because projections sum many of these numbers.
        size = 30.0 if is_f16 else 1e3
        changed = with_slots(inputs, slots, lambda x: x - sign * size, lambda x: x - sign * size)
    else:
        # Large keys in a subtracted constant would leave no precision.
        is_subtracted = influence_roundings(cell, slots)
        key = (lambda keys: -2.0 * keys) if is_subtracted else sign * (100.0 if is_f16 else 1e4)
        changed = with_slots(inputs, slots, key, sign * (1e4 if is_f16 else 1e10))
    expect_rows_unmoved(cell, changed, slots, "poison in masked slots")


SEGMENT_CASES = (
    *plain_patterns("packed"),
    "packed/none/gqa2/{dt}/b3h4q24k24d8/seg5.7.12/causal",
    "packed/none/mha/{dt}/b4h4q24k24d8/seg0.7.17.0",
)


@check(cases_of(*SEGMENT_CASES))
def test_segments_apart(cell: Cell) -> None:
    """Large numbers in other segments do not change the rows of a segment, bit by bit. Nor does NaN, if
    the election says so."""
    inputs, is_half = cell.inputs, cell.dtype.is_half
    before = cell.run(inputs).values.copy()
    poisons = [100.0 if is_half else 1e4]
    poisons += [np.nan] if cell.elected_answer("nan-in-other-segment") == "nobody" else []
    for poison in poisons:
        for rows, keys in packed.segments(inputs.case):
            if rows.stop == rows.start:
                continue
            arrays = {}
            for name, tokens in (("query", rows), ("key", keys), ("value", keys)):
                arrays[name] = np.full_like(inputs.arrays[name], poison)
                arrays[name][tokens] = inputs.arrays[name][tokens]
            after = cell.run(inputs.replace(**arrays)).values
            what = f"{poison} in all segments but rows {rows.start} to {rows.stop - 1}"
            in_segment = np.isin(np.arange(len(after)), range(rows.start, rows.stop))
            expect_same(cell, after, before, in_segment[:, None, None], what)


def has_nan_elections(case: Case) -> bool:
    """True if the operator has elections about NaN in hidden slots, and separate heads."""
    return "nan-in-masked-key" in case.operator.questions.elections and not case.operator.is_layer


@check(HIDDEN_CASES.where(has_nan_elections))
def test_nan(cell: Cell) -> None:
    """NaN in slots that no query attends does not reach the output, if the election says so."""
    implementation = cell.implementation
    missing = implementation.missing(["mask"])
    if missing is not None:
        raise NotApplicable(missing)
    if cell.inputs.bias is not None and implementation.declared.merges_mask_into_bias:
        raise NotApplicable("the mask is passed as -inf in the bias, and NaN - inf is NaN")
    declared = implementation.declared_answer("nan-in-masked-key", cell.dtype)
    if declared is None and cell.inputs.form != "dense":
        raise NotApplicable(
            "no declared election, and the observed one is about boolean masks only"
        )
    answers = {n: cell.elected_answer(f"nan-in-masked-{n}") for n in ("key", "value")}
    if "blocked" not in answers.values():
        raise NotApplicable("by its election NaN in a masked key or value leaks")
    # NaN in a key that only a bias of -inf hides stays NaN.
    slots = never_attended(cell.inputs.replace(bias=None))
    if not slots.any():
        raise NotApplicable("the mask hides no key from every query")
    for poison in (np.nan, np.inf):
        key, value = (poison if answers[n] == "blocked" else 1.0 for n in ("key", "value"))
        changed = with_slots(cell.inputs, slots, key, value)
        expect_rows_unmoved(cell, changed, slots, f"{poison} in masked slots")


ATTENTION = tuple(
    f"sdpa/{mask}/{heads}/{{dt}}/{sizes}"
    for mask in ("causal", "causal+pad", "win4.0")
    for heads, sizes in (("gqa2", "b2h6q17k23d8"), ("mha", "b3h3q23k17d10"))
)
LAYERS = (
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
    "multi-head/causal/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
    "multi-head/causal/gqa3/{dt}/b2h6q5k5d4/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single",
    "multi-head/causal/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self-attention/self/head",
    "additive/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/identity",
    "concat/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/unscaled",
    "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
    "latent/causalbr/mha/{dt}/b2h3q4k9d8v6",
)


@check(
    cases_of(
        Ask(*ATTENTION, dtypes="float32 first"),
        *LAYERS,
    )
)
def test_future(cell: Cell) -> None:
    """New keys and values that no row before t attends do not change rows that attend none of them, bit
    by bit. They change some row that attends them.

    The mask, with the implementation's alignment, says which keys a row attends.
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    t = s.Lq // 2
    slots = count_attending_rows(inputs, slice(0, t)) == 0
    changed = with_slots(inputs, slots, lambda x: -2.0 * x, lambda x: -2.0 * x)
    bits_changed = expect_rows_unmoved(
        cell, changed, slots, f"new keys that no row before {t} attends"
    )
    if (slots & ~never_attended(inputs)).any() and not bits_changed:
        raise WrongAnswer("leak", "changed future keys and values did not change any row")
