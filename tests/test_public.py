"""The public package: what people build their own tests on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_conformance
from attention_conformance import (
    AttentionFailure,
    UsageError,
    assert_attention_close,
    attention_bound,
    check_attention,
    judge_module,
)
from suite.records import cells as records

ROOT = Path(__file__).resolve().parents[1]

torch = pytest.importorskip("torch")


def right(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
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
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


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
    with pytest.raises(AttentionFailure, match=r"all \d+ failures have Lq >= 17") as caught:
        check_attention(scaled(1.01), checks=["values"], dtypes=("f32",), name="mine")
    report = caught.value.report
    assert not report.passed
    assert report.failures.loc[0, "check"] == "values"
    assert {"mine"} == set(report.table["implementation"])
    # The same, without raising; in float32 a factor of 1 + 1e-9 is no factor.
    assert not check_attention(scaled(1.01), checks=["values"], raises=False).passed
    assert check_attention(scaled(1 + 1e-9), checks=["values"], dtypes=("f32",)).passed


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_a_right_function_of_one_dtype_passes(dtype: str) -> None:
    """What is asked in 16 bits because sums are exact there is no promise of other dtypes."""
    report = check_attention(right, checks=["nearest", "precision"], dtypes=(dtype,))
    nearest = report.table[report.table["check"] == "nearest"]
    assert set(nearest["status"]) >= {"pass" if dtype in ("bf16", "f16") else "unsupported"}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_is_asked_what_its_forward_takes(compiled: bool) -> None:
    module = torch.compile(Module(), backend="eager") if compiled else Module()
    report = check_attention(module, checks=["values"], name="module", head_sizes=(8, 16))
    assert report.passed
    asked = report.table[report.table["status"] == "pass"]
    assert {fact["mask"] for fact in asked["facts"]} == {"none", "causal"}
    assert {fact["D"] for fact in asked["facts"]} <= {8, 16}


def test_a_layer_is_judged_by_its_factory() -> None:
    class Layer(torch.nn.Module):
        def __init__(self, query_width: int, heads: int) -> None:
            super().__init__()
            self.inner = torch.nn.MultiheadAttention(query_width, heads, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.inner(x, x, x, need_weights=False)[0]

    report = judge_module(Layer, checks=["contract", "key_permutation"])
    assert report.passed
    assert set(report.table["operator"]) == {"multi-head"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "pytorch2"}, "unknown backend 'pytorch2'"),
        ({"level": "tiny"}, "unknown level 'tiny'"),
        ({"checks": ["valuess"]}, "unknown check 'valuess'; valid: "),
        ({"head_size": 64}, "unknown option 'head_size'; claims are numerics"),
        ({"numerics": "half"}, "unknown numerics"),
        ({"elect": {"minus-inf-row": "ones"}}, "ones"),
        ({"like": "decoder"}, "unknown"),
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


@pytest.mark.parametrize("words", [("-n", "0"), ("-n", "1", "-k", "test_right")])
def test_every_cell_is_a_case_of_a_persons_own_test(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "test_mine.py").write_text(OUTSIDE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -q\n")
    out = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    summary = out.stdout.splitlines()[-1]
    if "test_right" in words:
        assert out.returncode == 0, out.stdout
        assert "failed" not in summary
        return
    assert out.returncode == 1
    assert "FAILED test_mine.py::test_wrong[values/sdpa/" in out.stdout
    assert "test_mine.py::test_right" not in out.stdout
    assert "1 xfailed" in summary


def test_the_file_of_the_documentation_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (tmp_path / "test_my_kernel.py").write_text(text.split("```python\n")[1].split("```")[0])
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert out.returncode == 0, out.stdout
    assert " passed" in out.stdout.splitlines()[-1]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


Q, K, V = numbers(2, 4, 5, 8), numbers(2, 2, 9, 8), numbers(2, 2, 9, 6)


def plain(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64, as one reads them in a book."""
    groups = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    scores = query @ key.swapaxes(2, 3) * (scale or query.shape[3] ** -0.5)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], -1)
    total = np.exp(scores).sum(-1, keepdims=True)
    weights = np.exp(scores) / total
    if sinks is not None:
        weights = weights[..., :-1]
    return weights @ value, np.log(total[..., 0])


MASK = numbers(2, 1, 5, 9, seed=1) > 0
MASK[..., 0] = True

