"""Identification: what an implementation computes instead, measured by probes.

    identify(backend, implementation, cases) -> diagnoses, the best first

A right implementation is told nothing: what is said is beyond the bounds of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Backend, Implementation
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
"""Different small problems that are asked, at most."""

UNREAD = "not read"
"""Stands for weights that are wrong by more than `GROSS` where no question knows why."""

GROSS = 0.05
"""Errors beyond what low precision makes, as a part of the largest weight."""


def identify(
    backend: Backend,
    implementation: Implementation,
    cases: Sequence[Case],
    seconds: float = 5.0,
    evidence: Evidence | None = None,
) -> list[Diagnosis]:
    """What is wrong with an implementation that fails `cases`, best first: what explains most of them.

    `backend` is the implementation's own. `seconds` is the processor time after which nothing more is
    asked. `evidence` are cells with which formulas are compared. Nothing is raised: a call that fails
    says nothing.
    """
    tool = Instrument(implementation, seconds)
    findings: dict[str, tuple[Symptom, list[Case]]] = {}
    groups: dict[str, list[Case]] = {}
    with leaks.undone(implementation.backend):
        for case in sorted(cases, key=lambda case: (case.sizes.pairs, case.id)):
            small = tool.small_case(case)
            groups.setdefault(case.id if small is None else small.id, []).append(case)
        for group in list(groups.values())[:PROBLEMS]:
            for found in tool.attempt(partial(problems, tool, group[0])) or ():
                _, explained = findings.setdefault(found.name, (found, []))
                explained += [case for case in group if case not in explained]
        for found, case in _beside(tool, [f for f, _ in findings.values()], [*groups.values()]):
            findings.setdefault(found.name, (found, [case]))
        beside, diagnoses = evidence or Evidence(), []
        for measured, explained in findings.values():
            known = tool.attempt(partial(restrict_symptom, beside, measured, explained))
            found, like, against = known or (measured, explained, 0)
            counts = len(like), len(cases), against, like[0].id
            said = found.sentence, found.hint, found.family, "measured"
            diagnoses.append(Diagnosis(*said, *counts, picture=found.picture, key=found.name))
    return sorted(diagnoses, key=lambda one: (one.contradicts > 0, -one.explains))


def _beside(
    tool: Instrument, findings: list[Symptom], groups: list[list[Case]]
) -> Iterator[tuple[Symptom, Case]]:
    """What is wrong with weights beside what small problems have told, each with a failing case: a second
    fault may need many keys, sizes of heads that differ, or a causal mask alone."""
    families = {found.family for found in findings}
    if not families or families & {"state", "contract", "dropout"}:
        return
    first = groups[0][0]
    if not first.operator.is_default:
        return
    asked = {first: replace(first, dtype=DTYPES["f32"], recipe="normal")}
    causal = (case for group in groups for case in group if "causal" in case.mask_token)
    for case in causal:
        small = tool.small_case(case)
        if small is not None:
            asked[case] = replace(plain_case(small), mask=Causal())
            break
    for case, alike in asked.items():
        for found in tool.attempt(partial(all_weights, tool, alike)) or ():
            if found.family not in families:
                families.add(found.family)
                yield found, case


def problems(tool: Instrument, case: Case) -> list[Symptom]:
    """What is found in the smallest problem like a case; if that is nothing, in the case itself."""
    if not case.operator.is_default:
        return list(others.ask(tool, case))
    small = tool.small_case(case)
    findings = [
        found for one in tool.small_cases(case)[:1] for found in behaviour.ask(tool, small or one)
    ]
    if any(found.name == behaviour.VARIES for found in findings) and small is not None:
        return [f for f in tool.symptoms(of_weights, small) if f.family == "dropout"] or findings
    if any(
        found.family in ("state", "contract") and found.name != behaviour.WRITES
        for found in findings
    ):
        return findings
    if small is not None:
        inside = list(
            of_precision(tool, case.dtype.name, plain_case(small))
        )  # sets the unit of the others
        if any(found.name == precision.IGNORED for found in inside):
            return inside[:1]
        findings += tool.symptoms(heads.ask, plain_case(small)) or all_weights(tool, small)
        # What is wrong with weights makes answers imprecise, too.
        findings += [f for f in inside if not findings or precision.CLASSED not in f.name]
        if not findings:
            findings = tool.symptoms(weights.ask_scores, small) or tool.symptoms(
                weights.ask_large, plain_case(small)
            )
        if not findings and case.dtype.is_half:
            findings = in_16_bits(tool, replace(small, dtype=case.dtype))
        findings = findings or tool.symptoms(others.ask_other_outputs, small)
        if not findings:
            asked = dict.fromkeys((plain_case(small), small, replace(case, dtype=DTYPES["f32"])))
            findings = [found for c in asked for found in tool.symptoms(gradients.ask, c)]
        if not findings:
            findings = tool.symptoms(gradients.ask_empty, small)
    # What hides nothing among few keys may hide whole blocks of keys.
    few = [f for f in findings if f.name == masks.ignored(case.mask)]
    if not findings or few:
        own = replace(case, dtype=DTYPES["f32"], recipe="normal")
        larger = all_weights(tool, own) if own != small else []
        findings = [f for f in findings if f not in few or not larger] + larger
    return findings


def in_16_bits(tool: Instrument, case: Case) -> list[Symptom]:
    """What is wrong with the weights of a case in 16 bits, whose weights in float32 are right."""
    only = f"In {case.dtype.long_name}, not in float32:"
    findings = [
        replace(f, sentence=f"{only} {f.sentence}", key=f.name) for f in all_weights(tool, case)
    ]
    if findings and case.mask is not None and not tool.symptoms(of_weights, plain_case(case)):
        hint = "`(1 - mask) * -1e9`: -1e9 is -inf in float16, and 0 * -inf is NaN"
        findings = [replace(f, hint=hint) if f.name == weights.BROKEN[0] else f for f in findings]
    return findings


def all_weights(tool: Instrument, case: Case) -> list[Symptom]:
    """What is wrong with the weights without mask and features, and then, of other families, with them:
    what is wrong without a mask is no fault of the mask. A mask is read if plain weights are."""
    findings = list(tool.symptoms(of_weights, plain_case(case)))
    if any(found.name == UNREAD or found.family == "layout" for found in findings):
        return [found for found in findings if found.name != UNREAD]
    families = {found.family for found in findings}
    findings += [f for f in tool.symptoms(of_weights, case) if f.family not in families]
    findings = [found for found in findings if found.name != UNREAD]
    if case.option("bias") != "none" and [f.family for f in findings] == ["scale"]:
        without = case.with_options(bias="none")
        if tool.implementation.unsupported(without) is None and not all_weights(tool, without):
            first, rest = findings[0].sentence[0].lower(), findings[0].sentence[1:]
            findings = [
                replace(findings[0], sentence=f"Beside a bias {first}{rest}", key=findings[0].name)
            ]
    return findings


def of_precision(tool: Instrument, dtype: str, case: Case) -> Iterator[Symptom]:
    """What is rounded inside in a dtype and in float32."""
    for name in dict.fromkeys(("f32", dtype)):
        typed = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(typed) is None:
            yield from precision.ask(tool, typed)


def of_weights(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What is wrong with the weights of a case. Later questions are asked only if earlier ones find
    nothing; `UNREAD` if none knows why weights are wrong by more than `GROSS`."""
    reading = tool.read_weights(tool.draw(case))
    if reading is None:
        return
    if not reading.wrong.any():
        yield from sums.other_denominator(reading)
        return
    asked = weights.ask(tool, reading), scale.ask(tool, reading)
    findings = [found for question in asked for found in question]
    findings = (
        findings or list(weights.ask_places(tool, reading)) or list(rearranged(tool, reading))
    )
    if not findings and np.abs(reading.got - reading.want).max() > GROSS * reading.want.max():
        findings = [Symptom(UNREAD, "")]
    yield from findings


def rearranged(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """The findings if weights make sense after heads and rows of the output are put in order."""
    for way in heads.INTERLEAVED:
        other = replace(reading, raw=way.undone(reading.raw))
        findings = list(scale.ask(tool, other))
        if findings:
            yield Symptom(way.sentence, "layout", way.hint)
            yield from findings
            return
