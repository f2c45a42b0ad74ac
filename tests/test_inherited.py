"""Failures that a person's function inherits from its framework are known; its own faults, in the very
same cells, fail. Numbers of its code that float16 does not hold are named where they can explain a
failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attention_conformance import check_attention
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.run.loading import UserCode
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.spec.catalogue import find
from tests.functions.own_attention import torch_own
from tests.runtimes import needs

FUNCTIONS = Path(__file__).parent / "functions"

NEGATIVE = "sdpa/causal/gqa2/f32/b2h6q17k23d8/scale-0.2"
EMPTY = "sdpa/none/mha/f32/b0h3q5k7d8/bias.qk"
LONG = "sdpa/none/mha/f64/b1h2q33k33d600{}/onehot"

FAILING = (
    ("values", NEGATIVE),
    ("values", NEGATIVE.replace("f32", "bf16")),
    ("values", NEGATIVE.replace("-0.2", "0.0")),
    ("gradients", "sdpa/causal/gqa2/f32/b2h4q11k9d6/scale-0.2"),
    ("gradients", EMPTY),
)
"""The cells of standard that torch's own attention is known to fail."""


def judged(of: Plan, check: str, case: str) -> Any:
    """The record of the one function of a plan."""
    (function,) = of.functions
    cell = Cell(all_checks()[check], find(case), function)
    return record(cell, judge(cell, of.policy(cell)))


def plan(name: str, file: str = "own_attention.py", backend: str = "torch", **more: Any) -> Plan:
    needs(backend)
    return Plan.make(Options((backend,), function=(f"{FUNCTIONS / file}:{name}",), **more))


def of_callable(function: Callable[..., Any]) -> Plan:
    pytest.importorskip("torch")
    return Plan.make(Options(("torch",), function=("mine",)), UserCode({"mine": function}))


@pytest.mark.parametrize("isolate", [False, True])
def test_what_the_frameworks_own_attention_fails_is_known(isolate: bool) -> None:
    of, strict = (plan("torch_own", inherit_known=i, isolate=isolate) for i in ("yes", "no"))
    for check, case in FAILING:
        verdict = judged(of, check, case)
        assert verdict.status == "known", verdict.message
        assert "[torch's own sdpa fails this cell too: finding " in verdict.message
        assert "; not your code: " in verdict.message
        assert judged(strict, check, case).status == "fail"
    assert verdict.inherited == "empty-batch-bias"
    passed = judged(of, "values", "sdpa/causal/mha/f32/b2h4q5k7d8")
    assert (passed.status, passed.inherited) == ("pass", "")


PATCHING = """
import torch
from torch.nn import functional

own = functional.scaled_dot_product_attention
functional.scaled_dot_product_attention = lambda query, *rest, **more: torch.zeros_like(query)


def flash(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return own(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
"""


def test_an_isolated_function_changes_no_native_that_it_inherits_from(tmp_path: Path) -> None:
    """The function is as wrong as the framework's own attention, which it replaces in its process."""
    (tmp_path / "patching.py").write_text(PATCHING)
    of = plan("flash", str(tmp_path / "patching.py"), isolate=True)
    assert judged(of, *FAILING[0]).status == "known"


@pytest.mark.parametrize("change", [{"kind": "value"}, {"message": "got inf"}, {"finding": ""}])
def test_what_no_entry_expects_fails(change: dict[str, str]) -> None:
    of = plan("torch_own")
    manifest = of.loaded[0].manifest
    manifest.entries = [replace(entry, **change) for entry in manifest.entries]
    assert judged(of, *FAILING[0]).status == "fail"


def off_by_half(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Where the framework's own attention gives NaN, finite numbers that are wrong."""

    return torch_own(query, key, value, attn_mask, 0.0, False, scale, enable_gqa) * 1.5


def one_nan(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """NaN, as the framework's own attention gives, in one element alone."""
    import torch

    mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril() if is_causal else None
    out = torch_own(query, key, value, mask, 0.0, False, scale, enable_gqa).clone()
    out[0, 0, 0, 0] = torch.nan if is_causal else out[0, 0, 0, 0]
    return out


@pytest.mark.parametrize(("function", "kind"), [(off_by_half, "value"), (one_nan, "non-finite")])
def test_another_fault_in_the_same_cell_fails(function: Callable[..., Any], kind: str) -> None:
    verdict = judged(of_callable(function), "values", NEGATIVE)
    assert (verdict.status, verdict.kind, verdict.inherited) == ("fail", kind, "")


@pytest.mark.parametrize("scale", ["", "/scale-0.2"])
def test_an_error_of_the_frameworks_own_size_is_known_and_a_larger_one_fails(scale: str) -> None:
    """Keras' attention is right to seven digits in float64, for the scale passes through float32."""
    right, wrong = (
        judged(plan(name, "of_tensorflow.py", "tf"), "precision", LONG.format(scale))
        for name in ("by_softmax", "in_float32")
    )
    assert (right.status, right.inherited) == ("known", "float64-scale"), right.message
    assert (wrong.status, wrong.kind) == ("fail", "value")


def any_rank(query, key, value, attn_mask=None, scale=None):
    scores = query @ key.mT * (key.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return scores.softmax(-1) @ value


def test_a_fault_of_the_suites_own_textbook_code_excuses_nobody() -> None:
    """Textbook code answers a mask of rank 5, and its entry cites no finding."""
    options = Options(("torch",), function=("mine",), drop_in=True)
    pytest.importorskip("torch")
    of = Plan.make(options, UserCode({"mine": any_rank}))
    verdict = judged(of, "bad_problem", "bad/mask-rank-5/f32")
    assert (verdict.status, verdict.kind) == ("fail", "no-raise"), verdict.message
    assert "rank 5" in verdict.message


@pytest.mark.seldom
def test_a_report_counts_what_is_inherited() -> None:
    pytest.importorskip("torch")
    said = "4 known: the framework's own code fails them too (flash-causal-scale 3, empty-batch-bias 1)"
    options: dict[str, Any] = {"level": "standard", "dtypes": ("f32",)}
    report = check_attention(torch_own, **options, checks=["values", "gradients"])
    assert report.passed
    assert f"torch:torch_own: {said}" in str(report)
    strict = check_attention(
        torch_own, **options, checks=["gradients"], inherit_known=False, raises=False
    )
    assert strict.run.totals["known"] == 0
    assert strict.run.totals["fail"] == 2


SAID = "claim dtypes=f32,bf16,f64? float16 ends at 65504, and there the code's -1e9 is -inf: "


@pytest.mark.parametrize(("case", "check", "is_told"), [
    ("elect/fully-masked-row/f16", "one_answer_in_all_dtypes", True),
    ("elect/fully-masked-row/bf16", "one_answer_in_all_dtypes", True),  # nan in float16
    ("elect/minus-inf-row/bf16", "forms_of_empty_rows", False),
])  # fmt: skip
def test_a_failure_that_speaks_of_float16_names_the_number(
    case: str, check: str, is_told: bool
) -> None:
    verdict = judged(plan("penalised", "faulty.py"), check, case)
    assert (verdict.status, verdict.kind) == ("fail", "election")
    assert verdict.message.startswith(SAID) is is_told, verdict.message
