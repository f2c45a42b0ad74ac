"""The public package: what people build their own tests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attention_conformance
from attention_conformance import (
    AttentionFailure,
    UsageError,
    check_attention,
    parametrize_attention,
)
from attention_conformance.suite.records import cells as records
from tests.processes import ROOT, python, run

torch = pytest.importorskip("torch")


def right(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def scaled(factor: float) -> Any:
    """A closure that is off by a factor where there are more than 20 keys."""

    def off(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        out = right(query, key, value, attn_mask)
        return out * factor if key.shape[2] > 20 else out

    return off


class Module(torch.nn.Module):
    def forward(self, query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
        return right(query, key, value, is_causal=is_causal)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, attention_conformance as a\n"
        "assert not {'numpy', 'pandas', 'pytest', 'torch', 'jax', 'suite'} & set(sys.modules)\n"
        "a.assert_attention_close, a.check_attention, dir(a)\n"
        "assert not {'torch', 'jax', 'tensorflow', 'keras'} & set(sys.modules)"
    )
    python("-c", code, check=True)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(attention_conformance, name) for name in attention_conformance.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'check'"):
        _ = attention_conformance.check


def test_a_right_function_passes_and_its_report_has_every_cell(tmp_path: Path) -> None:
    report = check_attention(right, checks=["values", "election"])
    assert report.passed
    assert str(report).startswith("right on torch, level smoke: ")
    assert set(report.table["status"]) == {"pass", "unsupported"}
    assert report.failures.empty
    assert report.elections.loc["fully-masked-row", "torch:right"] == "zeros"
    assert list(report.elections.columns) == ["torch:right", "the framework's own"]
    path = report.save(tmp_path / "run.jsonl")
    loaded = records.load(path)
    assert loaded.cells == report.run.cells
    assert loaded.header.partial
    with pytest.raises(FileExistsError):
        report.save(path)


def test_a_wrong_closure_fails_and_says_what_separates_its_failures() -> None:
    with pytest.raises(AttentionFailure, match=r"all \d+ failures have Lk >= 23") as caught:
        check_attention(scaled(1.01), checks=["values"], dtypes=("f32",), name="mine")
    report = caught.value.report
    assert not report.passed
    assert report.failures.loc[0, "check"] == "values"
    assert {"mine"} == set(report.table["implementation"])
    # In float32 a factor of 1 + 1e-9 is no factor.
    assert check_attention(scaled(1 + 1e-9), checks=["values"], dtypes=("f32",)).passed


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_is_asked_what_its_forward_takes(compiled: bool) -> None:
    module = torch.compile(Module(), backend="eager") if compiled else Module()
    report = check_attention(module, checks=["values"], name="module", head_sizes=(8, 16))
    assert report.passed
    rows = report.table[report.table["status"] == "pass"]
    assert {fact["mask"] for fact in rows["facts"]} == {"none", "causal"}
    assert {fact["D"] for fact in rows["facts"]} <= {8, 16}


class Called:
    """Called as a function; `call` is something else."""

    def __call__(self, query: Any, key: Any, value: Any) -> Any:
        return right(query, key, value)

    def call(self, number: str) -> None:
        raise AssertionError


class Keras(torch.nn.Module):
    """As Keras' layers on torch: `forward` takes anything, `call` says what."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.call(*arguments, **named)

    def call(self, query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
        return right(query, key, value, is_causal=is_causal)


@pytest.mark.parametrize("thing", [Called(), Keras()])
def test_what_is_called_is_asked_what_it_takes(thing: Any) -> None:
    report = check_attention(thing, checks="values", dtypes="f32")
    assert report.passed
    assert {type(thing).__name__} == set(report.table["implementation"])


def test_nothing_that_is_asked_is_an_error() -> None:
    with pytest.raises(UsageError, match="supports none of the selected cells"):
        parametrize_attention(right, checks=["dropout"], dtypes=("f32",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": ["valuess"]}, "unknown check 'valuess'; valid: "),
        ({"head_size": 64}, "unknown option 'head_size'; did you mean 'head_sizes'"),
        ({"backend": None}, "backend: expected a name such as 'torch', got None"),
        ({"numerics": "half"}, "unknown numerics"),
        ({"name": ""}, "expected one letter or more"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_attention(right, **options)


OUTSIDE = """
import torch
from attention_conformance import parametrize_attention

def right(query, key, value, is_causal=False):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)

def wrong(query, key, value):
    return right(query, key, value) * (1.01 if key.shape[2] > 20 else 1)

@parametrize_attention(right, checks=["values", "contract"], dtypes=("f32",))
def test_right(cell):
    cell()

@parametrize_attention(
    wrong, checks=["values"], dtypes=("f32",), expected_failures={"values/*/bhdl": "too long"})
def test_wrong(cell):
    cell()
"""


def test_every_cell_is_a_case_of_a_persons_own_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(OUTSIDE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -q\n")
    out = python("-m", "pytest", "-n", "1", cwd=tmp_path)
    assert out.returncode == 1
    assert "FAILED test_mine.py::test_wrong[values/sdpa/" in out.stdout
    assert "test_mine.py::test_right" not in out.stdout
    assert "1 xfailed" in out.stdout.splitlines()[-1]


@pytest.mark.seldom
def test_the_file_of_the_documentation_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (tmp_path / "test_my_kernel.py").write_text(text.split("```python\n")[1].split("```")[0])
    out = run("--rootdir=.", cwd=tmp_path)
    assert out.returncode == 0, out.stdout
    assert " passed" in out.stdout.splitlines()[-1]
