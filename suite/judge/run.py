"""Run one cell, and say what became of it."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from backends.protocol import ENDS
from suite.judge import leaks
from suite.judge.cell import Cell
from suite.judge.verdict import (
    Deviation,
    Measured,
    NotApplicable,
    Refused,
    Verdict,
    first_line,
    text_of,
)
from suite.spec.case import Case
from suite.spec.vocabulary import REFUSED

Limit = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a cell is asked; it may end the cell with `TimeOver`."""


def run(
    cell: Cell,
    audit: bool = False,
    limit: Limit = nullcontext,
) -> Verdict:
    """Judge one cell, which is asked within what `limit` makes.

    Returns `unsupported` without running where the implementation declares so; with `audit` such a
    cell runs as well, and a right answer is the failure "stale-claim". What a backend lacks for all its
    implementations cannot be asked of it, and is not audited.

    Where a program that was compiled for an earlier cell took part in anything but a pass, the verdict
    is that of a second run, with programs of its own. What the first run left behind, or what died in the
    first run, is held against the second, too.
    """
    cell.changed_settings, cell.background_errors = [], []
    start = time.perf_counter()
    implementation = cell.implementation
    implementation.end_of_cell(False)  # of a cell that was broken off
    cell.measured = Measured()
    verdict = _judged(cell, audit, limit)
    if implementation.end_of_cell(verdict.status == "pass") and verdict.status != "pass":
        cell.measured = Measured()
        verdict = _judged(cell, audit, limit)
        implementation.end_of_cell(verdict.status == "pass")
    return replace(verdict, seconds=time.perf_counter() - start)


def _judged(cell: Cell, audit: bool, limit: Limit) -> Verdict:
    """The verdict of one run of the cell; its seconds are left to `run`."""

    cell.audit = audit
    backend = cell.implementation.backend
    try:
        reason = cell.check.unsupported(cell.implementation, cell.case)
    except Exception as error:
        return _broken(cell, error)
    if reason is not None:
        audited = audit and isinstance(cell.case, Case) and reason not in backend.refusals.values()
        if not audited:
            return Verdict("unsupported", "", reason)
    settings = leaks.Settings(backend)
    try:
        with limit():
            verdict = _verdict_of(cell, reason)
    finally:
        cell.changed_settings += settings.restore()
        cell.background_errors += leaks.died()
    return leaks.fail_for_leaks(verdict, cell.changed_settings, cell.background_errors)


def _verdict_of(cell: Cell, reason: str | None) -> Verdict:
    """The verdict of asking the cell; `reason` is why it is declared unsupported, where it is audited."""

    def verdict(status: str, kind: str = "", message: str = "") -> Verdict:
        return Verdict(status, kind, message, replace(cell.measured))

    try:
        # Whether a warning is an error is for the caller's tests, and no property of a kernel.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cell.refuse_what_is_elected()
            cell.check.function(cell)
    except NotApplicable as inapplicable:
        kind = REFUSED if isinstance(inapplicable, Refused) else ""
        return verdict("unsupported", kind, str(inapplicable))
    except Deviation as deviation:
        if reason is not None:
            return verdict("unsupported", "", reason)
        return verdict("fail", deviation.kind, deviation.message)
    except Exception as error:
        if reason is not None:
            return verdict("unsupported", "", reason)
        return _broken(cell, error)
    except ENDS:
        raise
    except BaseException as error:
        # The suite raises none of these: an exit, or what tells a test runner to skip a test.
        return verdict("fail", "raised", first_line(error))
    if reason is not None and cell.measured.error_ratio is None:
        # Nothing was held against the oracle: what is not supported may well be ignored.
        return verdict("unsupported", "", reason)
    if reason is not None:
        return verdict(
            "fail", "stale-claim", f"declared unsupported ({reason}), yet the answer is right"
        )
    return verdict("pass")


def _broken(cell: Cell, error: Exception) -> Verdict:
    """The verdict where the adapter or the suite itself broke."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    message = f"{type(error).__name__}: {text_of(error)} ({where})"
    return Verdict("error", "harness", message, replace(cell.measured))
