"""Identification: the faults of an implementation, measured by probes.

    identify(implementation, cases) -> diagnoses, the best first

A right implementation gets no diagnosis: symptoms exceed the bounds of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.diagnosis import (
    behaviour,
    gradients,
    heads,
    masks,
    others,
    precision,
    scale,
    sums,
    weights,
)
from attention_conformance.suite.judge.diagnosis.conditions import restrict_symptom
from attention_conformance.suite.judge.diagnosis.evidence import Evidence
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.masks import Causal

PROBLEMS = 6
"""The largest number of different small problems that are probed."""

UNREAD = "not read"
"""The sentence of a symptom without a cause: weights are wrong by more than `GROSS`."""

GROSS = 0.05
"""The smallest error that low precision does not explain, as a part of the largest weight."""


def identify(
    implementation: Implementation,
    cases: Sequence[Case],
    seconds: float = 5.0,
    evidence: Evidence | None = None,
    without: str = "",
) -> list[Diagnosis]:
    """Returns the diagnoses of an implementation that fails `cases`, those that explain most cases first.

    `seconds` limits the processor time. `evidence`: outcomes of cells, with which the answers of symptoms
    are compared. `without` is the name of a fault that is left out of the catalogue. Nothing is raised: a
    call that fails gives no symptom.
    """
    tool = Instrument(implementation, seconds, without)
    explained_by: dict[str, tuple[Symptom, list[Case]]] = {}
    groups: dict[str, list[Case]] = {}
    with leaks.restored_settings(implementation.backend):
        for case in sorted(cases, key=lambda case: (case.sizes.pairs, case.id)):
            small = tool.small_case(case)
            groups.setdefault(case.id if small is None else small.id, []).append(case)
        for group in list(groups.values())[:PROBLEMS]:
            for symptom in tool.attempt(partial(case_symptoms, tool, group[0])) or ():
                _, explained = explained_by.setdefault(symptom.name, (symptom, []))
                explained += [case for case in group if case not in explained]
        first_symptoms = [symptom for symptom, _ in explained_by.values()]
        for symptom, case in _further_symptoms(tool, first_symptoms, [*groups.values()]):
            explained_by.setdefault(symptom.name, (symptom, [case]))
        evidence, diagnoses = evidence or Evidence(), []
        for measured, explained in explained_by.values():
            restriction = tool.attempt(
                partial(restrict_symptom, evidence, measured, explained, lambda: tool.is_late)
            )
            symptom, explained, contradicting = restriction or (measured, explained, 0)
            counts = len(explained), len(cases), contradicting, explained[0].id
            texts = symptom.sentence, symptom.hint, symptom.family, "measured"
            diagnoses.append(Diagnosis(*texts, *counts, picture=symptom.picture, key=symptom.name))
    return sorted(diagnoses, key=lambda diagnosis: (diagnosis.contradicts > 0, -diagnosis.explains))


def _further_symptoms(
    tool: Instrument, symptoms: list[Symptom], groups: list[list[Case]]
) -> Iterator[tuple[Symptom, Case]]:
    """Yields symptoms of weights, each with a failing case, in families that `symptoms` do not have. A
    second fault may need many keys, sizes of heads that differ, or a causal mask alone. Nothing is
    yielded if the answers are random, have side effects, or a wrong type."""
    families = {symptom.family for symptom in symptoms}
    if not families or families & {"state", "contract", "dropout"}:
        return
    first = groups[0][0]
    if not first.operator.is_default:
        return
    probe_of = {first: replace(first, dtype=DTYPES["f32"], recipe="normal")}
    causal_cases = (case for group in groups for case in group if "causal" in case.mask_token)
    for case in causal_cases:
        small = tool.small_case(case)
        if small is not None:
            probe_of[case] = replace(plain_case(small), mask=Causal())
            break
    for case, probe in probe_of.items():
        for symptom in tool.attempt(partial(weight_symptoms, tool, probe)) or ():
            if symptom.family not in families:
                families.add(symptom.family)
                yield symptom, case


def case_symptoms(tool: Instrument, case: Case) -> list[Symptom]:
    """Returns the symptoms in the smallest case like `case`. If that shows none, or only an ignored mask,
    `case` itself is tested, too."""
    if not case.operator.is_default:
        return list(others.operator_symptoms(tool, case))
    small = tool.small_case(case)
    probes = tool.small_cases(case)[:1] if small is None else [small]
    symptoms = [
        symptom for probe in probes for symptom in behaviour.behaviour_symptoms(tool, probe)
    ]
    if any(symptom.name == behaviour.VARIES for symptom in symptoms) and small is not None:
        return [
            s for s in tool.symptoms(reading_symptoms, small) if s.family == "dropout"
        ] or symptoms
    if any(s.family in ("state", "contract") and s.name != behaviour.WRITES for s in symptoms):
        return symptoms
    if small is not None:
        plain = plain_case(small)
        roundings = list(
            rounding_symptoms(tool, case.dtype.name, plain)
        )  # first: it sets `tool.unit`
        if any(symptom.name == precision.OPERAND_IGNORED for symptom in roundings):
            return roundings[:1]
        symptoms += tool.symptoms(heads.head_symptoms, plain) or weight_symptoms(tool, small)
        symptoms += roundings
        if not symptoms:
            symptoms = tool.symptoms(weights.hidden_score_symptoms, small)
            symptoms = symptoms or tool.symptoms(weights.clipped_score_symptoms, plain)
        if not symptoms and case.dtype.is_half:
            symptoms = symptoms_in_16_bits(tool, replace(small, dtype=case.dtype))
        symptoms = symptoms or tool.symptoms(others.other_output_symptoms, small)
        if not symptoms:
            probes = [*dict.fromkeys((plain, small, replace(case, dtype=DTYPES["f32"])))]
            symptoms = [
                s for probe in probes for s in tool.symptoms(gradients.gradient_symptoms, probe)
            ]
    # A mask that hides nothing among few keys may hide whole blocks of keys.
    ignored = [
        symptom for symptom in symptoms if symptom.name == masks.ignored_mask_name(case.mask)
    ]
    if not symptoms or ignored:
        in_f32 = replace(case, dtype=DTYPES["f32"], recipe="normal")
        own_symptoms = []
        if in_f32 != small:
            plain = replace(plain_case(in_f32), axis_order="bhld")
            own_symptoms = tool.symptoms(heads.head_symptoms, plain)
            own_symptoms = own_symptoms or weight_symptoms(tool, in_f32)
        symptoms = [s for s in symptoms if s not in ignored or not own_symptoms] + own_symptoms
    return symptoms


def symptoms_in_16_bits(tool: Instrument, case: Case) -> list[Symptom]:
    """Returns the symptoms of the weights of a case in 16 bits. Their sentences say that float32 is
    right, which the caller has found."""
    only = f"In {case.dtype.long_name}, not in float32:"
    symptoms = weight_symptoms(tool, case)
    return [replace(s, sentence=f"{only} {s.sentence}", key=s.name) for s in symptoms]


def weight_symptoms(tool: Instrument, case: Case) -> list[Symptom]:
    """Returns the symptoms of the weights without mask and features, and then the symptoms of further
    families with them: a fault that appears without a mask is no fault of the mask. If the weights
    without a mask have no known fault, or a faulty layout, the mask is not read."""
    symptoms = list(tool.symptoms(reading_symptoms, plain_case(case)))
    if any(symptom.name == UNREAD or symptom.family == "layout" for symptom in symptoms):
        return [symptom for symptom in symptoms if symptom.name != UNREAD]
    families = {symptom.family for symptom in symptoms}
    symptoms += [s for s in tool.symptoms(reading_symptoms, case) if s.family not in families]
    return [symptom for symptom in symptoms if symptom.name != UNREAD]


def rounding_symptoms(tool: Instrument, dtype: str, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of roundings inside calls in float32, and in the dtype called `dtype`."""
    for name in dict.fromkeys(("f32", dtype)):
        probe = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(probe) is None:
            yield from precision.precision_symptoms(tool, probe)


