"""The kill table: which check kills which mutant.

A mutant is an implementation with exactly one fault. The mutant names the check that must kill it: the
check must end in `fail` on one of its cases. Errors, crashes and unsupported cells kill nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.faults.fault import FAULTS, Fault
from suite.judge.check import Check
from suite.judge.judge import judge

if TYPE_CHECKING:
    from backends.protocol import Backend, Implementation


@dataclass(frozen=True)
class Kill:
    """The outcome of one mutant.

    - `killed`: `case`, `kind` and `message` of the first failing cell; for a survivor the message counts
      its statuses
    - `cells`: the number of cells that were judged until then
    - `others`: the other checks that kill the mutant; empty if they were not asked
    """

    fault: Fault
    killed: bool
    case: str
    kind: str
    message: str
    cells: int
    seconds: float
    others: tuple[str, ...] = ()


def kill_table(
    backend: Backend,
    checks: Sequence[Check],
    level: str = "standard",
    seed: int = 0,
    others: bool = False,
) -> list[Kill]:
    """Judge every mutant of `backend` with the check that it names, until the first failing case.

    With `others` all other checks are tried, too. Raises ValueError if an implementation names no fault,
    or an unknown check.
    """
    return [kill(mutant, checks, level, seed, others) for mutant in backend.implementations()]


def kill(
    mutant: Implementation,
    checks: Iterable[Check],
    level: str = "standard",
    seed: int = 0,
    others: bool = False,
) -> Kill:
    """Judge one mutant (see `kill_table`)."""
    by_name = {check.name: check for check in checks}
    fault = FAULTS.get(type(mutant))
    if fault is None:
        raise ValueError(f"{mutant} is no mutant: its class is not marked with `@fault`")
    name = fault.killed_by
    if name not in by_name:
        raise ValueError(
            f"{mutant} must be killed by {name!r}, which is no check; checks: {', '.join(by_name)}"
        )
    start = time.perf_counter()
    killed, case, kind, message, cells = first_failure(mutant, by_name[name], level, seed)
    seconds = time.perf_counter() - start
    also = [
        other.name
        for other in by_name.values()
        if others and other.name != name and first_failure(mutant, other, level, seed)[0]
    ]
    return Kill(fault, killed, case, kind, message, cells, seconds, tuple(also))


def first_failure(
    mutant: Implementation, check: Check, level: str, seed: int
) -> tuple[bool, str, str, str, int]:
    """True if a case of the check failed, with its id, kind and message; and the number of cells judged.

    If no case failed, the message counts the statuses and quotes the last error.
    """
    statuses: Counter[str] = Counter()
    error = ""
    for cell in check.cells(level, [mutant], seed):
        verdict = judge(cell)
        statuses[verdict.status] += 1
        if verdict.status == "fail":
            return True, cell.case.id, verdict.kind, verdict.message, statuses.total()
        if verdict.status in ("error", "crash"):
            error = f"; {verdict.message}"
    counted = ", ".join(f"{number} {status}" for status, number in statuses.items())
    return False, "", "", (counted or "no cases") + error, statuses.total()


def format_table(kills: Sequence[Kill]) -> str:
    """The kill table in plain text: one line per mutant, survivors last, then the count of each check."""
    if not kills:
        return "no mutants"
    rows = [
        (k.fault.name, k.fault.killed_by, k.fault.like, k.kind, k.case, k.fault.sentence)
        for k in kills
        if k.killed
    ]
    header = ("mutant", "killed by", "like", "kind", "first failing case", "fault")
    lines = _columns([header, *rows]) if rows else []
    survivors = [k for k in kills if not k.killed]
    if survivors:
        lines += ["", "survivors"]
        lines += _columns(
            [
                (k.fault.name, k.fault.killed_by, k.fault.like, k.fault.sentence, k.message)
                for k in survivors
            ]
        )
    lines += ["", "checks"]
    named = Counter(k.fault.killed_by for k in kills)
    dead = Counter(k.fault.killed_by for k in kills if k.killed)
    also = Counter(name for k in kills for name in k.others)
    for name in sorted(named | also, key=lambda name: (-named[name], name)):
        besides = f", and {also[name]} others" if also[name] else ""
        lines.append(f"  {name:28} {dead[name]:3} of {named[name]:3}{besides}")
    total, killed, seconds = len(kills), sum(dead.values()), sum(k.seconds for k in kills)
    lines += ["", f"{killed} of {total} mutants killed ({killed / total:.1%}) in {seconds:.1f} s"]
    return "\n".join(lines)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with aligned columns; the last column is not padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
