"""Promise: gradients lie within bounds that are derived like those of the answer, whichever operand
asks for one, and what a mask hides has neither a gradient nor a part in any."""

from __future__ import annotations

import numpy as np

from suite.judge.cell import NotElected, check
from suite.judge.gradients import OPERANDS, GradientCell
from suite.judge.verdict import Deviation
from suite.spec.compiled_catalogue import compiled_gradients
from suite.spec.dtypes import DTYPES
from suite.spec.gradient_catalogue import gradient_cases
from suite.spec.problem import Case
from suite.spec.recipes import draw_tangents
from suite.test_masking import last_seen_by_some, never_attended, poisoned


@check(gradient_cases, GradientCell, ("gradient",), compiled_gradients)
def test_gradients(cell: GradientCell) -> None:
    answer, gradients = cell.differentiate(cell.inputs, cell.operands)
    cell.judge(answer)
    cell.judge_gradients(gradients)


def biased(level: str) -> list[Case]:
    return [case for case in gradient_cases(level) if case.problem.bias != "none"]


@check(biased, GradientCell, ("gradient", "gradient-of-bias"))
def test_gradient_of_bias(cell: GradientCell) -> None:
    """The bias alone asks for a gradient (pytorch#148476)."""
    _, gradients = cell.differentiate(cell.inputs, ("bias",))
    cell.judge_gradients(gradients)


def pushed(level: str) -> list[Case]:
    """The smoke cases, and every eighth of the others: a derivative by the same rules."""
    smoke, found = gradient_cases("smoke"), gradient_cases(level)
    return [*smoke, *(c for c in found[::8] if c not in smoke)]


@check(pushed, GradientCell, ("gradient",))
def test_tangents(cell: GradientCell) -> None:
    """The directional derivative as query, key and value move together."""
    tangents = draw_tangents(cell.case, cell.seed)
    cell.judge_tangent(cell.pushed(tangents), tangents)


ALONE = (
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/dense",
)


def alone(level: str) -> list[Case]:
    names = {"smoke": ("f32",), "standard": ("f32", "bf16")}.get(level, tuple(DTYPES))
    return [Case.parse(text.format(dt=dt)) for text in ALONE for dt in names]


@check(alone, GradientCell, ("gradient",))
def test_gradient_alone(cell: GradientCell) -> None:
    """One operand asks for a gradient and the others do not; then the second time is like the first."""
    for name in OPERANDS:
        _, gradients = cell.differentiate(cell.inputs, (name,))
        cell.judge_gradients(gradients)
        _, again = cell.differentiate(cell.inputs, (name,))
        if cell.implementation.deterministic:
            what = f"the gradient of the {name} a second time"
            cell.expect_bitwise(again[name], gradients[name], "not-deterministic", what)


@check(alone, GradientCell, ("gradient",))
def test_gradient_cotangents(cell: GradientCell) -> None:
    """Cotangents that are the same for every sample, and that ask for one component alone."""
    same = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    single = np.where(np.arange(cell.cotangent.shape[-1]) == 1, cell.cotangent, 0.0)
    for cotangent in (same, single):
        _, gradients = cell.differentiate(cell.inputs, OPERANDS, cotangent, "contiguous")
        cell.judge_gradients(gradients, cotangent=cotangent)


@check(alone, GradientCell, ("gradient", "strides"))
def test_gradient_arrangements(cell: GradientCell) -> None:
    """Cotangents however they lie in memory: with stride 0, transposed, with gaps; and of one number,
    as the derivative of a sum hands them on."""
    same = np.broadcast_to(cell.cotangent[:1], cell.cotangent.shape)
    number = np.broadcast_to(cell.cotangent[:1, :1, :1, :1], cell.cotangent.shape)
    for arranged, cotangent in (
        ("expanded", same),
        ("scalar", number),
        ("transposed", cell.cotangent),
        ("inner-stride", cell.cotangent),
        ("offset", cell.cotangent),
    ):
        _, gradients = cell.differentiate(cell.inputs, OPERANDS, cotangent, arranged)
        cell.judge_gradients(gradients, cotangent=cotangent)


