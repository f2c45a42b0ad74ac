"""Diagnoses as lines of text, for terminals and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attention_conformance.suite.records.diagnoses import DiagnosisRecord

Again = Callable[[DiagnosisRecord], str]
"""The command that judges the smallest cell of a diagnosis; "" without one."""


def lines(diagnoses: Sequence[DiagnosisRecord], again: Again = lambda one: "") -> Iterator[str]:
    """Diagnoses with their evidence, hint, smallest case and command, the first picture below its own
    diagnosis; nothing if there is none."""
    pictured = next((one for one in diagnoses if one.picture), None)
    names = dict.fromkeys((one.backend, one.implementation) for one in diagnoses)
    if diagnoses:
        yield from ("", "Diagnosis", "---------")
    for number, one in enumerate(diagnoses, 1):
        of = f" ({one.backend}:{one.implementation})" if len(names) > 1 else ""
        yield f"{number:2}. {one.sentence}{of}"
        yield f"    {evidence(one)}; {one.case}"
        if one.hint:
            yield f"    in code   {one.hint}"
        if command := again(one):
            yield f"    again     {command}"
        if one is pictured:
            yield from ("", *(f"    {line}" for line in one.picture.splitlines()))


def evidence(one: DiagnosisRecord) -> str:
    """How much a diagnosis explains: "measured: explains 3 of 6 failures tried, contradicts 2 passes".

    Measured sentences without a formula are held against no passing cell.
    """
    noun = "failure" if one.tried == 1 else "failures"
    explains = f"explains {one.explains} of {one.tried} {noun} tried"
    if one.contradicts:
        explains += f", contradicts {one.contradicts} pass{'' if one.contradicts == 1 else 'es'}"
    if one.origin != "catalogue":
        return f"measured: {explains}"
    return f"as a known fault: {explains}{'' if one.contradicts else ', contradicts none'}"
