"""Statuses: every miniature ends where it must, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import CHECKS, Check
from attention_conformance.suite.judge.judge import Policy, judge
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable, Verdict
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.test_malformed import test_bad_problem as bad_problem
from attention_conformance.suite.test_values import test_values as values
from tests import miniatures

PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"
MASKED = "sdpa/causal/mha/f32/b2h3q5k7d8"


def judged(
    kind: type[miniatures.Miniature], check: Callable[[Cell], None], case: str, audit: bool = False
) -> Verdict:
    implementation = miniatures.Miniatures("cpu", kind).implementations()[0]
    return judge(Cell(CHECKS[check], find(case), implementation), Policy(audit))


@pytest.mark.parametrize(
    ("kind", "check", "case", "status", "reason"),
    [
        (miniatures.Miniature, values, PLAIN, "pass", ""),
        (miniatures.AlwaysWrong, values, PLAIN, "fail", "value"),
        (miniatures.WrongDevice, values, PLAIN, "fail", "device"),
        (miniatures.ClaimsTooMuch, values, PLAIN, "pass", ""),
        (miniatures.ClaimsTooMuch, values, MASKED, "fail", "raised"),
        (miniatures.ClaimsTooLittle, values, MASKED, "unsupported", ""),
        (miniatures.BrokenAdapter, values, PLAIN, "error", "harness"),
        (miniatures.Miniature, bad_problem, "bad/batch-differs/f32", "pass", ""),
    ],
)
def test_miniatures_end_in_the_right_status(
    kind: type[miniatures.Miniature],
    check: Callable[[Cell], None],
    case: str,
    status: str,
    reason: str,
) -> None:
    verdict = judged(kind, check, case)
    assert (verdict.status, verdict.kind) == (status, reason), verdict.message
    assert (verdict.message == "") == (status == "pass")


def test_an_audit_finds_stale_claims_and_leaves_true_ones() -> None:
    stale = judged(miniatures.ClaimsTooLittle, values, MASKED, audit=True)
    assert (stale.status, stale.kind) == ("fail", "stale-claim")

    class RefusesMasksRightly(miniatures.ClaimsTooMuch, miniatures.ClaimsTooLittle):
        pass

    assert judged(RefusesMasksRightly, values, MASKED, audit=True).status == "unsupported"


def test_a_failure_names_element_and_figures() -> None:
    verdict = judged(miniatures.AlwaysWrong, values, PLAIN)
    for word in ("element (b=", "got 42", "want", "bound", "ratio", "240 of 240"):
        assert word in verdict.message
    assert verdict.measured.error_ratio is not None
    assert verdict.measured.error_ratio > 1e4
    assert verdict.measured.grade == "none"


def test_a_check_that_breaks_is_an_error() -> None:
    def breaks(cell: Cell) -> None:
        raise ZeroDivisionError("check bug")

    def ill_posed(cell: Cell) -> None:
        raise HarnessError("the oracle is NaN")

    implementation = miniatures.Miniatures("cpu", miniatures.Miniature).implementations()[0]
    for function in (breaks, ill_posed):
        check = Check("x", function, lambda level: ())
        verdict = judge(Cell(check, find(PLAIN), implementation))
        assert (verdict.status, verdict.kind) == ("error", "harness")
        assert "test_statuses.py" in verdict.message


def test_what_a_variation_lacks_is_unsupported() -> None:
    class NoBias(miniatures.Miniature):
        declared = miniatures.Miniature.declared.refusing({"bias": "has no bias"})

    def varies(cell: Cell) -> None:
        cell.prepare(cell.inputs.replace(bias=np.zeros((5, 7))))

    def elects_otherwise(cell: Cell) -> None:
        raise NotApplicable("elects otherwise")

    implementation = miniatures.Miniatures("cpu", NoBias).implementations()[0]
    for function, reason in ((varies, "has no bias"), (elects_otherwise, "elects otherwise")):
        check = Check("x", function, lambda level: ())
        verdict = judge(Cell(check, find(PLAIN), implementation))
        assert (verdict.status, verdict.message) == ("unsupported", reason)
