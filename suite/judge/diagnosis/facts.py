"""Facts: what an implementation of plain attention computes, measured without a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.diagnosis import (
    behaviour,
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

ID = "sdpa/{mask}/{heads}/f32/b2h{h}q{q}k7d8{options}"
"""The id of a measured case."""

NOT_TAKEN = "not taken"

NOT_LINEAR = "not read: scores are no linear function of "
"""The beginning of a fact that a regression does not give: its residual is above the bound."""


def read_facts(implementation: Implementation, seconds: float = 8.0) -> dict[str, str]:
    """Measures the facts of an implementation of plain attention. Returns texts by name, in the order of
    `FACTS`.

    "not taken": the fact's case needs a feature that the implementation lacks or refuses. `seconds`
    limits the processor time.
    """
    tool = Instrument(implementation, seconds)
    facts: dict[str, str] = {}
    with leaks.restored_settings(implementation.backend):
        if (plain := _case(tool)) is not None:
            list(precision.precision_symptoms(tool, plain))  # sets `tool.unit`
        for name, fact in FACTS.items():
            facts[name] = "not measured in time" if tool.is_late else fact(tool)
    return facts


def _case(
    tool: Instrument, mask: str = "none", group: int = 1, q: int = 5, options: str = ""
) -> Case | None:
    """Returns a small case with `q` queries that the implementation answers, or None. `options` are
    appended to the case's id."""
    heads = "mha" if group == 1 else f"gqa{group}"
    case = Case.parse(ID.format(mask=mask, heads=heads, h=3 * group, q=q, options=options))
    return tool.small_case(case) if tool.implementation.missing(case.needs) is None else None


def _reading(tool: Instrument, **changes: object) -> Reading | None:
    """Returns the weights of the case `_case(tool, **changes)`; None without a case or weights."""
    case = _case(tool, **changes)  # type: ignore[arg-type]
    return None if case is None else tool.read_weights(tool.draw(case))


def _scale_fact(options: str, tool: Instrument) -> str:
    """Returns the scale with its formula in a case with `options`."""
    reading = _reading(tool, options=options)
    fit = None if reading is None else scale.regression(reading, reading.products)
    if reading is None and options:
        return NOT_TAKEN
    if reading is None or fit is None:
        return f"{NOT_LINEAR}q.k"
    given, text = reading.inputs.scale, scale.formula(fit, reading.inputs)[1]
    if given is None:
        return text
    return "is the scale" if fit.allows(0, given) else f"{given:g} gives {text}"


def _sentence(symptoms: Iterable[Symptom], *families: str) -> str:
    """Returns the sentence of the first symptom of these families, or of any family if none is given; ""
    without one."""
    return next((s.sentence for s in symptoms if s.family in families or not families), "")


def _softmax_fact(tool: Instrument) -> str:
    reading = _reading(tool)
    if reading is None:
        return "not read"
    is_off = np.abs(reading.got.sum(-1) - 1) > reading.slack + reading.bound.sum(-1)
    default = "not read: rows do not sum to 1" if is_off.any() else "over the keys, rows sum to 1"
    return _sentence(weights.pattern_symptoms(tool, reading), "softmax", "dropout") or default


def _causal_fact(tool: Instrument) -> str:
    case = _case(tool, "causal") or _case(tool, "causal", q=7)
    if case is None or tool.implementation.missing(["native-causal"]) is not None:
        return NOT_TAKEN
    reading = tool.read_weights(tool.draw(case).replace(mask=Causal(), form="flag"))
    if reading is None:
        return "refused"
    s = case.sizes
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    alignments = {0: "top-left", s.Lk - s.Lq: "bottom-right"} if s.Lk != s.Lq else {}
    for offset in range(-s.Lq, s.Lk):
        if (reading.visible == (k <= q + offset)).all():
            sign = "+" if offset >= 0 else "-"
            pattern = f"query i sees keys up to i {sign} {abs(offset)}".removesuffix(" + 0")
            return f"{alignments[offset]}: {pattern}" if offset in alignments else pattern
    return "no causal mask" if reading.visible.all() else "another pattern"


def _mask_fact(tool: Instrument) -> str:
    case = _case(tool, "bool.bhqk", options="/dense")
    reading = None if case is None else tool.read_weights(tool.draw(case))
    if reading is None:
        return NOT_TAKEN
    is_right = (reading.visible == reading.inputs.attends) | ~reading.judged_rows[..., None]
    default = "True attends" if is_right.all() else "not read: keys are seen in no known pattern"
    return _sentence(weights.pattern_symptoms(tool, reading), "mask") or default


