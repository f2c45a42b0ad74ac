"""Promise: gradients are within derived bounds, for any set of differentiated arrays.

Hidden slots have no gradient, and no influence on other gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from attention_conformance.suite.judge.answer import vjp_of_lse
from attention_conformance.suite.judge.arguments import keeping_arguments
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.derivative import (
    asked_of,
    elected_gradient,
    judge_gradients,
    judge_tangent,
    jvp,
    native_cotangent,
    read_gradients,
    read_output,
    vjp,
)
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import (
    Ask,
    asked,
    compiled_gradient_cases,
    gradient_cases,
    with_plain,
)
from attention_conformance.suite.spec.inputs import draw_tangents
from attention_conformance.suite.spec.vocabulary import OPERANDS
from attention_conformance.suite.test_masking import (
    in_constant,
    last_seen_by_some,
    never_attended,
    slots_of,
    touched,
    with_slots,
)


@check(gradient_cases, ("gradient",), compiled_gradient_cases, single_answer=True)
def test_gradients(cell: Cell) -> None:
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters: its gradients are unknown")
    prepared, names = asked_of(cell)
    with keeping_arguments(cell.implementation.backend, prepared, "differentiation"):
        answer, gradients = vjp(cell, wrt=names, prepared=prepared)
    plain = cell.inputs.replace(returned="none") if cell.inputs.returned != "none" else cell.inputs
    cell.judge(answer, plain)
    judge_gradients(cell, gradients)


def biased(case: Case) -> bool:
    return not case.operator.is_layer and case.option("bias") not in (None, "none")


@check(gradient_cases.where(biased), ("gradient", "gradient-of-bias"))
def test_gradient_of_bias(cell: Cell) -> None:
    """Only the bias requires a gradient (pytorch#148476)."""
    _, gradients = vjp(cell, wrt=("bias",))
    judge_gradients(cell, gradients)


@check(gradient_cases.share("tangents"), ("gradient",))
def test_tangents(cell: Cell) -> None:
    """The JVP for tangents of query, key and value together."""
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters: its derivatives are unknown")
    _, names = asked_of(cell)
    operands = [name for name in OPERANDS if name in names]
    tangents = draw_tangents(cell.inputs.case, operands, cell.seed)
    judge_tangent(cell, jvp(cell, tangents), tangents)


OF_LSE = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8/lse",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6/lse",
    "sdpa/pad/mha/{dt}/b2h3q17k23d8/lse",
    "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/bias.bhqk/scale0.3/lse/dense",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/cap2.0/lse",
)


@check(
    asked(Ask(*OF_LSE[:2], dtypes="growing"), Ask(*OF_LSE[2:], dtypes="growing", since="standard")),
    ("gradient",),
)
def test_gradient_of_lse(cell: Cell) -> None:
    """The log-sum-exp has gradients, as merging of partial outputs needs. Not for fully masked rows."""
    if cell.elected("lse-gradient") != "flows":
        raise NotApplicable("by its election the log-sum-exp has no gradient")
    cell.require(cell.inputs)
    cotangent = np.where(cell.inputs.fully_masked_rows, 0.0, cell.cotangent[..., 0])
    prepared, native = cell.attempt(lambda: vjp_of_lse(cell.implementation, cell.inputs, cotangent))
    gradients = read_gradients(cell, native, cell.inputs, prepared, ("query", "key"))
    judge_gradients(cell, gradients, cotangent=cotangent, output="lse")


ALONE = (
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/dense",
)


def apart(case: Case) -> bool:
    """True if query, key and value are three arrays."""
    return set(OPERANDS) <= case.axes.keys() and not case.option("self_attention")


alone = with_plain(Ask(*ALONE, dtypes="growing"), dtypes="growing", keep=apart)


@check(alone, ("gradient",))
def test_gradient_alone(cell: Cell) -> None:
    """Only one operand requires a gradient, or only two. A second gradient equals the first."""
    for names in combinations(OPERANDS, 2):
        judge_gradients(cell, vjp(cell, wrt=names)[1])
    for name in OPERANDS:
        _, gradients = vjp(cell, wrt=(name,))
        judge_gradients(cell, gradients)
        _, again = vjp(cell, wrt=(name,))
        if cell.implementation.declared.deterministic:
            what = f"the gradient of the {name} a second time"
            expect_bitwise(again[name], gradients[name], "not-deterministic", what)


@check(alone, ("gradient",))
def test_gradient_cotangents(cell: Cell) -> None:
    """Cotangents that are equal for all samples, and cotangents with one nonzero component."""
    alike = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    single = np.where(np.arange(cell.cotangent.shape[-1]) == 1, cell.cotangent, 0.0)
    for cotangent in (alike, single):
        _, gradients = vjp(cell, None, OPERANDS, cotangent, "contiguous")
        judge_gradients(cell, gradients, cotangent=cotangent)


