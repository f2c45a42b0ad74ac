"""The kill table: which check kills which mutant.

A mutant is an implementation with exactly one fault. It names the check that must kill it, and that
check must end in `fail` on one of its cases: an error or a crash kills nothing, and neither does a
case that is unsupported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.judge.check import Check
from suite.judge.judge import judge

if TYPE_CHECKING:
    from backends.protocol import Backend, Implementation


@dataclass(frozen=True)
class Kill:
    """What became of one mutant.

    `killed_by` is the check named for it, `like` the published bug it is an instance of, if any.
    Where it was killed: the id of the first failing case, the kind and the message. Where it was not:
    the statuses it got instead. `cells` were judged until then. `others` are the other checks that
    kill it; empty where that was not asked.
    """

    mutant: str
    fault: str
    killed_by: str
    like: str
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
    """Judge every mutant of `backend` with the check named for it, until the first failing case.

    With `others` all other checks are tried as well. Raises ValueError where an implementation names
    no fault, or a check that does not exist.
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
    name, fault = getattr(mutant, "killed_by", ""), getattr(mutant, "fault", "")
    if not fault:
        raise ValueError(f"{mutant} is no mutant: it has no attribute `fault`")
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
    like = getattr(mutant, "like", "")
    return Kill(
        mutant.name, fault, name, like, killed, case, kind, message, cells, seconds, tuple(also)
    )


def first_failure(
    mutant: Implementation, check: Check, level: str, seed: int
) -> tuple[bool, str, str, str, int]:
    """Whether a case of the check failed; its id, kind and message; how many cells were judged.

    Where none failed, the message counts the statuses and quotes the last error.
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
    """The kill table in plain text: a line a mutant, survivors last, then how many each check kills."""
    if not kills:
        return "no mutants"
    rows = [(k.mutant, k.killed_by, k.like, k.kind, k.case, k.fault) for k in kills if k.killed]
    header = ("mutant", "killed by", "like", "kind", "first failing case", "fault")
    lines = _columns([header, *rows]) if rows else []
    survivors = [k for k in kills if not k.killed]
    if survivors:
        lines += ["", "survivors"]
        lines += _columns([(k.mutant, k.killed_by, k.like, k.fault, k.message) for k in survivors])
    lines += ["", "checks"]
    named = Counter(k.killed_by for k in kills)
    dead = Counter(k.killed_by for k in kills if k.killed)
    also = Counter(name for k in kills for name in k.others)
    for name in sorted(named | also, key=lambda name: (-named[name], name)):
        besides = f", and {also[name]} others" if also[name] else ""
        lines.append(f"  {name:28} {dead[name]:3} of {named[name]:3}{besides}")
    total, killed, seconds = len(kills), sum(dead.values()), sum(k.seconds for k in kills)
    lines += ["", f"{killed} of {total} mutants killed ({killed / total:.1%}) in {seconds:.1f} s"]
    return "\n".join(lines)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with their columns aligned; the last column is left as long as it is."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
