"""Claimed limits: cases beyond them are asked within them, so that a limited kernel is asked most
questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.run.suggestions import suggestion, suggestions
from attention_conformance.suite.spec.case import Case, parse_sizes
from attention_conformance.suite.spec.vocabulary import REFUSED
from tests.rows import cell
from tests.runtimes import user_function, verdict_of
from tests.test_claims import CLAIMED, judged, plan, wrong

SIZES = ("head_sizes=64,128", "lengths_multiple_of=16")


@pytest.mark.parametrize(
    ("limits", "sizes", "expected"),
    [
        (Limits(lengths_multiple_of=(16,)), "b2h3q5k7d8", "b2h3q16k32d8"),
        (Limits(lengths_multiple_of=(16,)), "b2h3q0k5d8", "b2h3q0k16d8"),
        (Limits(lengths_multiple_of=(16,)), "b2h3q5k0d8", "b2h3q16k0d8"),
        (Limits(lengths_multiple_of=(16, 1)), "b2h3q1k1d8", "b2h3q16k1d8"),
        (Limits(lengths_multiple_of=(64, 16)), "b2h3q5k7d8", "b2h3q64k80d8"),
        (Limits(lengths_multiple_of=(1, 16)), "b2h3q5k7d8", "b2h3q5k16d8"),
        (Limits(lengths_multiple_of=(1, 16), queries=1), "b2h3q9k7d8", "b2h3q1k16d8"),
        (Limits(lengths_multiple_of=(4, 6), equal_lengths=True), "b2h3q5k7d8", "b2h3q12k12d8"),
        (Limits(lengths_multiple_of=(16,), max_length=40), "b2h3q5k99d8", "b2h3q16k32d8"),
        (Limits(head_sizes=(64, 128)), "b2h3q5k7d8", "b2h3q5k7d64"),
        (Limits(head_sizes=(64, 128)), "b2h3q5k7d64v16", "b2h3q5k7d64v128"),
        (Limits(head_sizes=(64,)), "b2h3q5k7d8v12", "b2h3q5k7d64"),
    ],
)
def test_the_nearest_sizes_lie_within_the_limits(limits: Limits, sizes: str, expected: str) -> None:
    fitted = limits.fitted(parse_sizes("mha", sizes))
    assert fitted.token == expected
    assert limits.refusal(fitted) is None
    assert limits.fitted(fitted) == fitted


def asked(function: Implementation, level: str) -> int:
    """The number of cells that the function is asked."""
    cells = (cell for check in all_checks().values() for cell in check.cells(level, [function]))
    return sum(cell.check.unsupported(function, cell.case) is None for cell in cells)


@pytest.mark.parametrize(
    ("backend", "function"), [("torch", "limited.py:flash"), ("jax", "of_jax.py:flash")]
)
def test_a_limited_kernel_is_asked_most_questions(backend: str, function: str) -> None:
    pytest.importorskip(backend)
    path = f"{CLAIMED / function}"
    within = {"head_sizes": (64, 128), "lengths_multiple_of": 16}
    free, limited = (user_function(path, "", backend, **claims) for claims in ({}, within))
    for level in ("smoke", "standard"):
        assert asked(limited, level) > 0.95 * asked(free, level)


def test_a_limited_kernel_is_right_within_its_limits() -> None:
    verdicts = judged(
        plan("flash", "limited.py", claim=SIZES, dtype=("f32",)),
        "values", "gradients", "election", "contract", "hidden", "long_rows", "layouts",
    )  # fmt: skip
    assert not wrong(verdicts)
    cells = [cell.case for cell, verdict in verdicts if verdict.status == "pass"]
    sizes = [case.sizes for case in cells if isinstance(case, Case)]
    assert len(sizes) > 60
    assert {s.D for s in sizes} == {64, 128}
    assert not any(s.Lq % 16 or s.Lk % 16 for s in sizes)
    assert {s.Lq < s.Lk for s in sizes} == {s.Lq > s.Lk for s in sizes} == {True, False}


@pytest.mark.parametrize(
    ("name", "claim", "checks"),
    [
        ("contiguous", "contiguous", ("values", "layouts", "fused_operands", "inner_layouts")),
        ("forward", "forward_only", ("gradients", "election", "gradient_passes")),
    ],
)
def test_a_claim_takes_away_what_the_function_lacks(
    name: str, claim: str, checks: tuple[str, ...]
) -> None:
    options = {"dtype": ("f32",)}
    assert wrong(judged(plan(name, "limited.py", **options), *checks))
    verdicts = judged(plan(name, "limited.py", claim=(claim,), **options), *checks)
    assert not wrong(verdicts)
    reasons = {verdict.message for _, verdict in verdicts if verdict.status == "unsupported"}
    assert f"claims {claim}" in reasons


@pytest.mark.parametrize(
    ("backend", "function", "status", "message"),
    [
        ("torch", "limited.py:breaks_in_backward", "fail", "illegal memory access"),
        ("jax", "of_jax.py:whole_in_pallas", "unsupported", "Linearization failed"),
        ("jax", "of_jax.py:row_in_pallas", "unsupported", "the kernel has no jax.custom_vjp"),
        ("jax", "of_jax.py:in_a_callback", "unsupported", "Pure callbacks do not support JVP"),
    ],
)
def test_an_operation_without_a_derivative_is_asked_for_answers_alone(
    backend: str, function: str, status: str, message: str
) -> None:
    pytest.importorskip(backend)
    implementation = user_function(f"{CLAIMED / function}", "", backend)
    case = "sdpa/none/mha/f32/b2h3q5k7d8"
    assert verdict_of(implementation, case).status == "pass"
    for check in ("gradients", "gradient_passes"):
        verdict = verdict_of(implementation, case, check)
        assert verdict.status == status, verdict.message
        assert message in verdict.message
        assert verdict.kind != REFUSED


PLAIN = "sdpa/none/mha/f32/b2h4q5k7d8"


@pytest.mark.parametrize(
    ("message", "case", "claim"),
    [
        ("lengths must be a multiple of 16, got 5", PLAIN, "lengths_multiple_of=16"),
        ("keys come in multiples of 16", "sdpa/none/mha/f32/b2h4q16k7d8", "lengths_multiple_of=16"),
        ("head size must be 64 or 128, got 8", PLAIN, "head_sizes=64,128"),
        ("sequences of at most 4 tokens", PLAIN, "max_length=4"),
        ("query and key must have the same length", PLAIN, "equal_lengths"),
        ("heads of query and key must match", "sdpa/none/gqa2/f32/b2h4q5k5d8", "equal_heads"),
        ("only float16 and bfloat16", PLAIN, "dtypes=bf16,f16"),
        ("a multiple of 16", "sdpa/none/mha/f32/b2h4q16k32d8", ""),
        ("head size must be a multiple of 16", PLAIN, ""),
        ("the size of tensor a (7) must be at dimension 3", PLAIN, ""),
        ("illegal memory access", PLAIN, ""),
    ],
)
def test_an_error_that_names_a_limit_suggests_a_claim(message: str, case: str, claim: str) -> None:
    said = suggestion(f"ValueError: {message}", Case.parse(case))
    assert said == (f"; claim {claim}?" if claim else "")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("ModuleNotFoundError(\"No module named 'triton'\")", True),
        ("RuntimeError('0 active drivers ([]). There should only be one.')", True),
        ("RuntimeError('no GPU')", False),
        ("RuntimeError(f'no GPU for {__file__}')", False),
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_a_kernel_that_needs_triton_is_told_its_backend(
    tmp_path: Path, error: str, hint: bool, within: bool
) -> None:
    """At the import of its file, and in its first call. The name of a folder says nothing."""
    pytest.importorskip("torch")
    path = tmp_path / "triton" / "kernel.py"
    path.parent.mkdir()
    called = f"def flash(query, key, value):\n    raise {error}\n"
    path.write_text(called if within else f"raise {error}\n{called}")
    with pytest.raises(UsageError) as said:
        Plan.make(Options(("torch",), function=(f"{path}:flash",)))
    assert ("; --backend=triton runs Triton kernels on a CPU" in str(said.value)) == hint


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (("head_sizes=64,128",), ["lengths_multiple_of=16"]),
        (("lengths_multiple_of=16",), ["head_sizes=64,128"]),
        (SIZES, []),
    ],
)
def test_a_run_suggests_a_claim_once(claims: tuple[str, ...], expected: list[str]) -> None:
    verdicts = judged(plan("flash", "limited.py", claim=claims, dtype=("f32",)), "values", "nan")
    texts = suggestions([record(cell, verdict) for cell, verdict in verdicts], ["flash"])
    assert len(texts) == len(expected)
    assert all(f"claim {claim}?" in text for claim, text in zip(expected, texts, strict=True))


def test_an_answer_beyond_a_limit_contradicts_its_error() -> None:
    error = "ValueError: lengths must be a multiple of 16"
    refused = cell(PLAIN, "torch:f", "fail", kind="raised", message=error, operator="sdpa")
    assert len(suggestions([refused], ["f"])) == 1
    assert not suggestions([refused], ["g"])
    for case, count in (("b2h4q16k16d8", 1), ("b2h4q6k6d8", 0)):
        answered = cell(f"sdpa/none/mha/f32/{case}", "torch:f", "pass", operator="sdpa")
        assert len(suggestions([refused, answered], ["f"])) == count
