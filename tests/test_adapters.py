"""Adapters: values cross exactly, layouts are what they are called, functions are inspected, a forced
kernel is that kernel or an error, and what a framework refuses is refused by it alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends._torch.kernels import FLASH
from attention_conformance.backends.compilers import Compiled, kernels_in
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.limits import ANY
from attention_conformance.backends.masks import split_native
from attention_conformance.backends.prepared import NoKernel, kernel_missing
from attention_conformance.backends.protocol import Backend, BackendUnavailable
from attention_conformance.backends.registry import UsageError, load
from attention_conformance.backends.textbook.layers import Textbook
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, find
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.test_malformed import ARGUMENTS
from tests.runtimes import loaded, of, user_function, verdict_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", params=["numpy", "torch", "tf", "jax"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return registry.load(request.param)
    except BackendUnavailable as error:
        pytest.skip(f"{request.param} is not installed: {error}")


def test_names_are_unique_and_the_plainest_case_is_supported(backend: Backend) -> None:
    implementations = backend.implementations()
    assert len({i.name for i in implementations}) == len(implementations)
    plain = find("sdpa/none/mha/f32/b1h1q1k1d1")
    for implementation in implementations:
        if not implementation.operator.is_layer and implementation.declared.limits == ANY:
            assert implementation.unsupported(plain) is None
    assert list(backend.versions)


def test_library_layers_are_differentiated_by_every_parameter(backend: Backend) -> None:
    for text in (
        "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12",
        "dot/none/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
        "concat/none/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    ):
        case = Case.parse(text)
        inputs = draw(case)
        for layer in backend.implementations():
            if isinstance(layer, Textbook) or layer.operator is not case.operator:
                continue
            if layer.unsupported(case) is None:
                arguments = layer.differentiable(inputs).arguments
                for name, values in inputs.parameters.items():
                    assert np.array_equal(backend.to_numpy(arguments[name]), values), (layer, name)


def test_versions_of_a_plan_are_plain_strings(backend: Backend) -> None:
    """They travel between processes, and torch's own is a class of its own."""
    options = Options((backend.name,))
    plan = Plan(options, [load_backend(backend, options)], {})
    assert all(type(text) is str for text in plan.versions.values())


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


def test_a_forced_kernel_is_that_kernel_or_an_error() -> None:
    pytest.importorskip("torch")
    flash = of(registry.load("torch"), "sdpa-flash")
    other_size = draw(Case.parse("sdpa/none/mha/f32/b2h3q5k7d8v4"))
    with pytest.raises(RuntimeError, match="No available kernel"):
        flash.prepare(other_size)()
    assert "size" in str(flash.unsupported(find("sdpa/none/mha/f32/b2h3q5k7d8v4")))


def test_one_keras_engine_a_process() -> None:
    program = (
        "from attention_conformance.backends.registry import load\n"
        "from attention_conformance.backends.protocol import BackendUnavailable\n"
        "load('keras-jax')\n"
        "try:\n    load('keras-torch')\n"
        "except BackendUnavailable as error:\n    print(error)\n"
    )
    for module in ("keras", "jax", "torch"):
        pytest.importorskip(module)
    clean = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=clean
    ).stdout
    assert "Keras runs on jax in this process, torch was asked for" in out


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(
        UsageError,
        match="numpy, torch, tf, jax, keras-torch, keras-jax, keras-numpy, equinox, executorch, "
        "keras-hub, mlx, onnx-reference, onnxruntime, openvino, transformers, triton, tensorflow",
    ):
        registry.canonical("caffe")
    assert registry.canonical("tensorflow") == "tf"
    with pytest.raises(UsageError, match="process-global"):
        registry.check_one_engine(["tf", "keras-torch"])
    assert registry.judged_together(["numpy", "tf", "keras-torch", "jax"]) == ["numpy", "tf", "jax"]


def test_a_registered_function_is_not_called_for_what_it_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(device: str) -> None:
        raise AssertionError("nobody asked for the backend")

    monkeypatch.setattr(registry, "registered", lambda: {"mine": "registered_elsewhere:make"})
    monkeypatch.setitem(sys.modules, "registered_elsewhere", SimpleNamespace(make=make))
    assert registry.installed() == ["mine"]
    registry.check_one_engine(["mine"])


