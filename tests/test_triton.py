"""Triton: kernels in the interpreter, and what the suite watches and mends there. A kernel and its faults
are judged by the example project `tests/outside/triton_flash`."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.protocol import Backend, Implementation, UsageError

# Before a test of this process imports Triton.
if importlib.util.find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="comes with the extra triton")
torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def backend() -> Backend:
    return registry.load("triton")


@pytest.fixture(scope="module")
def kernels(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Small kernels, in a file: Triton reads their source."""
    path = tmp_path_factory.mktemp("kernels") / "small_kernels.py"
    path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location("small_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNELS = """
import triton
import triton.language as tl

@triton.jit
def move(source, to, LOADED: tl.constexpr, STORED: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(to + i, tl.load(source + i, i < LOADED), i < STORED)

@triton.jit
def add(to, ADDED: tl.constexpr):
    i = tl.arange(0, 16)
    tl.atomic_add(to + i, 1.0, i < ADDED)

@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(source, to, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + i, tl.load(source + i, i < n), i < n)
"""


def of_function(backend: Backend, function: Any, **said: Any) -> Implementation:
    return registry.callable_implementation(backend, function, "flash", said)[0]


@pytest.mark.parametrize(("loaded", "stored", "what"), [(13, 12, "load"), (12, 13, "store")])
def test_memory_behind_an_argument_is_not_touched(
    kernels: ModuleType, loaded: int, stored: int, what: str
) -> None:
    source, to = torch.arange(12.0), torch.zeros(12)
    kernels.move[1,](source, to, 12, 12)
    assert (to == source).all()
    with pytest.raises(Exception, match=f"{what} takes 1 of {max(loaded, stored)} elements"):
        kernels.move[1,](source, to, loaded, stored)
    with pytest.raises(Exception, match="atomic takes 4 of 16 elements"):
        kernels.add[1,](to, 16)


def test_bfloat16_of_a_function_is_asked_if_it_claims_so(backend: Backend) -> None:
    def attend(query: Any, key: Any, value: Any) -> Any:
        return query

    plain = of_function(backend, attend)
    assert "bf16" not in plain.declared.dtypes
    assert "mended_interpreter" in plain.remarks[0]
    mended = of_function(backend, attend, mended_interpreter=True)
    assert "bf16" in mended.declared.dtypes
    assert not mended.remarks
    with pytest.raises(UsageError, match="mended_interpreter"):
        of_function(backend, attend, dtypes=("bf16",))
    assert "mended_interpreter" not in Claims.of(attend, {}).values


def test_threads_wait_for_each_other(kernels: ModuleType) -> None:
    """The interpreter alone is wrong in two threads at once."""
    source, to = torch.arange(12.0), [torch.zeros(12) for _ in range(8)]
    threads = [threading.Thread(target=kernels.move[1,], args=(source, out, 12, 12)) for out in to]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all((out == source).all() for out in to)


def test_autotuned_kernels_take_their_first_configuration(kernels: ModuleType) -> None:
    source, to = torch.arange(40.0), torch.zeros(40)
    kernels.tuned[lambda settings: (-(-40 // settings["BLOCK"]),)](source, to, 40)
    assert (to == source).all()
    assert kernels.tuned.best_config.kwargs == {"BLOCK": 16}