def _bias_fact(tool: Instrument) -> str:
    reading = _reading(tool, options="/bias.bhqk")
    if reading is None or reading.bias is None:
        return NOT_TAKEN
    fit = scale.regression(reading, reading.products, reading.bias)
    if fit is None:
        return f"{NOT_LINEAR}q.k and the bias"
    if fit.allows(1, 0.0):
        return "not added to the scores"
    return "added to the scores" if fit.allows(1, 1.0) else f"counts {fit.values[1]:.3g} times"


def _softcap_fact(tool: Instrument) -> str:
    reading = _reading(tool, options="/cap2.0")
    if reading is None:
        return NOT_TAKEN
    if reading.fits(softmax(reading.scores, reading.visible)):
        return "c tanh(s / c)"
    return " ".join(f.sentence for f in scale.scale_symptoms(tool, reading)) or "another formula"


def _groups_fact(tool: Instrument) -> str:
    case = _case(tool, group=2)
    if case is None:
        return NOT_TAKEN
    sentence = _sentence(heads.head_symptoms(tool, case), "heads", "layout")
    return sentence or "query head h reads key and value head h // group"


def _precision_fact(name: str, tool: Instrument) -> str:
    """Returns the roundings inside a call in the dtype called `name`, as text."""
    case = _case(tool)
    probe = None if case is None else replace(case, dtype=DTYPES[name])
    if probe is None or tool.implementation.unsupported(probe) is not None:
        return NOT_TAKEN
    if not probe.dtype.is_half:
        roundings = precision.rounded_formats(tool, probe)
        texts = [f"{n} {f}" for n, f in roundings.items() if n != "ignored"]
        return "rounds " + ", ".join(texts) if texts else "nothing narrower"
    inputs = tool.draw(probe, 1.0)
    f32_output, oracle = tool.output(inputs.replace(dtype=DTYPES["f32"])), tool.oracle(inputs)
    numerics = precision.output_numerics(tool, probe)
    if not numerics or oracle is None:
        return "refused"
    if f32_output is not None and not gradients.is_right(f32_output, oracle):
        return "not graded: in float32, too, the answer is not that of attention"
    text = f"as precise as {numerics}" if numerics != "none" else "less precise than any class"
    return " ".join([text, *(symptom.sentence for symptom in precision.sum_symptoms(tool, probe))])


def _large_scores_fact(tool: Instrument) -> str:
    case = _case(tool)
    symptoms = () if case is None else precision.overflow_symptoms(tool, case)
    return _sentence(symptoms) or f"stay finite up to {precision.OFFSET:g}"


def _gradients_fact(tool: Instrument) -> str:
    case = _case(tool)
    if case is None or tool.implementation.missing(["gradient"]) is not None:
        return NOT_TAKEN
    inputs = tool.draw(case, 1.0)
    if not gradients.is_right(tool.output(inputs), tool.oracle(inputs)):
        return "not compared: the answer is not that of attention"
    if gradients.read_gradients(tool, inputs, draw_cotangent(case)) is None:
        return "none"
    return (
        " ".join(f.sentence for f in gradients.gradient_symptoms(tool, case))
        or "those of attention"
    )


def _side_effects_fact(tool: Instrument) -> str:
    case = _case(tool)
    symptoms: list[Symptom] = [] if case is None else list(behaviour.behaviour_symptoms(tool, case))
    return (
        " ".join(f.sentence for f in symptoms)
        or "none: repeats its bits, leaves its inputs, keeps nothing"
    )


FACTS: dict[str, Callable[[Instrument], str]] = {
    "scale": partial(_scale_fact, ""),
    "argument scale": partial(_scale_fact, "/scale0.3"),
    "softmax": _softmax_fact,
    "causal flag": _causal_fact,
    "boolean mask": _mask_fact,
    "bias": _bias_fact,
    "softcap": _softcap_fact,
    "grouped heads": _groups_fact,
    **{
        f"inside {DTYPES[n].long_name}": partial(_precision_fact, n)
        for n in ("f32", "f64", "bf16", "f16")
    },
    "large scores": _large_scores_fact,
    "gradients": _gradients_fact,
    "side effects": _side_effects_fact,
}
"""The facts of plain attention, in the order of the table."""