def test_a_compiled_implementation_is_named_and_held_like_its_own() -> None:
    options = Options(backend=("torch",), mode="compiled", implementation=("sdpa-math",))
    pytest.importorskip("torch")
    plan = Plan.make(options)
    assert [i.name for i in plan.implementations] == [
        f"sdpa-math@{c}" for c in ("inductor", "aot_eager", "export", "vmap")
    ]
    for implementation in plan.implementations:
        assert implementation.mode == "compiled"
        assert implementation.declared.elections["fully-masked-row"] == "zeros"
    both = Plan.make(Options(backend=("torch",), mode="all", implementation=("sdpa-math",)))
    assert [i.mode for i in both.implementations] == ["eager"] + ["compiled"] * 4


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


def test_kernels_of_a_program_are_its_custom_calls() -> None:
    text = '''
  %a = f32[2]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax", metadata={}
  %b = f32[2]{0} dot(%a, %a), lhs_contracting_dims={0}
  %c = f32[2]{0} custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"'''
    assert kernels_in(text) == "__cudnn$fmhaSoftmax, 1 dot, 0 fusion"


def test_the_kernels_of_torch_are_named() -> None:
    pytest.importorskip("torch")
    backend = registry.load("torch")
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h2q5k7d8"))
    seen = {
        i.name: backend.kernels(i.prepare(inputs))
        for i in backend.implementations()
        if i.name in ("eager", "sdpa-math", "sdpa-flash")
    }
    assert seen["sdpa-flash"] == "_scaled_dot_product_flash_attention_for_cpu"
    assert seen["sdpa-math"] == "_scaled_dot_product_attention_math"
    assert seen["eager"] == "bmm, matmul"


PLAIN = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
PADDED = "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"


def test_a_flax_module_that_loads_its_parameters_is_judged(tmp_path: Path) -> None:
    pytest.importorskip("flax")
    path = tmp_path / "module.py"
    path.write_text(
        "import flax.linen as nn\n"
        "class Bound:\n"
        "    def __init__(self, query_width, heads, dtype):\n"
        "        self.module = nn.MultiHeadDotProductAttention(heads, dtype=dtype)\n"
        "    def __call__(self, query, key, value, mask=None):\n"
        "        return self.module.apply(self.variables, query, key, value, mask=mask)\n"
        "    def load_attention(self, p):\n"
        "        names = {'query': 'query', 'key': 'key', 'value': 'value', 'out': 'output'}\n"
        "        self.variables = {'params': {n: {'kernel': p[f'{g}_kernel'], 'bias': p[f'{g}_bias']}\n"
        "                                     for n, g in names.items()}}\n"
    )
    layer = user_function(f"{path}:Bound", "multi-head", "jax")
    assert verdict_of(layer, PADDED).status == "pass"
    cross = "multi-head/bool.bhqk/mha/f32/b2h3q5k9d4/e12.12.12.12/head/dense"
    assert verdict_of(layer, cross).message == "the layer has no parameter return_weights"


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


def test_two_paddings_are_the_keys_that_are_valid_in_both() -> None:
    x = draw(Case.parse("dot/pad+causal+padempty/mha/f32/b9h1q35k3d6/e6.6.6.6"))
    native = split_native(x, causal=True, lengths=True)
    valid = native.valid(x)
    assert native.causal
    assert native.dense(x) is None
    assert x.mask is not None
    first, _, second = (part.dense(x.sizes) for part in x.mask.parts)
    assert valid is not None
    assert (valid == (first & second)[:, 0, 0]).all()
    assert not valid[-1].any()


def test_a_rank_that_raises_names_itself_and_serves_again(torch_backend: Any) -> None:
    ring = of(torch_backend, "ring").ranks  # type: ignore[attr-defined]
    whole = torch_backend.torch.zeros(1, 1, 4, 4)
    work = {"cotangent": None, "balanced": False, "rotation": "allgather", "settings": {}}
    with pytest.raises(RuntimeError, match=r"rank 0: RuntimeError: .*same head size"):
        ring.call(work | {"operands": (whole, whole, whole[..., :2])})
    assert len(ring.call(work | {"operands": (whole, whole, whole)})) == 2
    processes = [process for process, _ in ring.processes]
    ring.end()
    assert not any(process.poll() is None for process in processes)


def test_a_missing_kernel_is_no_failure() -> None:
    with pytest.raises(NoKernel, match="No available"), kernel_missing("No avail"):
        raise RuntimeError("No available kernel. Aborting execution.")
    with pytest.raises(RuntimeError, match="something else"), kernel_missing("No avail"):
        raise RuntimeError("something else")


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