@check(alone, ("gradient", "strides"))
def test_gradient_arrangements(cell: Cell) -> None:
    """Cotangents in every memory layout: stride 0, transposed, with gaps; and one number, as from a
    sum."""
    alike = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    number = np.broadcast_to(cell.cotangent.flat[0], cell.cotangent.shape)
    for arranged, cotangent in (
        ("expanded", alike),
        ("scalar", number),
        ("transposed", cell.cotangent),
        ("inner-stride", cell.cotangent),
        ("offset", cell.cotangent),
    ):
        _, gradients = vjp(cell, None, OPERANDS, cotangent, arranged)
        judge_gradients(cell, gradients, cotangent=cotangent)


@check(alone, ("gradient",))
def test_gradient_contract(cell: Cell) -> None:
    """Differentiation changes no argument, and gives the same output as without gradients."""
    backend, inputs = cell.implementation.backend, cell.inputs
    prepared, _ = asked_of(cell)
    shaped = native_cotangent(cell.cotangent, inputs, prepared)
    native = backend.memory.arranged(shaped, cell.dtype, "reversed")
    values_before = backend.to_numpy(native).copy()
    plain = cell.attempt(lambda: prepared.output(prepared.arguments))
    cell.judge(read_output(cell, plain, inputs, prepared))
    with keeping_arguments(backend, prepared, "differentiation"):
        cell.attempt(lambda: backend.vjp(prepared, OPERANDS, native))
    if not np.array_equal(backend.to_numpy(native), values_before):
        raise Deviation("mutated-input", "differentiation changed the cotangent")


def hides(case: Case) -> bool:
    """True if ordinary values are in slots that are hidden from all rows, or from many."""
    return (
        case.mask is not None
        and not case.operator.is_layer
        and case.recipe in ("normal", "ties", "integers", "onehot")
        and min(case.sizes.B, case.sizes.Lq, case.sizes.Lk - 1) > 0
    )


@check(gradient_cases.where(hides), ("gradient",))
def test_gradient_hidden(cell: Cell) -> None:
    """Other keys and values in hidden slots change no gradient of rows that do not attend them.

    Slots that no row attends have a gradient of exactly zero. They hold large numbers, and NaN if the
    election says that gradients block NaN. If hidden keys influence roundings, the gradients are right.
    """
    inputs = cell.inputs
    if inputs.has_empty_rows and elected_gradient(cell, inputs) != "nothing":
        raise NotApplicable("by its election fully masked rows take part in gradients")
    if not cell.implementation.declared.deterministic:
        raise NotApplicable(
            "leaks into gradients are seen by bits, and those of two calls may differ"
        )
    slots = never_attended(inputs)
    nowhere = bool(slots.any())
    if not nowhere:
        slots = last_seen_by_some(inputs)
    if in_constant(cell, slots):
        changed = with_slots(inputs, slots, lambda x: -2.0 * x, -80.0)
        judge_gradients(cell, vjp(cell, changed, inputs.operands)[1], changed)
        return
    _, before = vjp(cell, inputs, inputs.operands)
    for name, (key, value) in poisons(cell, nowhere).items():
        _, after = vjp(cell, with_slots(inputs, slots, key, value), inputs.operands)
        expect_unmoved(cell, before, after, slots, nowhere, name)


def poisons(cell: Cell, nowhere: bool) -> dict[str, tuple[float, float]]:
    """Values for hidden keys and values, by name.

    NaN is included only if no row attends a slot (`nowhere`), and the election was declared, or
    observed for boolean masks.
    """
    chosen = {"other values": (50.0, -80.0)}
    implementation, inputs = cell.implementation, cell.inputs
    if not nowhere or implementation.missing(["mask"]) is not None:
        return chosen
    if inputs.bias is not None and implementation.declared.merges_mask_into_bias:
        return chosen  # the mask is -inf in the bias, and NaN - inf is NaN
    blocked = []
    for operand in ("key", "value"):
        question = f"nan-in-masked-{operand}-gradient"
        known = implementation.elected(question, cell.dtype) or inputs.form == "dense"
        blocked.append(bool(known) and cell.elected(question) == "blocked")
    if any(blocked):
        chosen["NaN"] = (np.nan if blocked[0] else 50.0, np.nan if blocked[1] else -80.0)
    return chosen


def expect_unmoved(
    cell: Cell, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray],
    slots: np.ndarray, nowhere: bool, poison: str,
) -> None:  # fmt: skip
    """Raise Deviation "leak" if a gradient changed that the hidden slots (B, Hkv, Lk) have no part in.

    If no row attends the slots (`nowhere`), their own gradients must be zero.
    """
    judged = ~touched(cell, cell.inputs, slots)[..., None]
    rows = np.broadcast_to(judged, before["query"].shape)
    expect_bitwise(
        np.where(rows, after["query"], 0.0), np.where(rows, before["query"], 0.0), "leak",
        f"the query's gradient, with {poison} in hidden slots",
    )  # fmt: skip
    if not nowhere:
        return
    for name in cell.inputs.key_operands:
        places = np.broadcast_to(slots_of(cell.inputs, name, slots), before[name].shape)
        if (before[name][places] != 0).any() or (after[name][places] != 0).any():
            raise Deviation("leak", f"a hidden {name} has a nonzero gradient")
        expect_bitwise(
            after[name], before[name], "leak",
            f"the {name}'s gradient, with {poison} in hidden slots",
        )  # fmt: skip
