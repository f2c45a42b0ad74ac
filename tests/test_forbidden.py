"""Forbidden calls (the claim `forbid`): what is seen of the calls of a user's function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.forbidden import watched
from attention_conformance.backends.protocol import ForbiddenCall
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.dtypes import DTYPES
from tests import runtimes

OF_TORCH = "torch.nn.functional.scaled_dot_product_attention"
OF_FLEX = "torch.nn.attention.flex_attention.flex_attention"
OF_LAYERS = "torch.nn.functional.multi_head_attention_forward"
OF_JAX = "jax.nn.dot_product_attention"
OF_KERAS = "keras.ops.dot_product_attention"

KERNELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attend


def softmax(query, key, value):
    return torch.softmax(query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5, -1) @ value


def calls(query, key, value):
    return attend(query, key, value)


def calls_if_few(query, key, value):
    return attend(query, key, value) if query.shape[-2] < 5 else softmax(query, key, value)
"""


def call(backend: str, function: Callable[..., Any], *names: str, times: int = 1) -> Any:
    """The value of a watched function. All but the last of several calls must be forbidden."""
    loaded = registry.load(backend)
    seen = watched(loaded, function, names)
    array = loaded.array(np.ones((2, 3, 2, 4)), DTYPES["f32"])
    for _ in range(times - 1):
        with pytest.raises(ForbiddenCall):
            seen(array, array, array)
    return seen(array, array, array)


def by_name(query: Any, key: Any, value: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("torch", (OF_TORCH, OF_FLEX, OF_LAYERS)), ("jax", (OF_JAX,)), ("tf", (OF_KERAS,)),
        ("tests.isolated:backend", ()),
    ],
)  # fmt: skip
def test_the_frameworks_own_attention_has_names(backend: str, name: tuple[str, ...]) -> None:
    assert registry.attention_names(runtimes.loaded(backend)) == name


def of_flex(query: Any, key: Any, value: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(query, key, value)


def of_layer(query: Any, key: Any, value: Any) -> Any:
    import torch

    return torch.nn.MultiheadAttention(4, 1)(query[0], key[0], value[0])[0]


@pytest.mark.parametrize(("function", "name"), [(of_flex, OF_FLEX), (of_layer, OF_LAYERS)])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_other_attention_of_torch_is_seen(function: Callable[..., Any], name: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ForbiddenCall, match=f"calls {name}, which is forbidden"):
        call("torch", function, OF_TORCH, OF_FLEX, OF_LAYERS)


@pytest.mark.parametrize("times", [1, 2])
def test_a_program_that_was_compiled_before_is_remembered(times: int) -> None:
    jax = pytest.importorskip("jax")
    jitted = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v))
    with pytest.raises(ForbiddenCall, match=OF_JAX):
        call("jax", jitted, OF_JAX, times=times)


def test_a_function_of_keras_is_seen_inside_a_graph() -> None:
    tf = pytest.importorskip("tensorflow")
    registry.load("tf")
    import keras

    traced = tf.function(lambda q, k, v: keras.ops.dot_product_attention(q, k, v))
    with pytest.raises(ForbiddenCall, match=OF_KERAS):
        call("tf", traced, OF_KERAS, times=2)


def plan(tmp_path: Path, name: str, **more: Any) -> Plan:
    (tmp_path / "kernels.py").write_text(KERNELS)
    return Plan.make(
        Options(
            backend=("torch",), function=(f"{tmp_path}/kernels.py:{name}",), level="smoke",
            dtype=("f32",), **more,
        )
    )  # fmt: skip


@pytest.mark.parametrize("isolate", [False, True])
def test_the_cells_in_which_it_calls_fail(tmp_path: Path, isolate: bool) -> None:
    """The function falls back for few queries alone."""
    pytest.importorskip("torch")
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.judge import judge

    made = plan(tmp_path, "calls_if_few", isolate=isolate, forbid=(OF_TORCH,))
    values = all_checks()["values"]
    verdicts = {cell.case: judge(cell, made.policy(cell)) for cell in made.cells(values)}
    judged = {case: v for case, v in verdicts.items() if v.status in ("pass", "fail")}
    few = {case for case in judged if case.sizes.Lq < 5}
    assert few
    assert few < set(judged)
    assert {case for case, v in judged.items() if v.kind == "forbidden"} == few
    assert {v.status for case, v in judged.items() if case not in few} == {"pass"}
