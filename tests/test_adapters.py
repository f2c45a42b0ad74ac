"""Adapters: values cross exactly, layouts are what they are called, functions are inspected, a forced
kernel is that kernel or an error, and what a framework refuses is refused by it alone."""

from __future__ import annotations

import re
import traceback
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends._torch.kernels import FLASH
from attention_conformance.backends.compilers import Compiled
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.prepared import NoKernel
from attention_conformance.backends.registry import load
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, find
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.test_malformed import ARGUMENTS
from tests.processes import python
from tests.runtimes import judged, loaded, of, verdict_of


@pytest.mark.parametrize("name", ["torch", "tests.honest:honest"])
def test_threads_are_set_and_set_back(name: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    backend = registry.load(name)

    def count() -> int:
        return backend.torch.get_num_threads() if name == "torch" else backend.thread_count

    before = count()
    with backend.threads(before + 2):
        assert count() == before + 2
    assert count() == before


def test_one_keras_engine_a_process() -> None:
    program = (
        "import os\n"
        "os.environ.pop('KERAS_BACKEND', None)\n"
        "from attention_conformance.backends.registry import load\n"
        "from attention_conformance.backends.protocol import BackendUnavailable\n"
        "load('keras-jax')\n"
        "try:\n    load('keras-torch')\n"
        "except BackendUnavailable as error:\n    print(error)\n"
    )
    for module in ("keras", "jax", "torch"):
        pytest.importorskip(module)
    out = python("-c", program).stdout
    assert "Keras runs on jax in this process, torch was asked for" in out


@pytest.mark.parametrize(
    ("name", "compiler", "expected"),
    [
        ("jax", "jit", r"2 dot, \d+ fusion"),
        ("jax", "aot", r"2 dot, \d+ fusion"),
        ("jax", "vmap", r"2 dot, \d+ fusion"),
        ("jax", "ops", "2 dot_general"),
        ("tf", "function", "BatchMatMulV2, Softmax"),
        ("tf", "xla", r"2 dot, \d+ fusion"),
        ("torch", "vmap", "bmm, matmul"),
        ("torch", "aot_eager", "bmm"),
    ],
)
def test_the_kernels_say_what_ran_in_a_compiled_call(
    name: str, compiler: str, expected: str
) -> None:
    backend = loaded(name)
    compiled = Compiled(backend.implementations()[0], compiler)
    prepared = compiled.prepare(draw(Case.parse("sdpa/none/mha/f32/b2h3q5k7d8"), 0))
    prepared()
    assert re.fullmatch(expected, backend.kernels(prepared))


def test_the_fast_path_is_what_runs(torch_backend: Any) -> None:
    from attention_conformance.backends._torch.modules import witnessed

    by_name = {i.name: i for i in torch_backend.implementations()}
    fast, slow = by_name["nn-mha-fast"], by_name["nn-mha"]
    candidates = [c for c in cases("standard") if c.operator is fast.operator]
    supported = [c for c in candidates if fast.unsupported(c) is None]
    assert len(supported) > 20
    for case in supported:
        assert witnessed(fast.prepare(draw(case)))[1], case.id
        assert not witnessed(slow.prepare(draw(case)))[1], case.id
    crossed = draw(Case.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12"))
    with pytest.raises(RuntimeError, match="fast path was not taken"):
        fast.prepare(crossed)()


@pytest.mark.seldom
def test_a_rank_that_raises_names_itself_and_serves_again(torch_backend: Any) -> None:
    ring = of(torch_backend, "ring").ranks  # type: ignore[attr-defined]
    whole = torch_backend.torch.zeros(1, 1, 4, 4)
    work = {"cotangent": None, "settings": {}}
    with pytest.raises(RuntimeError, match=r"rank 0: RuntimeError: .*same head size"):
        ring.call(work | {"operands": (whole, whole, whole[..., :2])})
    assert len(ring.call(work | {"operands": (whole, whole, whole)})) == 2
    processes = [process for process, _ in ring.processes]
    ring.end()
    assert not any(process.poll() is None for process in processes)


@pytest.mark.parametrize(("error", "status"), [(NoKernel, "unsupported"), (RuntimeError, "fail")])
def test_the_case_is_unsupported(error: type[Exception], status: str) -> None:
    def without_kernel(*operands: Any, **arguments: Any) -> Any:
        raise error("no kernel")

    flash = FrameworkFunction(load("torch"), FLASH.but(function=without_kernel))
    verdict = verdict_of(flash, "sdpa/none/mha/f32/b2h3q5k7d8")
    assert (verdict.status, "no kernel" in verdict.message) == (status, True)


@pytest.mark.parametrize("backend", ["torch", "tf", "jax"])
def test_frameworks_refuse(backend: str) -> None:
    """The innermost frame of every exception is outside this project, or the call of what is compiled."""
    count = 0
    for implementation in load(backend).implementations():
        for case in map(Case.parse, ARGUMENTS):
            if case.operator is not implementation.operator or implementation.unsupported(case):
                continue
            for name, call in implementation.refused(draw(case)).items():
                with pytest.raises(Exception) as error:  # noqa: PT011
                    call()
                slips = NameError, AttributeError, KeyError
                assert not isinstance(error.value, slips), (implementation.name, name)
                innermost = traceback.extract_tb(error.value.__traceback__)[-1]
                # What is compiled has no frame: the call itself is the innermost one.
                compiled = innermost.name == "<lambda>" and error.type is RuntimeError
                theirs = "site-packages" in innermost.filename or compiled
                assert theirs, (implementation.name, name, error.value)
                count += 1
    assert count >= 8


RIGHT = [
    ("jax", "pallas-gpu-mha", "sdpa/causal/mha/f32/b1h2q32k48d6"),
    ("jax", "pallas-gpu-decode", "sdpa/pad/gqa2/f32/b2h4q1k64d8"),
    ("jax", "pallas-tpu-splash", "sdpa/causal/gqa2/bf16/b1h4q32k128d64"),
    ("jax", "ragged-reference", "paged/none/gqa2/bf16/b2h4q3k12d8/seg1.2x7.5/causal/win3"),
    ("torch", "ring", "sdpa/causal/mha/f32/b2h3q16k16d8", "values"),
    ("torch", "ring", "sdpa/causal/mha/f32/b2h3q16k16d8", "gradients"),
]
"""A backend, an implementation, a case of `full` that it passes, and the check if that is not `values`.
`pytest suite` judges all other implementations, and the libraries'."""

STARTS_MUCH = {"jax", "ring"}
"""Rows with one of these words compile for seconds, or start processes."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, marks=[pytest.mark.seldom] if STARTS_MUCH & {*row} else [], id=" ".join(row)
        )
        for row in RIGHT
    ],
)
def test_a_row_is_right(row: tuple[str, ...]) -> None:
    backend, name, text, *check = row
    verdict = judged(loaded(backend), name, text, *check)
    assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize(
    ("backend", "name", "text", "reason"),
    [
        ("jax", "pallas-gpu-mha", "sdpa/causal/mha/f32/b1h2q32k16d8", "behind the keys"),
        ("torch", "ring", "sdpa/causal/mha/f32/b2h3q17k17d8", "multiples of 4"),
        ("torch", "ring", "sdpa/causal/mha/f32/b2h3q16k32d8", "equal lengths"),
    ],
)
def test_what_cannot_be_said_is_refused(backend: str, name: str, text: str, reason: str) -> None:
    assert reason in str(of(loaded(backend), name).unsupported(find(text)))


@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax"])
@pytest.mark.parametrize("name", DTYPES)
def test_values_cross_exactly(backend: str, name: str) -> None:
    """Numbers at the edges of a dtype, booleans, and a number without axes come back as they were."""
    of_backend, fmt = loaded(backend), DTYPES[name]
    edges = np.array(
        [0.0, -0.0, fmt.max, -fmt.smallest_normal, fmt.smallest_subnormal, np.inf, np.nan]
    )
    array = of_backend.array(edges, fmt)
    assert of_backend.is_array(array)
    assert of_backend.dtype_name(array) == fmt.long_name
    assert (of_backend.device_name(array), tuple(array.shape)) == ("cpu", edges.shape)
    assert np.array_equal(of_backend.to_numpy(array), edges, equal_nan=True)
    assert of_backend.to_numpy(of_backend.array(np.array([True, False]), None)).dtype == bool
    number = of_backend.array(np.asarray(0.5), fmt)
    assert (tuple(number.shape), float(of_backend.to_numpy(number))) == ((), 0.5)


def test_a_statistic_that_an_optimizer_would_train_is_the_layers_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = of(loaded("tf"), "keras-batch-norm")
    import keras

    build = keras.layers.BatchNormalization.build

    def trained(self: Any, shape: Any) -> None:
        build(self, shape)
        self.moving_mean.trainable = True

    text = "batch-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self/train"
    monkeypatch.setattr(keras.layers.BatchNormalization, "build", trained)
    verdict = verdict_of(norm, text, "gradients")
    assert (verdict.status, verdict.kind) == ("fail", "raised")
    assert "mean: an optimizer would change these statistics" in verdict.message


def test_a_forced_kernel_is_that_kernel_or_an_error() -> None:
    pytest.importorskip("torch")
    flash = of(registry.load("torch"), "sdpa-flash")
    other_size = draw(Case.parse("sdpa/none/mha/f32/b2h3q5k7d8v4"))
    with pytest.raises(RuntimeError, match="No available kernel"):
        flash.prepare(other_size)()
    assert "size" in str(flash.unsupported(find("sdpa/none/mha/f32/b2h3q5k7d8v4")))