@check(alone, GradientCell, ("gradient",))
def test_gradient_contract(cell: GradientCell) -> None:
    """Nothing handed in is changed, and the answer is the one given without gradients."""
    backend = cell.implementation.backend
    prepared = cell.prepare(cell.inputs)
    before = {
        n: backend.to_numpy(a).copy() for n, a in prepared.arguments.items() if backend.is_array(a)
    }
    turned = prepared.layout == "blhd"
    given = cell.cotangent.swapaxes(1, 2) if turned else cell.cotangent
    native = backend.arranged(given, cell.dtype, "reversed")
    kept = backend.to_numpy(native).copy()
    plain = cell.read(cell.call(prepared), cell.inputs, prepared.layout)
    cell.judge(plain)
    cell.attempt(lambda: backend.differentiate(prepared, OPERANDS, native))
    for name, values in before.items():
        if not np.array_equal(backend.to_numpy(prepared.arguments[name]), values, equal_nan=True):
            raise Deviation("mutated-input", f"differentiation changed the argument {name}")
    if not np.array_equal(backend.to_numpy(native), kept):
        raise Deviation("mutated-input", "differentiation changed the cotangent")


def hiding(level: str) -> list[Case]:
    """Cases of ordinary values in which some slot is hidden from all rows, or from many."""
    return [
        case
        for case in gradient_cases(level)
        if case.problem.mask is not None
        and case.recipe in ("normal", "ties", "integers", "onehot")
        and min(case.problem.sizes.B, case.problem.sizes.Lq, case.problem.sizes.Lk - 1) > 0
    ]


@check(hiding, GradientCell, ("gradient",))
def test_gradient_hidden(cell: GradientCell) -> None:
    """Other keys and values in hidden slots change no gradient of a row that does not see them, and
    slots that no row sees get exactly no gradient: large numbers, and NaN where that is elected to be
    blocked."""
    inputs = cell.inputs
    if cell.empty_gradients(inputs) != "nothing" and inputs.has_empty_rows:
        raise NotElected("elects that rows without keys take part in gradients")
    hidden = never_attended(inputs)
    nowhere = bool(hidden.any())
    if not nowhere:
        hidden = last_seen_by_some(inputs)
    _, before = cell.differentiate(inputs, OPERANDS)
    for name, (key, value) in poisons(cell, nowhere).items():
        _, after = cell.differentiate(poisoned(inputs, hidden, key, value), OPERANDS)
        expect_unmoved(cell, before, after, hidden, nowhere, name)


def poisons(cell: GradientCell, nowhere: bool) -> dict[str, tuple[float, float]]:
    """What is put in hidden keys and values, by name: NaN only where no row sees a slot (`nowhere`), and
    where the election was declared, or observed of the boolean mask that the case has."""
    found = {"other values": (50.0, -80.0)}
    implementation, inputs = cell.implementation, cell.inputs
    if not nowhere or "mask" in implementation.lacks:
        return found
    if inputs.bias is not None and implementation.merges_mask_into_bias:
        return found  # the mask is -inf in the bias, and NaN - inf is NaN
    blocked = []
    for operand in ("key", "value"):
        question = f"nan-in-masked-{operand}-gradient"
        known = implementation.elected(question, cell.dtype) or inputs.form == "dense"
        blocked.append(bool(known) and cell.elected(question) == "blocked")
    if any(blocked):
        found["NaN"] = (np.nan if blocked[0] else 50.0, np.nan if blocked[1] else -80.0)
    return found


def expect_unmoved(
    cell: GradientCell, before: dict[str, np.ndarray], after: dict[str, np.ndarray],
    hidden: np.ndarray, nowhere: bool, poison: str,
) -> None:  # fmt: skip
    """Raise Deviation "leak" where a gradient changed that the hidden slots (B, Hkv, Lk) have no part in;
    where no row sees these (`nowhere`), their own must be zero."""
    inputs, s = cell.inputs, cell.inputs.sizes
    group = np.repeat(hidden, s.H // s.Hkv, axis=1)[:, :, None]
    judged = ~(inputs.attends & group).any(-1)[..., None]
    rows = np.broadcast_to(judged, before["query"].shape)
    cell.expect_bitwise(
        np.where(rows, after["query"], 0.0), np.where(rows, before["query"], 0.0), "leak",
        f"the query's gradient, with {poison} in hidden slots",
    )  # fmt: skip
    if not nowhere:
        return
    for name in ("key", "value"):
        slots = np.broadcast_to(hidden[..., None], before[name].shape)
        if (before[name][slots] != 0).any() or (after[name][slots] != 0).any():
            raise Deviation("leak", f"a hidden {name} has a gradient that is not zero")
        cell.expect_bitwise(
            after[name], before[name], "leak",
            f"the {name}'s gradient, with {poison} in hidden slots",
        )  # fmt: skip
