"""Diagnoses as lines of text, for terminals and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attention_conformance.suite.records.diagnoses import DiagnosisRecord

Rerun = Callable[[DiagnosisRecord], str]
"""Returns the command that judges the smallest cell of a diagnosis; "" without one."""


def lines(diagnoses: Sequence[DiagnosisRecord], rerun: Rerun = lambda _: "") -> Iterator[str]:
    """Yields the lines of a text about diagnoses: sentence, evidence, smallest case, hint and command of
    each. The first diagnosis with a picture is followed by the picture. Nothing without diagnoses."""
    pictured = next((one for one in diagnoses if one.picture), None)
    names = dict.fromkeys((one.backend, one.implementation) for one in diagnoses)
    if diagnoses:
        yield from ("", "Diagnosis", "---------")
    for number, one in enumerate(diagnoses, 1):
        label = f" ({one.backend}:{one.implementation})" if len(names) > 1 else ""
        yield f"{number:2}. {one.sentence}{label}"
        yield f"    {evidence(one)}; {one.case}"
        if one.hint:
            yield f"    in code   {one.hint}"
        if command := rerun(one):
            yield f"    again     {command}"
        if one is pictured:
            yield from ("", *(f"    {line}" for line in one.picture.splitlines()))


def evidence(diagnosis: DiagnosisRecord) -> str:
    """Returns a text on how much a diagnosis explains: "measured: explains 3 of 6 failures tried,
    contradicts 2 passes"."""
    noun = "failure" if diagnosis.tried == 1 else "failures"
    explains = f"explains {diagnosis.explains} of {diagnosis.tried} {noun} tried"
    if count := diagnosis.contradicts:
        explains += f", contradicts {count} pass{'' if count == 1 else 'es'}"
    if diagnosis.origin != "catalogue":
        return f"measured: {explains}"
    return f"as a known fault: {explains}{'' if diagnosis.contradicts else ', contradicts none'}"
