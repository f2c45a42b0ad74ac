"""Records of diagnoses: what a run says is wrong with an implementation."""

from __future__ import annotations

from dataclasses import dataclass

from attention_conformance.suite.records.lines import NonNegativeInt
from attention_conformance.suite.spec.vocabulary import GRADIENTS, OF_ANSWERS, VALUES

EXPLAINING_CHECKS = (VALUES, *GRADIENTS)
"""Checks whose failures are listed first: they explain failures of other checks."""

LINE_NAME = "diagnosis"
"""The name of lines with diagnoses in result files."""


@dataclass(frozen=True)
class DiagnosisRecord:
    """One sentence about an implementation, with its evidence.

    - `hint`: what people write in code that does this; "" if unknown
    - `family`: the kind of the fault: mask, scale, heads ...
    - `origin`: "catalogue" (a known fault answers so) or "measured" (by probes)
    - `explains`, `tried`: the failing cells that behave so, and those that were tried
    - `contradicts`: the passing cells tried that the fault would fail
    - `check`, `case`: the smallest failing cell that is explained
    - `fault`: the name of the catalogue's fault, or ""
    - `picture`: lines of text, expected beside got, or ""
    """

    backend: str
    implementation: str
    sentence: str
    hint: str
    family: str
    origin: str
    explains: NonNegativeInt
    tried: NonNegativeInt
    contradicts: NonNegativeInt
    check: str
    case: str
    fault: str = ""
    picture: str = ""


@dataclass(frozen=True)
class FailureReport:
    """What a run says of its failures.

    `smaller` is a smaller failing case, made from a failure of the `group` (check, implementation and
    kind); `takes` are its properties without which it passes, "" if time ended before all were tried;
    `script` is the path of a script that shows it, "" without one.
    """

    diagnoses: tuple[DiagnosisRecord, ...] = ()
    notes: tuple[str, ...] = ()
    group: tuple[str, str, str] = ("", "", "")
    smaller: str = ""
    takes: str = ""
    script: str = ""


NO_REPORT = FailureReport()


def group_order(check: str, kind: str, count: int) -> tuple[bool, int, int]:
    """Returns the sort key of a group of `count` failures: first the kinds `OF_ANSWERS`; then the checks
    of values, of gradients, and all others; then the largest group."""
    return kind not in OF_ANSWERS, (*EXPLAINING_CHECKS, check).index(check), -count
