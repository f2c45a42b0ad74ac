"""The judge: one function gives the verdict of a cell to pytest, to other programs and to the kill
table."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from attention_conformance.backends.protocol import ENDS, TimeOver
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.verdict import (
    Measured,
    NotApplicable,
    Refused,
    Verdict,
    WrongAnswer,
    first_line,
    text_of,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.vocabulary import BROKEN, OF_CALLS, REFUSED

Limit = Callable[[], AbstractContextManager[None]]
"""Makes the context in which an implementation is called; the context may raise TimeOver."""

Step = Callable[[Cell, Verdict], Verdict]
"""Takes a cell and its verdict; returns the verdict or another one in its place."""


@dataclass(frozen=True)
class Policy:
    """Settings of the judgement of cells.

    `audit`: cells that are declared unsupported run, too. `limit`: the time limit. `steps`: functions
    that may replace a verdict, in their order; see `suite.run.steps`.
    """

    audit: bool = False
    limit: Limit = nullcontext
    steps: tuple[Step, ...] = ()


def judge(cell: Cell, policy: Policy = Policy()) -> Verdict:
    """Judges a cell, and returns its verdict.

    1. The declaration: a cell that the implementation declares unsupported is not run. An audited cell
       runs, and a right answer is the failure "stale-claim". Features that the backend lacks for all its
       implementations are not audited.
    2. The check: the implementation is called within the time limit. Beyond the limit the verdict is the
       crash "timeout".
    3. Leaks: a changed setting, a dead thread or a destructor that raised fails the cell.
    4. The steps of the policy replace the verdict, one after another.
    5. Second run: if programs were compiled with few optimisations and the verdict fails a run, 1 to 4
       are repeated with all optimisations. Leaks of both runs count. Kinds of failures that no compiler
       causes (`OF_CALLS`) are final. Of a user function only a pass and a lacking feature are final.
       Cells of `Cell.asks_optimized` have all optimisations in the first run."""
    optimized = cell.implementation.optimized
    full_cell = cell if optimized is None else Cell(cell.check, cell.case, optimized, cell.seed)
    first_cell = full_cell if cell.asks_optimized else cell
    verdict = _timed_verdict(first_cell, policy)
    if first_cell is full_cell or _is_final(cell, verdict):
        return verdict
    second = leaks.fail_for_leaks(
        _timed_verdict(full_cell, policy), first_cell.changed_settings, first_cell.background_errors
    )
    return replace(second, seconds=verdict.seconds + second.seconds)


def _is_final(cell: Cell, verdict: Verdict) -> bool:
    """True if the verdict of a run with few optimisations needs no second run."""
    if cell.implementation.declared.is_user_code:
        return (verdict.status, verdict.kind) in (("pass", ""), ("unsupported", ""))
    return verdict.status not in BROKEN or verdict.kind in OF_CALLS


def _timed_verdict(cell: Cell, policy: Policy) -> Verdict:
    """Returns the verdict of points 1 to 4 of `judge`, with its seconds. Sets the cell's
    `changed_settings` and `background_errors`."""
    start = time.perf_counter()
    cell.changed_settings, cell.background_errors = [], []
    cell.implementation.begin_cell()
    try:
        verdict = _guarded_verdict(cell, policy)
    except TimeOver as error:
        verdict = Verdict("crash", error.kind, str(error))
    cell.release()
    verdict = replace(verdict, seconds=time.perf_counter() - start)
    for step in policy.steps:
        verdict = step(cell, verdict)
    return verdict


def _guarded_verdict(cell: Cell, policy: Policy) -> Verdict:
    """Returns the verdict of points 1 to 3 of `judge`. Raises TimeOver beyond the time limit."""
    cell.measured = Measured()
    backend = cell.implementation.backend
    try:
        reason = cell.check.unsupported(cell.implementation, cell.case)
    except Exception as error:
        return _harness_verdict(cell, error)
    if reason is not None:
        backend_lacks = not isinstance(cell.case, Case) or reason in backend.refusals.values()
        if backend_lacks or not policy.audit:
            return Verdict("unsupported", "", reason)
    with leaks.without_warnings(), policy.limit():
        settings = leaks.Settings(backend)
        try:
            verdict = _check_verdict(cell)
            verdict = verdict if reason is None else _audit_verdict(verdict, reason)
        finally:
            cell.changed_settings += settings.restore()
            cell.background_errors += leaks.background_errors()
    return leaks.fail_for_leaks(verdict, cell.changed_settings, cell.background_errors)


def _check_verdict(cell: Cell) -> Verdict:
    """Runs the check, and returns its verdict: point 2 of `judge`."""

    def verdict(status: str, kind: str = "", message: str = "") -> Verdict:
        return Verdict(status, kind, message, replace(cell.measured))

    try:
        cell.require_elected_answer()
        cell.check.function(cell)
    except NotApplicable as inapplicable:
        kind = REFUSED if isinstance(inapplicable, Refused) else ""
        return verdict("unsupported", kind, str(inapplicable))
    except WrongAnswer as deviation:
        return replace(
            verdict("fail", deviation.kind, deviation.message), where=_failed_lines(deviation),
            what=deviation.what, advice=deviation.advice,
        )  # fmt: skip
    except Exception as error:
        return _harness_verdict(cell, error)
    except ENDS:
        raise
    except BaseException as error:
        # The suite raises none of these: an exit, or the exception that skips a test.
        return verdict("fail", "raised", first_line(error))
    return verdict("pass")


def _failed_lines(error: WrongAnswer) -> tuple[str, ...]:
    """Returns the lines of the check ("file:line") through which a deviation was raised, and the
    deviation's `where`."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = (f"{f.filename}:{f.lineno}" for f in frames if "/suite/test_" in f.filename)
    return (*lines, *error.where)


def _audit_verdict(verdict: Verdict, reason: str) -> Verdict:
    """Returns the verdict of an audited cell, from the verdict of its check: the failure "stale-claim"
    for a right answer, else "unsupported" with the declared `reason`."""
    measured = verdict.measured
    if verdict.status == "unsupported":
        return verdict
    if verdict.status != "pass" or measured.error_ratio is None:
        # Without a comparison with the oracle, the unsupported feature may have been ignored.
        return Verdict("unsupported", "", reason, measured)
    message = f"declared unsupported ({reason}), yet the answer is right"
    return Verdict("fail", "stale-claim", message, measured)


def _harness_verdict(cell: Cell, error: Exception) -> Verdict:
    """Returns the verdict "error" for an exception of the adapter or the suite itself."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    message = f"{type(error).__name__}: {text_of(error)} ({where})"
    return Verdict("error", "harness", message, replace(cell.measured))
