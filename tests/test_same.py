"""Promise: two functions are certified to give the same bits, and the first difference is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suite.__main__ import main
from suite.run import same

FUNCTIONS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

def plain(query, key, value, is_causal=False):
    return attention(query, key, value, is_causal=is_causal)

def again(query, key, value, is_causal=False):
    return attention(query, key, value, is_causal=is_causal)

def later(query, key, value, is_causal=False):
    out = attention(query, key, value, is_causal=is_causal)
    return torch.nextafter(out, out + 1) if query.shape[1] == 3 else out

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient * (1 + 2.0**-20)

def other_gradients(query, key, value, is_causal=False):
    return Halved.apply(attention(query, key, value, is_causal=is_causal))

def raises(query, key, value, is_causal=False):
    if query.shape[1] == 3:
        raise RuntimeError("three heads")
    return attention(query, key, value, is_causal=is_causal)
"""

NARROW = ["--backend=torch", "--level=smoke", "--dtype=f32"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("same") / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def run(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["same", f"{file}:plain", f"{file}:{name}", *NARROW])
    return code, capsys.readouterr().out.splitlines()


def test_two_names_of_one_function_are_the_same(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(file, "again", capsys)
    count = lines[0].split(" are bitwise the same in ")[1].split()
    assert (code, count[0]) == (0, count[2])
    assert int(count[0]) > 10
    assert len([line for line in lines if "difference" in line]) == 0


def test_a_bit_of_one_case_is_found(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(file, "later", capsys)
    assert code == 1
    assert any(line.startswith("first difference: values sdpa/") for line in lines)
    assert "output at (0, 0, 0, 0): " in lines[-1]


def test_gradients_are_compared(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(file, "other_gradients", capsys)
    assert code == 1
    values, gradients = lines[0].split("(values ")[1].rstrip(")").split(", gradients ")
    assert len({*values.split(" of ")}) == 1
    assert gradients.startswith("0 of ")
    assert lines[-2].startswith("first difference: gradients sdpa/")
    assert "gradient of query at " in lines[-1]


def test_a_failure_of_one_is_a_difference(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(file, "raises", capsys)
    assert code == 1
    assert "the second fails: RuntimeError: three heads" in lines[-1]


def test_zeros_of_other_sign_differ_and_nan_equal() -> None:
    zero, nan = np.zeros(2), np.array([0.0, np.nan])
    assert same.difference({"output": nan}, {"output": nan.copy()}) == ""
    assert "1 of 2 elements differ" in same.difference({"a": zero}, {"a": np.array([0.0, -0.0])})
    assert same.difference({}, {"a": zero}) == "a: missing"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["sdpa", "sdpa"], "name two functions, got sdpa twice"),
        (["sdpa", "none"], "unknown implementation none"),
        (["sdpa", "nn-mha"], "computes sdpa, and torch:nn-mha multi-head"),
    ],
)
def test_wrong_names_are_said(
    names: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert main(["same", *names, *NARROW]) == 2
    assert said in capsys.readouterr().err
