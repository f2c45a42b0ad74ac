"""The public package: one call on a person's own arrays, held to its bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attention_conformance import assert_attention_close, attention_bound
from attention_conformance.suite.spec.recipes import alibi_bias
from tests.functions.own_attention import torch_own as right
from tests.loops import attention

torch = pytest.importorskip("torch")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


Q, K, V = numbers(2, 4, 5, 8), numbers(2, 2, 9, 8), numbers(2, 2, 9, 6)


def plain(alibi_slopes: Any = None, **given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64; slopes are a bias from the last key on."""
    if alibi_slopes is not None:
        given["bias"] = alibi_bias(alibi_slopes, Q.shape[2], K.shape[2])
    if "bias" in given:
        given["bias"] = np.broadcast_to(given["bias"], (2, 4, 5, 9))
    output, lse = attention(Q, K, V, **given)
    return output.astype(float), lse.astype(float)


MASK = numbers(2, 1, 5, 9, seed=1) > 0
MASK[..., 0] = True

CALLS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "mask": {"mask": MASK},
    "bias": {"bias": numbers(4, 1, 9)},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": numbers(4)},
    "slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 1.0])},
    "all": {"mask": MASK[:1], "bias": numbers(5, 9), "scale": 0.3, "softcap": 2.0},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_held_to_its_bound(name: str) -> None:
    arguments = CALLS[name]
    output, lse = plain(**arguments)
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


def test_what_is_expected_is_nobody_elses() -> None:
    expected = attention_bound(Q, K, V)
    expected.value[:] = 7
    expected.bound[:] = 7
    with pytest.raises(AssertionError):
        assert_attention_close(np.full_like(expected.value, 7), Q, K, V)


def test_values_of_a_dtype_that_numpy_lacks() -> None:
    q, k, v = (torch.tensor(x, dtype=torch.bfloat16) for x in (Q, K, V))
    arrays = [x.float().numpy() for x in (right(q, k, v, enable_gqa=True), q, k, v)]
    assert assert_attention_close(*arrays, dtype="bf16") <= 1
    with pytest.raises(ValueError, match="which is no number of bfloat16"):
        assert_attention_close(arrays[0], Q, K, V, dtype="bf16")


def test_rows_without_keys_are_judged_where_somebody_says_what_they_are() -> None:
    mask = MASK.copy()
    mask[0, 0, 2] = False
    output = np.nan_to_num(plain(mask=np.where(mask.any(-1, keepdims=True), mask, True))[0])
    output[0, :, 2] = 7.0
    assert assert_attention_close(output, Q, K, V, mask) <= 1
    for empty_rows, values in (("zeros", 0.0), ("nan", np.nan), ("uniform", None)):
        with pytest.raises(AssertionError):
            assert_attention_close(output, Q, K, V, mask, empty_rows=empty_rows)
        fixed = output.copy()
        fixed[0, :, 2] = np.repeat(V[0].mean(1), 2, axis=0) if values is None else values
        assert assert_attention_close(fixed, Q, K, V, mask, empty_rows=empty_rows) <= 1
    with pytest.raises(ValueError, match="only empty_rows='zeros' is judged"):
        assert_attention_close(output, Q, K, V, mask, grads={"query": Q}, cotangent=output)


@pytest.mark.parametrize(
    ("dtype", "answer", "right"),
    [("float32", "float64", False), ("float16", "float32", False), ("float64", "float32", False),
     ("float32", "float32", True)],
)  # fmt: skip
def test_an_output_has_the_dtype_of_its_operands(dtype: str, answer: str, right: bool) -> None:
    arrays = [array.astype(dtype) for array in (Q, K, V)]
    output = attention_bound(*arrays).value.astype(answer)
    if right:
        assert assert_attention_close(output, *arrays) <= 1
        return
    with pytest.raises(AssertionError, match=f"actual has dtype {answer}, expected {dtype}: the"):
        assert_attention_close(output, *arrays)
    grads, right_one = {"query": Q.astype(answer)}, output.astype(dtype)
    with pytest.raises(AssertionError, match=f"gradient of query has dtype {answer}, expected"):
        assert_attention_close(right_one, *arrays, grads=grads, cotangent=right_one)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_an_lse_has_32_bits_beside_16(dtype: str) -> None:
    arrays = [array.astype(dtype) for array in (Q, K, V)]
    output, exact = attention(*arrays)
    output, wide = output.astype(dtype), {"float16": "float32"}.get(dtype, dtype)
    assert assert_attention_close(output, *arrays, lse=exact.astype(wide)) <= 1
    with pytest.raises(AssertionError, match=f"lse has dtype float16, expected {wide}"):
        assert_attention_close(output, *arrays, lse=exact.astype("float16"))


SLOPES = numbers(4)
SLOPED = attention_bound(Q, K, V, alibi_slopes=SLOPES).value
ALIBI = {"actual": SLOPED, "alibi_slopes": SLOPES, "cotangent": SLOPED}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": K[:1]}, r"key has shape \(1, 2, 9, 8\), expected \(2, 2, 9, 8\)"),
        ({"value": V[..., :3, :]}, "value has shape"),
        ({"query": Q[:, :3]}, "heads are a multiple"),
        ({"query": Q[0]}, "query has four axes"),
        ({"actual": V}, "actual has shape"),
        ({"mask": np.zeros((5, 9))}, "mask is boolean, True attends"),
        ({"mask": np.ones((5, 8), bool)}, "mask broadcasts to"),
        ({"bias": np.zeros((3, 1, 9))}, "bias broadcasts to"),
        ({"sinks": np.zeros(3)}, "sinks has shape"),
        ({"alibi_slopes": np.zeros(3)}, "alibi_slopes has shape"),
        ({"alibi_slopes": np.zeros(4), "bias": np.zeros((5, 9))}, "give one of the two"),
        ({"numerics": "half"}, "unknown numerics 'half'; valid: "),
        ({"axis_order": "lbhd"}, "axis_order is"),
        ({"causal": "left"}, "causal is True"),
        ({"empty_rows": "ones"}, "unknown empty_rows"),
        ({"grads": {"query": Q}}, "need the cotangent"),
        ({"grads": {"bias": Q}, "cotangent": numbers(2, 4, 5, 6)}, "no gradient of bias"),
        (
            ALIBI | {"grads": {"alibi_slopes": SLOPES}},
            "no gradient of alibi_slopes: there are query, key",
        ),
        ({"scale": math.nan}, "scale is a finite number, got nan"),
        ({"scale": "big"}, "scale is a finite number, got 'big'"),
        ({"softcap": math.inf}, "softcap is a finite number, got inf"),
        ({"query": Q.astype(int)}, "query has dtype int64"),
        ({"key": K.astype("float32")}, "have one dtype, got query float64, key float32"),
        ({"query": np.full_like(Q, np.nan)}, "no answer to judge by"),
    ],
)
def test_arguments_that_do_not_fit_are_told_why(changes: dict[str, Any], message: str) -> None:
    arguments = {"actual": plain()[0], "query": Q, "key": K, "value": V} | changes
    with pytest.raises(ValueError, match=message):
        assert_attention_close(**arguments)
