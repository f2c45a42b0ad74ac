"""Facts: what an implementation of plain attention computes, measured without a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.diagnosis import (
    behaviour,
    formulas,
    gradients,
    heads,
    precision,
    scale,
    weights,
)
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    softmax,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw_cotangent
from attention_conformance.suite.spec.masks import Causal

ID = "sdpa/{mask}/{heads}/f32/b2h{h}q{q}k7d8{more}"
"""The problems that are asked."""

NOT_TAKEN = "not taken"

NOT_LINEAR = "not read: scores are no linear function of "
"""Stands for a fact that a regression does not give: its residual is above the bound."""


def read(implementation: Implementation, seconds: float = 8.0) -> dict[str, str]:
    """What is measured of an implementation of plain attention by the name of the fact, in the order of
    a table.

    "not taken": a case needs what the implementation lacks or refuses. After so many `seconds` of
    processor time nothing more is measured.
    """
    tool = Instrument(implementation, seconds)
    facts: dict[str, str] = {}
    with leaks.undone(implementation.backend):
        if (plain := _case(tool)) is not None:
            list(precision.ask(tool, plain))  # sets the unit roundoff of what is rounded inside
        for name, fact in FACTS.items():
            facts[name] = "not measured in time" if tool.is_late else fact(tool)
    return facts


def _case(
    tool: Instrument, mask: str = "none", group: int = 1, q: int = 5, more: str = ""
) -> Case | None:
    """A case that the implementation answers, or None."""
    named = "mha" if group == 1 else f"gqa{group}"
    case = Case.parse(ID.format(mask=mask, heads=named, h=3 * group, q=q, more=more))
    return tool.small_case(case) if tool.implementation.missing(case.needs) is None else None


def _reading(tool: Instrument, **changes: object) -> Reading | None:
    """The weights of a case, or None."""
    case = _case(tool, **changes)  # type: ignore[arg-type]
    return None if case is None else tool.read_weights(tool.draw(case))


def _scale(tool: Instrument) -> str:
    reading = _reading(tool)
    fit = None if reading is None else formulas.fitted(reading, reading.products)
    if reading is None or fit is None:
        return f"{NOT_LINEAR}q.k"
    return formulas.formula(fit, reading.inputs)[1]


def _scale_argument(tool: Instrument) -> str:
    reading = _reading(tool, more="/scale0.3")
    fit = None if reading is None else formulas.fitted(reading, reading.products)
    if reading is None:
        return NOT_TAKEN
    if fit is None:
        return f"{NOT_LINEAR}q.k"
    if fit.says(0, 0.3):
        return "is the scale"
    return f"0.3 gives {formulas.formula(fit, reading.inputs)[1]}"


def _softmax(tool: Instrument) -> str:
    reading = _reading(tool)
    if reading is None:
        return "not read"
    found = [f for f in weights.ask(tool, reading) if f.family in ("softmax", "dropout")]
    if found:
        return found[0].sentence
    off = np.abs(reading.got.sum(-1) - 1) > reading.slack + reading.bound.sum(-1)
    return "over the keys, rows sum to 1" if not off.any() else "not read: rows do not sum to 1"


def _causal(tool: Instrument) -> str:
    case = _case(tool, "causal") or _case(tool, "causal", q=7)
    if case is None or tool.implementation.missing(["native-causal"]) is not None:
        return NOT_TAKEN
    reading = tool.read_weights(tool.draw(case).replace(mask=Causal(), form="flag"))
    if reading is None:
        return "refused"
    s = case.sizes
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    names = {0: "top-left", s.Lk - s.Lq: "bottom-right"} if s.Lk != s.Lq else {}
    for n in range(-s.Lq, s.Lk):
        if (reading.visible == (k <= q + n)).all():
            sees = f"query i sees keys up to i {'+' if n >= 0 else '-'} {abs(n)}".removesuffix(
                " + 0"
            )
            return f"{names[n]}: {sees}" if n in names else sees
    return "no causal mask" if reading.visible.all() else "another pattern"


def _mask(tool: Instrument) -> str:
    case = _case(tool, "bool.bhqk", more="/dense")
    reading = None if case is None else tool.read_weights(tool.draw(case))
    if reading is None:
        return NOT_TAKEN
    found = [f for f in weights.ask(tool, reading) if f.family == "mask"]
    if found:
        return found[0].sentence
    seen = (reading.visible == reading.inputs.attends) | ~reading.judged_rows[..., None]
    return "True attends" if seen.all() else "not read: keys are seen in no known pattern"


def _bias(tool: Instrument) -> str:
    reading = _reading(tool, more="/bias.bhqk")
    if reading is None or reading.bias is None:
        return NOT_TAKEN
    fit = formulas.fitted(reading, reading.products, reading.bias)
    if fit is None:
        return f"{NOT_LINEAR}q.k and the bias"
    if fit.says(1, 0.0):
        return "not added to the scores"
    return "added to the scores" if fit.says(1, 1.0) else f"counts {fit.values[1]:.3g} times"


def _softcap(tool: Instrument) -> str:
    reading = _reading(tool, more="/cap2.0")
    if reading is None:
        return NOT_TAKEN
    if reading.fits(softmax(reading.scores, reading.visible)):
        return "c tanh(s / c)"
    return " ".join(f.sentence for f in scale.ask(tool, reading)) or "another formula"


def _groups(tool: Instrument) -> str:
    case = _case(tool, group=2)
    if case is None:
        return NOT_TAKEN
    found = [f for f in heads.ask(tool, case) if f.family in ("heads", "layout")]
    return found[0].sentence if found else "query head h reads key and value head h // group"


def _inside(name: str, tool: Instrument) -> str:
    """What is rounded inside a call of a dtype."""
    case = _case(tool)
    typed = None if case is None else replace(case, dtype=DTYPES[name])
    if typed is None or tool.implementation.unsupported(typed) is not None:
        return NOT_TAKEN
    if not typed.dtype.is_half:
        found = precision.read(tool, typed)
        listed = [f"{n} {f}" for n, f in found.items() if n != "ignored"]
        return "rounds " + ", ".join(listed) if listed else "nothing narrower"
    inputs = tool.draw(typed, 1.0)
    wide, oracle, reached = (
        tool.output(inputs.replace(dtype=DTYPES["f32"])),
        tool.oracle(inputs),
        precision.graded(tool, typed),
    )
    if not reached or oracle is None:
        return "refused"
    if wide is not None and not gradients.near(wide, oracle):
        return "not graded: in float32, too, the answer is not that of attention"
    sums = [f.sentence for f in precision.summed(tool, typed)]
    return " ".join(
        [f"as precise as {reached}" if reached != "none" else "less precise than any class", *sums]
    )


def _large(tool: Instrument) -> str:
    case = _case(tool)
    found = [] if case is None else list(precision.shifted(tool, case))
    return found[0].sentence if found else f"stay finite up to {precision.OFFSET:g}"


def _gradients(tool: Instrument) -> str:
    case = _case(tool)
    if case is None or tool.implementation.missing(["gradient"]) is not None:
        return NOT_TAKEN
    inputs = tool.draw(case, 1.0)
    if not gradients.near(tool.output(inputs), tool.oracle(inputs)):
        return "not compared: the answer is not that of attention"
    if gradients.read(tool, inputs, draw_cotangent(case)) is None:
        return "none"
    return " ".join(f.sentence for f in gradients.ask(tool, case)) or "those of attention"


def _effects(tool: Instrument) -> str:
    case = _case(tool)
    found: list[Symptom] = [] if case is None else list(behaviour.ask(tool, case))
    return (
        " ".join(f.sentence for f in found)
        or "none: repeats its bits, leaves its inputs, keeps nothing"
    )


FACTS: dict[str, Callable[[Instrument], str]] = {
    "scale": _scale,
    "argument scale": _scale_argument,
    "softmax": _softmax,
    "causal flag": _causal,
    "boolean mask": _mask,
    "bias": _bias,
    "softcap": _softcap,
    "grouped heads": _groups,
    **{f"inside {DTYPES[n].long_name}": partial(_inside, n) for n in ("f32", "f64", "bf16", "f16")},
    "large scores": _large,
    "gradients": _gradients,
    "side effects": _effects,
}
"""The facts of plain attention, in the order of the table."""
