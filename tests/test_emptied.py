"""A function whose kernel is empty: its answers must be wrong (`--kernel`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backends.registry import UsageError
from suite.checks import all_checks
from suite.judge.judge import judge
from suite.judge.verdict import Verdict
from suite.run.isolation.emptied import emptied
from suite.run.options import Options
from suite.run.plan import Plan

KERNELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention


def returns(query, key, value):
    return torch.softmax(query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5, -1) @ value


def writes(query, key, value, out):
    out.copy_(returns(query, key, value))


class Launched:
    def __getitem__(self, grid):
        return writes


launched = Launched()


class Flash:
    apply = staticmethod(lambda query, key, value: returns(query, key, value))


def by_result(query, key, value):
    return returns(query, key, value)


def by_argument(query, key, value):
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    writes(query, key, value, out)
    return out


def by_launch(query, key, value):
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    launched[1, 2](query, key, value, out)
    return out


def by_method(query, key, value):
    return Flash.apply(query, key, value)


def pretends(query, key, value):
    launched[1, 2](query, key, value, torch.empty_like(query))
    return scaled_dot_product_attention(query, key, value)


def never_calls(query, key, value):
    return scaled_dot_product_attention(query, key, value)
"""


def verdicts(tmp_path: Path, name: str, kernel: str) -> list[tuple[Verdict, bool]]:
    """The verdicts of values in float32, and whether zeros are right because there are no elements."""
    pytest.importorskip("torch")
    (tmp_path / "kernels.py").write_text(KERNELS)
    options = Options(
        backend=("torch",), function=(f"{tmp_path}/kernels.py:{name}",), level="smoke",
        dtype=("f32",), kernel=kernel, claim=("forward_only",),
    )  # fmt: skip
    plan = Plan.make(options)
    values = all_checks()["values"]
    cells = [cell for cell in plan.cells(values) if not cell.implementation.unsupported(cell.case)]
    return [(judge(c, plan.policy(c)), 0 in (c.case.sizes.B, c.case.sizes.Lq)) for c in cells]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("by_result", "returns"),
        ("by_argument", "writes"),
        ("by_launch", "launched"),
        ("by_method", "Flash.apply"),
    ],
)
def test_answers_of_the_kernel_pass(tmp_path: Path, name: str, kernel: str) -> None:
    found = verdicts(tmp_path, name, kernel)
    assert len(found) > 5
    assert {verdict.status for verdict, _ in found} == {"pass"}


@pytest.mark.parametrize("name", ["pretends", "never_calls"])
def test_answers_of_other_code_fail(tmp_path: Path, name: str) -> None:
    found = verdicts(tmp_path, name, "launched")
    assert {verdict.kind for verdict, empty in found if not empty} == {"without-kernel"}
    assert {verdict.status for verdict, empty in found if empty} == {"pass"}


def test_a_kernel_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the function's file has no 'none'"):
        verdicts(tmp_path, "by_result", "none")


def test_what_an_empty_kernel_leaves() -> None:
    one = np.ones(2)
    several = emptied(lambda x: (x, {"lse": x + 1}, "text"))(one)
    assert [several[0].tolist(), several[1]["lse"].tolist(), several[2]] == [[0, 0], [0, 0], "text"]
    assert one.tolist() == [1, 1]
    assert emptied(lambda x, out: out.fill(2))(1, out=one) is None
    assert one.tolist() == [0, 0]
    kernel = emptied(SimpleNamespace(block=16))
    assert kernel.block == 16
    assert kernel[1, 2](one) is None
