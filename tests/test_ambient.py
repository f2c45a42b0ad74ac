"""A person's function is asked in every mode that may surround a call; dropout is asked as of torch."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from tests.runtimes import user_function, verdict_of
from tests.test_claims import CLAIMED, judged, plan, wrong


def in_modes(name: str, case: str, check: str = "ambient", **said: Any) -> Verdict:
    """The verdict on a function of `tests/functions/ambient.py` with these claims."""
    implementation = user_function(f"{CLAIMED / 'ambient.py'}:{name}", **said)
    return verdict_of(implementation, Case.parse(case), check)


PADDED = "sdpa/pad/mha/{}/b2h3q17k23d8"
DIFFERENTIATED = "sdpa/causal/mha/{}/b4h4q4k4d4"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("without_gradients", "torch.inference_mode, torch.no_grad:"),
        ("in_autocast", "torch.autocast to bfloat16, torch.autocast to float16:"),
        ("mapped", "vmap:"),
        ("by_default_dtype", "default dtype float64:"),
        ("on_default_device", "default device meta:"),
        ("in_deterministic_algorithms", "deterministic algorithms:"),
        ("in_one_thread", "a second thread, two threads at once:"),
        ("in_one_buffer", "two threads at once:"),
    ],
)
def test_a_function_that_is_wrong_in_a_mode_is_told_which(name: str, mode: str) -> None:
    failures = wrong(judged(plan(name, "ambient.py", dtype=("f32",)), "ambient"))
    # On a CPU with AMX rows of NaN are wrong under autocast to bfloat16, too (finding amx-nan-row).
    wrong_here = re.escape(mode.removesuffix(":"))
    said = re.compile(rf"wrong in {wrong_here}(?:, torch.autocast to bfloat16)?:")
    assert any(map(said.search, failures)), failures


def test_a_function_with_one_workspace_claims_one_thread() -> None:
    case = PADDED.format("f32")
    verdict = in_modes("in_one_buffer", case)
    assert verdict.status == "fail"
    assert verdict.message.endswith("; claim threads=one?")
    verdict = in_modes("in_one_buffer", case, threads="one")
    assert (verdict.status, verdict.message) == ("unsupported", "claims threads=one")
    verdict = in_modes("in_autocast", case, threads="one")
    assert verdict.status == "fail"  # in other modes
    verdict = in_modes("in_one_thread", case)
    assert verdict.status == "fail"
    assert "claim threads" not in verdict.message


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("textbook", "narrow"),
        ("cast_by_hand", "narrow-inside"),
        ("outside_autocast", "unchanged"),
        ("refuses_autocast", "raises"),
    ],
)
def test_what_automatic_mixed_precision_does_is_an_election(name: str, answer: str) -> None:
    path = "of_torch.py" if name == "textbook" else "ambient.py"
    cells = judged(plan(name, path), "election")
    observed = {
        cell.dtype.name: verdict.measured.observed
        for cell, verdict in cells
        if cell.case.id.startswith("elect/autocast/")
    }
    assert observed == {"bf16": answer, "f16": answer}


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("filled_with_a_billion", "autocast=narrow"),
        ("refuses_another_default_dtype", "wider-default-dtype=answers"),
    ],
)
def test_an_error_in_a_mode_is_an_answer_that_may_be_excluded(name: str, promised: str) -> None:
    case = PADDED.format("f32")
    assert in_modes(name, case).status == "pass"
    question, answer = promised.split("=")
    verdict = in_modes(name, case, elections={question: answer})
    assert (verdict.status, verdict.kind) == ("fail", "raised")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_gradients_may_be_rounded_to_both_dtypes_of_autocast(dtype: str) -> None:
    """Gradients of bfloat16 keep no bound of float16."""
    verdict = in_modes("float32_inside", DIFFERENTIATED.format(dtype), "ambient_gradients")
    assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize(
    ("case", "check"), [(PADDED, "ambient"), (DIFFERENTIATED, "ambient_gradients")]
)
def test_a_class_is_not_claimed_of_autocast(case: str, check: str) -> None:
    """Autocast rounds the products of a function that is exact in float32."""
    for name in ("cast_by_hand", "filled_with_a_billion"):
        verdict = in_modes(name, case.format("f32"), check, numerics="exact")
        assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    ("name", "case", "check"),
    [
        ("scaled_in_autocast", PADDED, "ambient"),
        ("scaled_gradient_in_autocast", DIFFERENTIATED, "ambient_gradients"),
    ],
)
def test_what_exceeds_the_bound_of_both_dtypes_fails(
    name: str, case: str, check: str, dtype: str
) -> None:
    """An error just beyond the bound of an element, or beyond the limit of the root mean square."""
    verdict = in_modes(name, case.format(dtype), check)
    assert "wrong in torch.autocast to bfloat16, torch.autocast to float16" in verdict.message
    ratios = re.findall(r"ratio ([\d.]+)", verdict.message)
    assert all(1 < float(ratio) < 2 for ratio in ratios)