def reading_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of the weights of a case: of their pattern and scale; without such symptoms, of
    misplaced weights; without these, of a rearranged output. If no symptom is found and a weight is wrong
    by more than `GROSS` of the largest, yields a symptom with the sentence `UNREAD`. If no weight is
    wrong, yields a symptom of the softmax's denominator, if any. Yields nothing without a reading."""
    reading = tool.read_weights(tool.draw(case))
    if reading is None:
        return
    if not reading.wrong.any():
        yield from sums.denominator_symptoms(reading)
        return
    symptoms = [*weights.pattern_symptoms(tool, reading), *scale.scale_symptoms(tool, reading)]
    symptoms = (
        symptoms
        or [*weights.misplaced_weight_symptoms(tool, reading)]
        or [*rearranged_symptoms(tool, reading)]
    )
    if not symptoms and np.abs(reading.got - reading.want).max() > GROSS * reading.want.max():
        symptoms = [Symptom(UNREAD, "")]
    yield from symptoms


def rearranged_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Yields the symptoms of an output with interleaved heads and rows: the wrong order, and the fault of
    the scale that the reordered weights show."""
    for way in heads.INTERLEAVED:
        symptoms = list(scale.scale_symptoms(tool, replace(reading, raw=way.invert(reading.raw))))
        if symptoms:
            yield Symptom(way.sentence, "layout", way.hint)
            yield from symptoms
            return


def plain_case(case: Case) -> Case:
    """Returns the case without mask, bias and other features."""
    unmasked = replace(case, mask=None, form="native")
    names = ["bias", "scale", *(n for n, f in FEATURES.items() if f.option)]
    defaults = {o.name: o.default for o in case.operator.options if o.name in names}
    return unmasked.with_options(**defaults)
