"""Promise: gradients are within derived bounds, for any set of differentiated arrays.

Hidden slots have no gradient, and no influence on other gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from attention_conformance.suite.judge.answer import vjp_of_lse
from attention_conformance.suite.judge.arguments import require_unchanged_arguments
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.derivative import (
    differentiable_call,
    elected_gradient,
    judge_gradients,
    judge_tangent,
    jvp,
    native_cotangent,
    read_gradients,
    read_output,
    vjp,
)
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    compiled_gradient_cases,
    gradient_cases,
    with_plain_cases,
)
from attention_conformance.suite.spec.inputs import draw_tangents
from attention_conformance.suite.spec.vocabulary import OPERANDS
from attention_conformance.suite.test_masking import (
    influence_roundings,
    least_attended,
    never_attended,
    rows_touching,
    slot_mask,
    with_slots,
)


@check(gradient_cases, ("gradient",), compiled_gradient_cases, single_answer=True)
def test_gradients(cell: Cell) -> None:
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters: its gradients are unknown")
    prepared, names = differentiable_call(cell)
    with require_unchanged_arguments(cell.implementation.backend, prepared, "differentiation"):
        answer, gradients = vjp(cell, wrt=names, prepared=prepared)
    inputs = cell.inputs
    # The call that is differentiated returns no weights.
    cell.judge(answer, inputs if inputs.returned == "none" else inputs.replace(returned="none"))
    judge_gradients(cell, gradients)


def has_bias(case: Case) -> bool:
    """True if a bias is added to the scores."""
    return not case.operator.is_layer and case.option("bias") not in (None, "none")


@check(gradient_cases.where(has_bias), ("gradient", "gradient-of-bias"))
def test_gradient_of_bias(cell: Cell) -> None:
    """The gradient of the bias, where only the bias requires a gradient (pytorch#148476)."""
    _, gradients = vjp(cell, wrt=("bias",))
    judge_gradients(cell, gradients)


@check(gradient_cases.share("tangents"), ("gradient",))
def test_tangents(cell: Cell) -> None:
    """The JVP for tangents of query, key and value together."""
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters: its derivatives are unknown")
    _, names = differentiable_call(cell)
    operands = [name for name in OPERANDS if name in names]
    tangents = draw_tangents(cell.inputs.case, operands, cell.seed)
    judge_tangent(cell, jvp(cell, tangents), tangents)


LSE_CASES = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8/lse",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6/lse",
    "sdpa/pad/mha/{dt}/b2h3q17k23d8/lse",
    "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/bias.bhqk/scale0.3/lse/dense",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/cap2.0/lse",
)


@check(
    cases_of(
        Ask(*LSE_CASES[:2], dtypes="growing"),
        Ask(*LSE_CASES[2:], dtypes="growing", since="standard"),
    ),
    ("gradient",),
)
def test_gradient_of_lse(cell: Cell) -> None:
    """The gradient of the log-sum-exp, which merges need, with no cotangent for fully masked rows."""
    if cell.elected_answer("lse-gradient") != "flows":
        raise NotApplicable("by its election the log-sum-exp has no gradient")
    cell.require(cell.inputs)
    cotangent = np.where(cell.inputs.fully_masked_rows, 0.0, cell.cotangent[..., 0])
    prepared, native = cell.attempt(lambda: vjp_of_lse(cell.implementation, cell.inputs, cotangent))
    gradients = read_gradients(cell, native, cell.inputs, prepared, ("query", "key"))
    judge_gradients(cell, gradients, cotangent=cotangent, output="lse")


ATTENTION = (
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/dense",
)


def has_three_arrays(case: Case) -> bool:
    """True if query, key and value are three arrays."""
    return set(OPERANDS) <= case.axes.keys() and not case.option("self_attention")


ALONE = with_plain_cases(Ask(*ATTENTION, dtypes="growing"), dtypes="growing", keep=has_three_arrays)


@check(ALONE, ("gradient",))
def test_gradient_alone(cell: Cell) -> None:
    """Only one operand requires a gradient, or only two. A second gradient equals the first."""
    for names in combinations(OPERANDS, 2):
        judge_gradients(cell, vjp(cell, wrt=names)[1])
    for name in OPERANDS:
        _, gradients = vjp(cell, wrt=(name,))
        judge_gradients(cell, gradients)
        _, repeated = vjp(cell, wrt=(name,))
        if cell.implementation.declared.deterministic:
            what = f"the gradient of the {name} a second time"
            expect_bitwise(repeated[name], gradients[name], "not-deterministic", what)


@check(ALONE, ("gradient",))
def test_gradient_cotangents(cell: Cell) -> None:
    """Cotangents that are equal for all samples, and cotangents with one nonzero component."""
    equal_samples = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    one_component = np.where(np.arange(cell.cotangent.shape[-1]) == 1, cell.cotangent, 0.0)
    for cotangent in (equal_samples, one_component):
        _, gradients = vjp(cell, None, OPERANDS, cotangent, "contiguous")
        judge_gradients(cell, gradients, cotangent=cotangent)