CALLS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "mask": {"mask": MASK},
    "bias": {"bias": numbers(4, 1, 9)},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": numbers(4)},
    "all": {"mask": MASK[:1], "bias": numbers(5, 9), "scale": 0.3, "softcap": 2.0},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_held_to_its_bound(name: str) -> None:
    arguments = CALLS[name]
    output, lse = plain(Q, K, V, **arguments)
    more = {} if "sinks" in arguments else {"lse": lse}
    assert 0 < assert_attention_close(output, Q, K, V, **arguments, **more) <= 1
    expected = attention_bound(Q, K, V, **arguments)
    np.testing.assert_allclose(output, expected.value, rtol=1e-12, atol=1e-14)
    assert (expected.bound < 1e-12).all()
    turned = [x.swapaxes(1, 2) for x in (output, Q, K, V)]
    assert_attention_close(*turned, **arguments, axis_order="blhd")
    off = output.copy()
    off[1, 2, 3, 4] += 2 * expected.bound[1, 2, 3, 4]
    with pytest.raises(AssertionError, match=r"element \(b=1, h=2, q=3, v=4\): got "):
        assert_attention_close(off, Q, K, V, **arguments)
    if "lse" in more:
        with pytest.raises(AssertionError, match="lse element"):
            assert_attention_close(output, Q, K, V, **arguments, lse=lse + 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_arrays_of_a_framework_are_judged_in_their_own_dtype(dtype: str) -> None:
    tensors = [torch.tensor(x, dtype=getattr(torch, dtype)) for x in (Q, K, V)]
    query, key, value = (x.requires_grad_() for x in tensors)
    out = right(query, key, value, is_causal=True, enable_gqa=True)
    cotangent = torch.tensor(numbers(*out.shape), dtype=out.dtype)
    grads = dict(
        zip(("query", "key", "value"), torch.autograd.grad(out, tensors, cotangent), strict=True)
    )
    ratio = assert_attention_close(
        out, query, key, value, causal=True, grads=grads, cotangent=cotangent
    )
    assert 0 < ratio <= 1
    with pytest.raises(AssertionError, match="gradient of key"):
        assert_attention_close(
            out,
            query,
            key,
            value,
            causal=True,
            cotangent=cotangent,
            grads={"key": grads["key"] * 1.1},
        )
    with pytest.raises(AssertionError, match="beyond their bound"):
        assert_attention_close(out, query, key, value, causal="bottom-right")


def test_values_of_a_dtype_that_numpy_lacks() -> None:
    q, k, v = (torch.tensor(x, dtype=torch.bfloat16) for x in (Q, K, V))
    arrays = [x.float().numpy() for x in (right(q, k, v, enable_gqa=True), q, k, v)]
    assert assert_attention_close(*arrays, dtype="bf16") <= 1
    with pytest.raises(ValueError, match="which is no number of bfloat16"):
        assert_attention_close(arrays[0], Q, K, V, dtype="bf16")


def test_rows_without_keys_are_judged_where_somebody_says_what_they_are() -> None:
    mask = MASK.copy()
    mask[0, 0, 2] = False
    output = np.nan_to_num(plain(Q, K, V, np.where(mask.any(-1, keepdims=True), mask, True))[0])
    output[0, :, 2] = 7.0
    assert assert_attention_close(output, Q, K, V, mask) <= 1
    for elected, values in (("zeros", 0.0), ("nan", np.nan), ("uniform", None)):
        with pytest.raises(AssertionError):
            assert_attention_close(output, Q, K, V, mask, empty_rows=elected)
        fixed = output.copy()
        fixed[0, :, 2] = np.repeat(V[0].mean(1), 2, axis=0) if values is None else values
        assert assert_attention_close(fixed, Q, K, V, mask, empty_rows=elected) <= 1
    with pytest.raises(ValueError, match="only empty_rows='zeros' is judged"):
        assert_attention_close(output, Q, K, V, mask, grads={"query": Q}, cotangent=output)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": K[:1]}, r"key has shape \(1, 2, 9, 8\), expected \(2, 2, 9, 8\)"),
        ({"value": V[..., :3, :]}, "value has shape"),
        ({"query": Q[:, :3]}, "heads are a multiple"),
        ({"query": Q[0]}, "query has four axes"),
        ({"actual": V}, "output has shape"),
        ({"mask": np.zeros((5, 9))}, "mask is boolean, True attends"),
        ({"mask": np.ones((5, 8), bool)}, "mask broadcasts to"),
        ({"bias": np.zeros((3, 1, 9))}, "bias broadcasts to"),
        ({"sinks": np.zeros(3)}, "sinks has shape"),
        ({"numerics": "half"}, "unknown numerics 'half'; valid: "),
        ({"axis_order": "lbhd"}, "axis_order is"),
        ({"causal": "left"}, "causal is True"),
        ({"empty_rows": "ones"}, "unknown empty_rows"),
        ({"grads": {"query": Q}}, "need the cotangent"),
        ({"grads": {"bias": Q}, "cotangent": numbers(2, 4, 5, 6)}, "no gradient of bias"),
        ({"query": Q.astype(int)}, "query has dtype int64"),
    ],
)
def test_arguments_that_do_not_fit_are_told_why(changes: dict[str, Any], message: str) -> None:
    arguments = {"actual": plain(Q, K, V)[0], "query": Q, "key": K, "value": V} | changes
    with pytest.raises(ValueError, match=message):
        assert_attention_close(**arguments)
