"""The kill table: which check kills which mutant.

A mutant is an implementation with exactly one fault. The fault names the check that must kill it: the
check must end in `fail` on one of its cases. Errors, crashes and unsupported cells kill nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.deviations.deviation import CATALOGUE, FAMILIES, Deviation
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.report.render import aligned


@dataclass(frozen=True)
class Kill:
    """The outcome of one mutant: `case`, `kind` and `message` of the first failing cell. For a survivor
    `case` is "", and the message counts its cells by status."""

    fault: Deviation
    case: str
    kind: str
    message: str

    @property
    def killed(self) -> bool:
        return bool(self.case)


def kill(mutant: Implementation, checks: Iterable[Check], level: str, seed: int = 0) -> Kill:
    """Judge a mutant with the check that its fault names, up to the first failing case.

    Raises ValueError if the implementation is no mutant, or if its fault names an unknown check.
    """
    by_name = {check.name: check for check in checks}
    fault = CATALOGUE.get(type(mutant))
    if fault is None:
        raise ValueError(f"{mutant} is no mutant: no deviation of suite/deviations has its class")
    if fault.killed_by not in by_name:
        raise ValueError(
            f"{mutant} must be killed by {fault.killed_by!r}, which is no check; checks: "
            f"{', '.join(by_name)}"
        )
    statuses: Counter[str] = Counter()
    error = ""
    for cell in by_name[fault.killed_by].cells(level, [mutant], seed):
        verdict = judge(cell)
        if verdict.status == "fail":
            return Kill(fault, cell.case.id, verdict.kind, verdict.message)
        statuses[verdict.status] += 1
        if verdict.status in ("error", "crash"):
            error = f"; {verdict.message}"
    counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
    return Kill(fault, "", "", (counts or "no cases") + error)


def format_table(kills: Sequence[Kill]) -> str:
    """Returns the kill table in plain text. Three parts: a line per mutant, survivors last; a line per
    family of faults, with the checks that kill its mutants; a line per check, with the number of mutants
    that it kills."""
    mutants = Counter(k.fault.killed_by for k in kills)
    killed = Counter(k.fault.killed_by for k in kills if k.killed)
    lines: list[str] = []
    for header, are_killed in (
        (["mutant", "killed by", "kind", "first failing case", "fault"], True),
        (["survivor", "must be killed by", "", "statuses", "fault"], False),
    ):
        rows = [
            [k.fault.name, k.fault.killed_by, k.kind, k.case or k.message, k.fault.sentence]
            for k in kills if k.killed == are_killed
        ]  # fmt: skip
        lines += [*aligned([header, *rows], [False] * len(header)), ""] if rows else []
    lines += [*_by_family(kills), ""]
    counts = [[name, f"{killed[name]} of {number}"] for name, number in mutants.most_common()]
    lines += aligned([["check", "killed"], *counts], [False, True])
    share = f" ({killed.total() / len(kills):.1%})" if kills else ""
    return "\n".join([*lines, "", f"{killed.total()} of {len(kills)} mutants killed{share}"])


def _by_family(kills: Sequence[Kill]) -> list[str]:
    """Returns one line per family: how many of its mutants are killed, and by which checks."""
    rows = []
    for family in FAMILIES:
        kills_of_family = [kill for kill in kills if kill.fault.family == family]
        checks = Counter(kill.fault.killed_by for kill in kills_of_family if kill.killed)
        checks_text = ", ".join(f"{name} {number}" for name, number in checks.most_common())
        if kills_of_family:
            killed = f"{checks.total()} of {len(kills_of_family)}"
            rows.append([family, FAMILIES[family], killed, checks_text])
    return aligned(
        [["family", "what is wrong", "killed", "by"], *rows], [False, False, True, False]
    )