@check(ALONE, ("gradient", "strides"))
def test_gradient_arrangements(cell: Cell) -> None:
    """Cotangents in every memory layout: stride 0, transposed, with gaps; and one number, as from a
    sum."""
    equal_samples = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    one_number = np.broadcast_to(cell.cotangent.flat[0], cell.cotangent.shape)
    for arrangement, cotangent in (
        ("expanded", equal_samples),
        ("scalar", one_number),
        ("transposed", cell.cotangent),
        ("inner-stride", cell.cotangent),
        ("offset", cell.cotangent),
    ):
        _, gradients = vjp(cell, None, OPERANDS, cotangent, arrangement)
        judge_gradients(cell, gradients, cotangent=cotangent)


@check(ALONE, ("gradient",))
def test_gradient_contract(cell: Cell) -> None:
    """Differentiation changes no argument, and gives the same output as without gradients."""
    backend, inputs = cell.implementation.backend, cell.inputs
    prepared, _ = differentiable_call(cell)
    values = native_cotangent(cell.cotangent, inputs, prepared)
    cotangent = backend.arranged(values, cell.dtype, "reversed")
    values_before = backend.to_numpy(cotangent).copy()
    output = cell.attempt(lambda: prepared.output(prepared.arguments))
    cell.judge(read_output(cell, output, inputs, prepared))
    with require_unchanged_arguments(backend, prepared, "differentiation"):
        cell.attempt(lambda: backend.vjp(prepared, OPERANDS, cotangent))
    if not np.array_equal(backend.to_numpy(cotangent), values_before):
        raise WrongAnswer("mutated-input", "differentiation changed the cotangent")


def hides_ordinary_values(case: Case) -> bool:
    """True for a case of attention with a mask, several keys, and a recipe of ordinary values."""
    return (
        case.mask is not None
        and not case.operator.is_layer
        and case.recipe in ("normal", "ties", "integers", "onehot")
        and min(case.sizes.B, case.sizes.Lq, case.sizes.Lk - 1) > 0
    )


@check(gradient_cases.where(hides_ordinary_values).share("hidden"), ("gradient",))
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
    unattended = bool(slots.any())
    if not unattended:
        slots = least_attended(inputs)
    if influence_roundings(cell, slots):
        changed = with_slots(inputs, slots, lambda keys: -2.0 * keys, -80.0)
        judge_gradients(cell, vjp(cell, changed, inputs.operands)[1], changed)
        return
    _, before = vjp(cell, inputs, inputs.operands)
    for description, (key, value) in hidden_values(cell, unattended).items():
        _, after = vjp(cell, with_slots(inputs, slots, key, value), inputs.operands)
        expect_gradients_unmoved(cell, before, after, slots, unattended, description)


def hidden_values(cell: Cell, unattended: bool) -> dict[str, tuple[float, float]]:
    """Returns new numbers for hidden slots: (key, value) by a description.

    "other values" are always tried. "NaN" is added if no row attends the slots (`unattended`) and the
    implementation elects that NaN in a masked key or value does not reach gradients; NaN then replaces
    the operand of which it elects so. If the answer is not declared but was only observed by a probe, it
    is relied on only in cases of the form "dense". NaN is left out where the implementation has no masks,
    or merges the mask into a bias: -inf does not hide NaN there.
    """
    values = {"other values": (50.0, -80.0)}
    implementation, inputs = cell.implementation, cell.inputs
    if not unattended or implementation.missing(["mask"]) is not None:
        return values
    if inputs.bias is not None and implementation.declared.merges_mask_into_bias:
        return values  # the mask is -inf in the bias, and NaN - inf is NaN
    blocked = []
    for operand in ("key", "value"):
        question = f"nan-in-masked-{operand}-gradient"
        applies = implementation.declared_answer(question, cell.dtype) or inputs.form == "dense"
        blocked.append(bool(applies) and cell.elected_answer(question) == "blocked")
    if any(blocked):
        values["NaN"] = (np.nan if blocked[0] else 50.0, np.nan if blocked[1] else -80.0)
    return values


def expect_gradients_unmoved(
    cell: Cell, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray],
    slots: np.ndarray, unattended: bool, poison: str,
) -> None:  # fmt: skip
    """Raise WrongAnswer "leak" if new values in hidden slots (B, Hkv, Lk) changed a gradient that must
    not depend on them. `before` and `after`: the gradients by name.

    If no row attends the slots (`unattended`), their own gradients must be zero. `poison` names the new
    values in messages.
    """
    judged = ~rows_touching(cell, cell.inputs, slots)[..., None]
    expect_bitwise(
        np.where(judged, after["query"], 0.0), np.where(judged, before["query"], 0.0), "leak",
        f"the query's gradient, with {poison} in hidden slots",
    )  # fmt: skip
    if not unattended:
        return
    for name in cell.inputs.key_operands:
        hidden = np.broadcast_to(slot_mask(cell.inputs, name, slots), before[name].shape)
        if (before[name][hidden] != 0).any() or (after[name][hidden] != 0).any():
            raise WrongAnswer("leak", f"a hidden {name} has a nonzero gradient")
        expect_bitwise(
            after[name], before[name], "leak",
            f"the {name}'s gradient, with {poison} in hidden slots",
        )  # fmt: skip
