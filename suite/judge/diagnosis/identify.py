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
    plain_case,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
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
    """Diagnoses of an implementation that fails `cases`, those that explain most cases first.

    `seconds` limits the processor time. `evidence` are cells with which the answers of symptoms are
    compared. `without` is the name of a fault that is left out of the catalogue. Nothing is raised: a
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
            restriction = tool.attempt(partial(restrict_symptom, evidence, measured, explained))
            symptom, explained, contradicting = restriction or (measured, explained, 0)
            counts = len(explained), len(cases), contradicting, explained[0].id
            texts = symptom.sentence, symptom.hint, symptom.family, "measured"
            diagnoses.append(Diagnosis(*texts, *counts, picture=symptom.picture, key=symptom.name))
    return sorted(diagnoses, key=lambda diagnosis: (diagnosis.contradicts > 0, -diagnosis.explains))


def _further_symptoms(
    tool: Instrument, symptoms: list[Symptom], groups: list[list[Case]]
) -> Iterator[tuple[Symptom, Case]]:
    """Symptoms of weights in families that small problems do not show, each with a failing case: a second
    fault may need many keys, sizes of heads that differ, or a causal mask alone."""
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
    """The symptoms in the smallest problem like a case, or else in the case itself."""
    if not case.operator.is_default:
        return list(others.ask(tool, case))
    small = tool.small_case(case)
    probes = tool.small_cases(case)[:1] if small is None else [small]
    symptoms = [symptom for probe in probes for symptom in behaviour.ask(tool, probe)]
    if any(symptom.name == behaviour.VARIES for symptom in symptoms) and small is not None:
        return [s for s in tool.symptoms(of_weights, small) if s.family == "dropout"] or symptoms
    if any(s.family in ("state", "contract") and s.name != behaviour.WRITES for s in symptoms):
        return symptoms
    if small is not None:
        plain = plain_case(small)
        roundings = list(of_precision(tool, case.dtype.name, plain))  # first: it sets `tool.unit`
        if any(symptom.name == precision.OPERAND_IGNORED for symptom in roundings):
            return roundings[:1]
        symptoms += tool.symptoms(heads.ask, plain) or weight_symptoms(tool, small)
        symptoms += roundings
        if not symptoms:
            symptoms = tool.symptoms(weights.ask_scores, small)
            symptoms = symptoms or tool.symptoms(weights.ask_large, plain)
        if not symptoms and case.dtype.is_half:
            symptoms = in_16_bits(tool, replace(small, dtype=case.dtype))
        symptoms = symptoms or tool.symptoms(others.ask_other_outputs, small)
        if not symptoms:
            probes = [*dict.fromkeys((plain, small, replace(case, dtype=DTYPES["f32"])))]
            symptoms = [s for probe in probes for s in tool.symptoms(gradients.ask, probe)]
    # A mask that hides nothing among few keys may hide whole blocks of keys.
    ignored = [symptom for symptom in symptoms if symptom.name == masks.ignored(case.mask)]
    if not symptoms or ignored:
        in_f32 = replace(case, dtype=DTYPES["f32"], recipe="normal")
        of_case = weight_symptoms(tool, in_f32) if in_f32 != small else []
        symptoms = [s for s in symptoms if s not in ignored or not of_case] + of_case
    return symptoms


def in_16_bits(tool: Instrument, case: Case) -> list[Symptom]:
    """The symptoms of the weights of a case in 16 bits, if its weights in float32 are right."""
    only = f"In {case.dtype.long_name}, not in float32:"
    symptoms = weight_symptoms(tool, case)
    return [replace(s, sentence=f"{only} {s.sentence}", key=s.name) for s in symptoms]


def weight_symptoms(tool: Instrument, case: Case) -> list[Symptom]:
    """The symptoms of the weights without mask and features; then, of other families, with them: a fault
    without a mask is no fault of the mask. The mask is read only if weights without mask make sense."""
    symptoms = list(tool.symptoms(of_weights, plain_case(case)))
    if any(symptom.name == UNREAD or symptom.family == "layout" for symptom in symptoms):
        return [symptom for symptom in symptoms if symptom.name != UNREAD]
    families = {symptom.family for symptom in symptoms}
    symptoms += [s for s in tool.symptoms(of_weights, case) if s.family not in families]
    return [symptom for symptom in symptoms if symptom.name != UNREAD]


def of_precision(tool: Instrument, dtype: str, case: Case) -> Iterator[Symptom]:
    """The symptoms of roundings inside, in float32 and in a dtype."""
    for name in dict.fromkeys(("f32", dtype)):
        probe = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(probe) is None:
            yield from precision.ask(tool, probe)


def of_weights(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """The symptoms of the weights of a case, by the first questions that find some; else `UNREAD` if
    weights are wrong by more than `GROSS`."""
    reading = tool.read_weights(tool.draw(case))
    if reading is None:
        return
    if not reading.wrong.any():
        yield from sums.denominator_symptoms(reading)
        return
    symptoms = [*weights.ask(tool, reading), *scale.ask(tool, reading)]
    symptoms = (
        symptoms or [*weights.ask_places(tool, reading)] or [*rearranged_symptoms(tool, reading)]
    )
    if not symptoms and np.abs(reading.got - reading.want).max() > GROSS * reading.want.max():
        symptoms = [Symptom(UNREAD, "")]
    yield from symptoms


def rearranged_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """The symptoms if weights make sense once heads and rows of the output are put in order."""
    for way in heads.INTERLEAVED:
        symptoms = list(scale.ask(tool, replace(reading, raw=way.invert(reading.raw))))
        if symptoms:
            yield Symptom(way.sentence, "layout", way.hint)
            yield from symptoms
            return
