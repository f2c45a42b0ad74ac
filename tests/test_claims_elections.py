"""A person's own function: answers that nobody gives fail, each alone or together; what its bits and its
standing in for the framework's own attention are held to."""

from __future__ import annotations

import pytest

from attention_conformance.backends.registry import UsageError
from tests.test_claims import judged, plan, wrong


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("flag_ignored", "mask_beside_flag", "the causal flag is silently ignored"),
        ("mask_ignored", "mask_beside_flag", "the boolean mask is silently ignored"),
        ("rows_of_two_kinds", "forms_of_empty_rows", "fully-masked-row is zeros, minus-inf-row is"),
        ("nan_gradients", "gradient_of_finite_rows", "a finite fully masked row has NaN gradients"),
        ("other_dtype", "one_answer_in_all_dtypes", "is zeros in bf16 and nan in"),
    ],
)
def test_what_nobody_elects_fails(name: str, check: str, message: str) -> None:
    failures = wrong(judged(plan(name, "faulty.py"), check))
    assert any(message in text and "--elect" in text for text in failures), failures


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("empty_is_42", "election", "fully masked rows are neither zeros, nor NaN"),
        (
            "lse_of_empty_is_zero",
            "lse_of_empty_rows",
            "lse-of-empty-row is zero, fully-masked-row is",
        ),
    ],
)
def test_an_answer_that_nobody_gives_fails(name: str, check: str, message: str) -> None:
    failures = wrong(judged(plan(name, "faulty.py", dtype=("f32",)), check))
    assert any(message in text for text in failures), failures


def test_a_penalty_that_hides_nothing_in_empty_rows_is_an_answer() -> None:
    verdicts = judged(plan("penalised_lightly", "faulty.py", dtype=("f32",)), "election")
    assert not wrong(verdicts)
    observed = {cell.case.id: verdict.measured.observed for cell, verdict in verdicts}
    assert observed["elect/fully-masked-row/f32"] == "unmasked"
    assert observed["elect/fully-masked-row-gradient/f32"] == "scores"


def test_a_drop_in_is_free_where_frameworks_answer_by_accident() -> None:
    of = plan("healthy_stand_in", "faulty.py", dtype=("f32", "bf16"), drop_in=True)
    verdicts = judged(of, "election")
    assert not wrong(verdicts)
    answers = {cell.case.id: verdict.measured for cell, verdict in verdicts}
    leak = answers["elect/nan-in-masked-value/f32"]
    assert (leak.observed, leak.native) == ("blocked", "leaks")


def test_bits_that_vary_are_claimed() -> None:
    bits = ("contract", "stateless", "invariant_rerun")
    failing = judged(plan("varying", "faulty.py", dtype=("f32",)), *bits)
    assert "not-deterministic" in {verdict.kind for _, verdict in failing}
    claimed = plan("varying", "faulty.py", dtype=("f32",), claim=("deterministic=False",))
    assert not wrong(judged(claimed, *bits))


def test_bits_that_are_promised_are_held() -> None:
    plain = plan("order_of_sums_by_batch", "faulty.py", dtype=("f32",))
    assert not wrong(judged(plain, "invariant_batch", "invariant_rerun"))
    claim = ("bitwise=batch,rows",)
    held = plan("order_of_sums_by_batch", "faulty.py", dtype=("f32",), claim=claim)
    (failing,) = wrong(judged(held, "invariant_batch", "invariant_rerun"))
    assert "alone and in a batch of 3, promised bit by bit: element" in failing


def test_bits_that_are_promised_beside_padding_are_held() -> None:
    claim = ("bitwise=padding",)
    held = plan("order_of_sums_by_place", "faulty.py", dtype=("f32",), claim=claim)
    ((_, verdict),) = judged(held, "invariant_padding")
    assert (verdict.status, verdict.measured.observed) == ("pass", "bitwise")
    plain = plan("order_of_sums_by_padding", "faulty.py", dtype=("f32",))
    assert not wrong(judged(plain, "invariant_padding"))
    held = plan("order_of_sums_by_padding", "faulty.py", dtype=("f32",), claim=claim)
    (failing,) = wrong(judged(held, "invariant_padding"))
    assert "22 keys padded to 28 and padded to 34, promised bit by bit: element" in failing


def test_an_unknown_promise_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown invariance 'size'; valid: rerun, batch"):
        plan("order_of_sums_by_batch", "faulty.py", claim=("bitwise=size",))
