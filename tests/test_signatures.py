"""Functions as people have them are judged as they are: right ones are green, wrong twins are red."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import UsageError, check_attention
from attention_conformance.backends.registry import load as load_backend
from attention_conformance.backends.registry import load_function
from attention_conformance.backends.user.names import KNOWN, OPERAND_NAMES
from attention_conformance.judging import cells_of, plan_of
from attention_conformance.report import Report
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.measure.call import TimedCall
from attention_conformance.suite.measure.protocol import RefusedTime
from attention_conformance.suite.measure.worker import load_implementations
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec import claims
from attention_conformance.suite.spec.binding import AXES
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.claims import MASKS
from tests import runtimes
from tests.signatures.rows import ROWS, Row

CHECKS = ("values", "gradients", "paths", "contract", "mask_layouts")


def asked(
    row: Row, path: Path, claims: tuple[str, ...]
) -> tuple[Any, tuple[str, ...], dict[str, str]]:
    """A function, the checks of a small part of smoke, and what is claimed."""
    runtimes.needs(row.backend)
    function = load_function(load_backend(row.backend), f"{path}:{row.name}", {})
    said = {"dtypes": "f32,f16"} | dict(claim.split("=") for claim in claims)
    if row.backend != "torch":  # programs are compiled for every shape
        return function, CHECKS[:1], said | {"dtypes": "f32"}
    return function, CHECKS, said


def judged(row: Row, path: Path, claims: tuple[str, ...]) -> Report:
    """The report about a function."""
    function, checks, said = asked(row, path, claims)
    return check_attention(
        function, row.backend, name=row.name, checks=checks, raises=False, **said
    )


def fails(row: Row, path: Path, claims: tuple[str, ...]) -> bool:
    """True if a cell of a function fails. No other cell is judged after it, and nothing is diagnosed."""
    function, checks, said = asked(row, path, claims)
    plan = plan_of(function, row.backend, name=row.name, **said)
    return any(judge(cell, plan.policy(cell)).status == "fail" for cell in cells_of(plan, checks))


def marks(row: Row) -> tuple[pytest.MarkDecorator, ...]:
    """Programs of JAX are compiled for every shape."""
    return (pytest.mark.seldom,) if row.backend == "jax" else ()


@pytest.mark.parametrize("row", [pytest.param(row, id=str(row), marks=marks(row)) for row in ROWS])
def test_a_right_function_is_green(row: Row, tmp_path: Path) -> None:
    report = judged(row, row.written(tmp_path), row.claims)
    assert report.passed, str(report)
    said = [note for note in report.notes if "binding: " in note]
    assert len(said) == bool(row.binding)
    for part in row.binding.split(", ") if said else ():
        assert part in said[0]


TWINS = [
    pytest.param(row, twin, id=f"{row}-{number}", marks=marks(row))
    for row in ROWS
    for number, twin in enumerate(row.twins)
]


@pytest.mark.parametrize(("row", "twin"), TWINS)
def test_a_wrong_twin_is_red(row: Row, twin: tuple[str, str], tmp_path: Path) -> None:
    path = row.written(tmp_path, twin)
    try:
        assert fails(row, path, row.claims)
    except UsageError as error:
        assert "it returned an array of shape" in str(error)  # noqa: PT017


@pytest.mark.parametrize("row", [row for row in ROWS if row.advice], ids=str)
def test_what_needs_a_claim_is_told_so_first(row: Row, tmp_path: Path) -> None:
    report = judged(row, row.written(tmp_path), ())
    assert not report.passed
    first = report.diagnoses.iloc[0].sentence
    assert row.advice in first
    assert f"claim {row.claims[0]}" in first


def timed(row: Row, path: Path) -> float:
    """The error ratio of the timed answers of a function. Raises RefusedTime if they are wrong."""
    asked = Options(("torch",), function=(f"{path}:{row.name}",), claim=row.claims)
    _, every, own = load_implementations("torch", asked)
    case = Case.parse("sdpa/none/mha/f32/b1h1q256k256d64")
    call = TimedCall(every[row.name], case, own=own[row.name])
    call.prepare()
    return call.judge() or 0.0


TIMED = ("with_dropout", "instance", "flash", "single_prefill", "DotProductAttention")


@pytest.mark.clock
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in TIMED], ids=str)
def test_a_benchmark_binds_a_function_as_a_run_does(row: Row, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert 0 < timed(row, row.written(tmp_path)) < 1
    if row.name in ("with_dropout", "instance"):  # the twin is wrong without a mask, too
        with pytest.raises(RefusedTime, match="beyond their bound"):
            timed(row, row.written(tmp_path, row.twins[0]))


LSE = "Of what is returned only the lse is wrong. All of lse is {} (natural logarithms)."
SCALE = "The scale is 0.361, expected 0.354 = 1/sqrt(D)."
HIDES = (
    "The parameter 'mask' takes booleans wrong, and is right if True hides a key. "
    "If it shall, claim masks=hides."
)
WEIGHTS = "Of what is returned only the weights are wrong, by up to 0.64."
LARGER = LSE.format("1.01 times the right one")
TOLD = (
    ("with_dropout", "value), weights", "value), weights * 0", (WEIGHTS,)),
    ("flash", "q, k) * scale", "q, k) * scale * 1.02", (SCALE,)),
    ("single_prefill", "k.mT) * scale", "k.mT) * scale * 1.02", (SCALE,)),
    ("single_prefill", "(math.e)", "(math.e) * 1.01", (LARGER,)),
    ("sage", "wide.logsumexp(-1)", "wide.logsumexp(-1) * 1.01", (LARGER,)),
    ("sage", "wide.logsumexp(-1)", "wide.logsumexp(-1) + 1", (LSE.format("the right one plus 1"),)),
    ("ScaledDotProductAttention", "mask == 0", "mask != 0", (HIDES,)),
)


@pytest.mark.parametrize(("name", "right", "wrong", "sentences"), TOLD)
def test_what_is_told_is_what_is_wrong(
    name: str, right: str, wrong: str, sentences: tuple[str, ...], tmp_path: Path
) -> None:
    row = next(row for row in ROWS if row.name == name)
    function, _, _ = asked(row, row.written(tmp_path, (right, wrong)), ())
    checks = ("values", "paths")
    report = check_attention(function, name=name, checks=checks, dtypes="f32", raises=False)
    assert (*report.diagnoses.sentence,) == sentences


def test_claims_that_are_needed_together_are_suggested_in_one_line(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.name == "ScaledDotProductAttention")
    (line,) = (note for note in judged(row, row.written(tmp_path), ()).notes if "--claim" in note)
    assert line.endswith(": --claim dtypes=f32 --claim masks=boolean")


def test_a_function_that_is_always_causal_is_told_so(torch_backend: Any) -> None:
    torch = pytest.importorskip("torch")

    def causal(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ value

    report = check_attention(causal, checks=["values"], dtypes=["f32"], raises=False)
    first = report.diagnoses.iloc[0]
    assert first.sentence.endswith("without a causal mask: the function is always causal.")
    assert "`is_causal=False`" in first.hint


PAGE = (Path(__file__).parents[1] / "docs" / "signatures.md").read_text(encoding="utf-8")


def test_the_page_lists_every_name_and_claim() -> None:
    table = PAGE.partition("## Names")[2].partition("## What trial calls find")[0]
    for names in (*OPERAND_NAMES.values(), *(row.every_name for row in KNOWN)):
        assert re.search(
            rf"^\| `{names[0]}`.*\| {', '.join(f'`{n}`' for n in names)} \|$", table, re.M
        )
    assert {*re.findall(r"masks=(\w+)` \|", PAGE)} == {*MASKS}
    assert AXES.keys() == {*claims.AXES}


def test_the_page_has_the_claims_of_each_signature() -> None:
    commands = PAGE.partition("## Names")[0]
    for row in ROWS:
        kinds = [claim for claim in row.claims if claim.startswith("masks=")]
        assert all(f"--claim {claim}" in commands for claim in kinds), row


def odd(queries, keys, values, m=None, temperature=1.0, block=16):  # type: ignore[no-untyped-def]
    """A function whose names do not tell what `m` and `temperature` are given."""
    scores = queries @ keys.transpose(-2, -1) * temperature
    scores = scores if m is None else scores.masked_fill(~m, float("-inf"))
    return scores.softmax(-1) @ values


def test_other_names_are_bound_by_a_claim() -> None:
    pytest.importorskip("torch")
    bound = {"m": "attn_mask", "temperature": "scale"}
    report = check_attention(
        odd, checks=("values",), parameters=bound, masks="boolean", raises=False
    )
    assert "m=attn_mask, temperature=scale" in str(report)
    assert "never passed, so that the default is judged: block" in str(report)
    failed = report.table[report.table.status == "fail"]
    assert len(failed), "the default of the temperature is not that of a scale"
    assert not failed.case.str.contains("scale").any()
