"""Smaller cases: every step makes sense, asks less, and what remains is what the failure needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.run.smaller import shrunk, smaller, well_posed
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, gradient_cases
from attention_conformance.suite.spec.operators import OPERATORS


@pytest.mark.parametrize("case", cases("smoke")[::4], ids=str)
def test_steps_are_valid_and_never_larger(case: Case) -> None:
    candidates = list(smaller(case))
    assert case not in candidates
    for candidate in candidates:
        assert Case.parse(candidate.id) == candidate
        assert (candidate.operator, candidate.dtype) == (case.operator, case.dtype)
        # The sizes of a pool follow from those of samples and of a page; pages and latents are options,
        # whose default is simpler and may be larger.
        own = {x: size for x, size in case.letters.items() if x not in "pstrel"}
        assert all(candidate.letters[x] <= size for x, size in own.items())


LARGE = "sdpa/pad+win4.0/gqa2/f32/b2h4q17k257d8/bias.bhqk/scale-0.2/cap5.0/blhd/dense"


@pytest.mark.parametrize(
    ("case", "fails", "least"),
    [
        (LARGE, lambda case: case.sizes.Lk >= 33, "sdpa/none/mha/f32/b1h1q1k33d1"),
        (LARGE, lambda case: case.option("softcap"), "sdpa/none/mha/f32/b1h1q1k1d1/cap5.0"),
        (LARGE, lambda case: "win" in case.mask_token, "sdpa/win4.0/mha/f32/b1h1q1k1d1"),
        (LARGE, lambda case: case.sizes.H > case.sizes.Hkv, "sdpa/none/mqa/f32/b1h2q1k1d1"),
        (LARGE, lambda case: case.sizes.Lq < case.sizes.Lk, "sdpa/none/mha/f32/b1h1q1k2d1"),
        (
            "multi-head/causal/gqa3/f32/b2h6q5k5d4/e12.12.12.12/self",
            lambda case: case.sizes.H > 1 and case.mask is not None,
            "multi-head/causal/mha/f32/b1h2q1k1d1/e1.1.1.1",
        ),
        (
            "additive/pad/mha/bf16/b2h1q5k9d16v14/e16.16.14.14/identity/head",
            lambda case: case.option("returned") == "head",
            "additive/none/mha/bf16/b1h1q1k1d1/e1.1.1.1/head",
        ),
    ],
)  # fmt: skip
def test_what_remains_is_what_the_failure_needs(
    case: str, fails: Callable[[Case], bool], least: str
) -> None:
    assert shrunk(Case.parse(case), lambda x: bool(fails(x))).id == least


def test_the_first_script_is_saved_and_never_over_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    kernel = tmp_path / "half.py"
    kernel.write_text(
        "def half(query, key, value):\n    return value[..., :1, :] * query[..., :1] / 2\n"
    )
    script = tmp_path / "found.py"
    words = ["search", "--backend=torch", f"--function={kernel}:half", f"--script={script}"]
    assert main([*words, "--case=sdpa/none/mha/f32/b1h2q3k3d4"]) == 1
    said = capsys.readouterr().out
    assert [*tmp_path.glob("found*.py")] == [script]
    assert said.count("  as a script:") > said.count("  saved   ") == 1
    before = script.read_bytes()
    assert main([*words, "--case=sdpa/none/mha/f32/b1h2q3k3d4"]) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert script.read_bytes() == before


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_cases_of_the_table_are_well_posed(operator: Any) -> None:
    """What the search never draws is asked nowhere."""
    for of, differentiated in ((cases, False), (gradient_cases, True)):
        for case in of("standard"):
            if case.operator is operator:
                assert well_posed(case, differentiated), case.id


@pytest.mark.parametrize(
    "text",
    [
        "additive/bool.qk.empty/mha/f32/b2h1q5k9d16v14/e12.10.14.14/dense",
        "concat/causalbr/mha/f32/b2h1q9k5d8v6/e8.8.6.6/dense",
    ],
)
def test_rows_without_keys_that_nobody_elects_are_ill_posed(text: str) -> None:
    assert not well_posed(Case.parse(text))
