"""A user's own function: its signature says what it can be asked, and it is judged like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.sources import function_source
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import find
from tests.processes import python
from tests.runtimes import user_function, verdict_of

KERNELS = """
import torch

def plain(query, key, value):
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1) @ value

def wrong_scale(query, key, value, attn_mask=None):
    scores = query @ key.mT * (1.01 * query.shape[-1] ** -0.5)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return torch.softmax(scores, -1) @ value

def zeros_where_told(query, key, value, dropout_p=None):
    return plain(query, key, value) * (dropout_p is None)

def bias_beside_flag(query, key, value, attn_mask=None, is_causal=False):
    if is_causal and attn_mask is not None:
        attn_mask.masked_fill_(torch.ones(attn_mask.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal and attn_mask is None)

def refuses_both(query, key, value, attn_mask=None, is_causal=False):
    if is_causal and attn_mask is not None:
        raise RuntimeError("attn_mask should not be set when is_causal=True")
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal)

"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "my_kernels.py"
    path.write_text(KERNELS)
    return path


def judged(kernels: Path, name: str, case: str, check: str = "values") -> Verdict:
    return verdict_of(user_function(f"{kernels}:{name}"), case, check)


def test_a_parameter_that_must_change_nothing_is_passed_once_in_a_while(kernels: Path) -> None:
    case = "sdpa/none/mha/f32/b2h3q17k23d8"
    assert judged(kernels, "zeros_where_told", case).status == "pass"
    verdict = judged(kernels, "zeros_where_told", case, "paths")
    assert verdict.status == "fail"
    assert verdict.message.startswith("1 of 1 paths (dropout_p=0.0)")
    assert judged(kernels, "plain", case, "paths").status == "unsupported"
    assert not user_function(f"{kernels}:zeros_where_told").remarks


@pytest.mark.parametrize(
    ("name", "case", "status", "message"),
    [
        ("bias_beside_flag", "sdpa/none/mha/f32/b2h4q5k7d8/bias.qk", "pass", ""),
        (
            "bias_beside_flag",
            "sdpa/causal/mha/f32/b2h4q5k7d8/bias.qk",
            "fail",
            "the call changed its argument attn_mask",
        ),
        ("refuses_both", "sdpa/causal/mha/f32/b2h4q5k7d8/bias.qk", "pass", ""),
        ("refuses_both", "sdpa/causal+pad/mha/f32/b2h4q5k7d8", "pass", ""),
        (
            "plain",
            "sdpa/causal/mha/f32/b2h4q5k7d8",
            "unsupported",
            "neither is_causal nor attn_mask",
        ),
        ("wrong_scale", "sdpa/causal/mha/f32/b2h4q5k7d8", "fail", "beyond their bound"),
    ],
)
def test_a_users_function_is_judged(
    kernels: Path, name: str, case: str, status: str, message: str
) -> None:
    verdict = judged(kernels, name, case)
    assert verdict.status == status, verdict.message
    assert message in verdict.message


def test_a_feature_that_a_function_lacks_costs_no_other_question() -> None:
    """Cases are asked without it, but for those of a check that is about it."""
    textbook = user_function("tests/functions/of_torch.py:textbook")
    text = "sdpa/none/gqa2/f32/b2h6q17k23d8/scale0.0/cap2.0"
    assert "softcap" in (textbook.unsupported(Case.parse(text)) or "")
    twin = textbook.nearest_supported(Case.parse(text))
    assert twin is not None
    assert twin.id == "sdpa/none/mha/f32/b2h6q17k23d8/scale0.0"
    asked = {cell.case.id for cell in all_checks()["values"].cells("standard", [textbook])}
    assert "sdpa/none/mha/f32/b1h1q1k1d1" in asked
    about_sinks = list(all_checks()["sink_equals_key"].cells("standard", [textbook]))
    assert all("sinks" in cell.case.needs for cell in about_sinks)


NEIGHBOUR = "def scale_of(query):\n    return query.shape[-1] ** -0.5\n"
KERNEL = """
import torch
{line}

def flash(query, key, value):
    from {late} import scale_of
    return torch.softmax(query @ key.mT * scale_of(query), -1) @ value
"""


@pytest.mark.parametrize("package", [False, True])
def test_a_file_imports_its_neighbours(tmp_path: Path, package: bool) -> None:
    pytest.importorskip("torch")
    name = f"scales_{package}".lower()
    folder = tmp_path / f"kernels_of_{name}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(NEIGHBOUR)
    line = f"from .{name} import scale_of" if package else f"import {name}"
    late = f".{name}" if package else name
    (folder / "flash.py").write_text(KERNEL.format(line=line, late=late))
    if package:
        (folder / "__init__.py").write_text("")
    flash = user_function(f"{folder / 'flash.py'}:flash")
    case = find("sdpa/none/mha/f32/b2h3q17k23d8")
    assert verdict_of(flash, case).status == "pass"
    source = function_source(flash.judged, "flash")
    script = f"{source}\nimport torch\nprint(function(*torch.ones(3, 1, 1, 2, 4)).sum().item())"
    out = python("-P", "-c", script, cwd=tmp_path)
    assert out.stdout.strip() == "8.0", out.stderr


def test_neighbours_of_one_name_are_judged_in_two_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scales_of_two.py").write_text(NEIGHBOUR)
        text = KERNEL.format(line="import scales_of_two", late="scales_of_two")
        (tmp_path / folder / "flash.py").write_text(text)
    old, new = (f"{tmp_path / folder / 'flash.py'}:flash" for folder in ("old", "new"))
    for _ in range(2):
        user_function(old)
    with pytest.raises(UsageError, match="judge the two in two runs"):
        user_function(new)
