"""Triton: kernels in the interpreter, what the suite watches and mends there, and faulty kernels.

The kernel and its faults are those of the example project `tests/outside/triton_flash`. Here each is
judged on one cell, there on a whole level.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.protocol import Backend, Implementation, UsageError
from attention_conformance.suite.checks import all_checks
from tests.runtimes import judged, verdict_of

# Before a test of this process imports Triton.
if importlib.util.find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="comes with the extra triton")
torch: Any = pytest.importorskip("torch")

PROJECT = Path(__file__).parent / "outside" / "triton_flash"

PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"
CAUSAL = "sdpa/causal/mha/f32/b2h3q17k23d8"
LONG = "sdpa/causal/gqa4/bf16/b2h8q33k47d64"

KILLED_BY = {
    "hides the diagonal": CAUSAL,
    "counts rows from the block's first": CAUSAL,
    "causal keys end a block early": CAUSAL,
    "ignores the causal flag": CAUSAL,
    "keys behind the end have score 0": PLAIN,
    "leaves out the last keys": PLAIN,
    "loads keys behind the end": PLAIN,
    "loads values behind the end": PLAIN,
    "loads components of the next row": "sdpa/causal/mha/f32/b1h2q129k65d80",
    "stores rows behind the end": PLAIN,
    "does not store the last rows": PLAIN,
    "scales by the padded size": "sdpa/causal/mha/f32/b1h2q129k65d80",
    "ignores the scale": f"{CAUSAL}/scale-0.2",
    "does not scale": PLAIN,
    "does not rescale the sum of values": PLAIN,
    "does not rescale the sum of weights": PLAIN,
    "forgets the earlier maximum": "sdpa/none/mha/f32/b4h5q9k129d8/scale1.0/staircase",
    "takes powers of 2": PLAIN,
    "does not divide by the sum": PLAIN,
    "sums values in 16 bits": LONG,
    "rounds scores to 16 bits": LONG,
    "takes rows of values for adjacent": f"{PLAIN}/bhdl",
    "takes adjacent components": f"{PLAIN}/bhdl",
    "repeats key heads in another order": "sdpa/causal/gqa2/bf16/b2h6q17k23d8",
    "takes the first sample for all": PLAIN,
}
"""For each fault a case that the level smoke asks of the check `values`."""


def imported(name: str) -> ModuleType:
    """A module of the example project."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAULTS = imported("faults")


@pytest.fixture(scope="module")
def backend() -> Backend:
    return registry.load("triton")


@pytest.fixture(scope="module")
def kernel(backend: Backend) -> Implementation:
    return of_function(backend, imported("flash_triton").flash)


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

@triton.jit
def compute(x, y, wide, added, less, negative, chosen, product, narrowed, whole):
    i = tl.arange(0, 16)
    a, b = tl.load(x + i), tl.load(y + i)
    at = i[:, None] * 16 + i[None, :]
    tl.store(added + i, a + b)
    tl.store(less + i, a < b)
    tl.store(negative + i, -a)
    tl.store(chosen + i, tl.where(a < b, a, 1.5))
    zeros = tl.zeros((16, 16), tl.bfloat16)
    tl.store(product + at, tl.dot(a[:, None] + zeros, b[None, :] + zeros))
    tl.store(narrowed + i, tl.load(wide + i).to(tl.bfloat16))
    tl.store(whole + i, (i * 257).to(tl.bfloat16))

@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(source, to, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + i, tl.load(source + i, i < n), i < n)
"""


def of_function(backend: Backend, function: Any, **said: Any) -> Implementation:
    return registry.callable_implementation(backend, function, "flash", said)[0]


@pytest.mark.parametrize("text", sorted({*KILLED_BY.values()}))
def test_the_kernel_is_right(kernel: Implementation, text: str) -> None:
    verdict = verdict_of(kernel, text)
    assert verdict.status == "pass", verdict.message


def test_cases_are_asked_at_smoke(kernel: Implementation) -> None:
    asked = {cell.case.id for cell in all_checks()["values"].cells("smoke", [kernel])}
    assert {*KILLED_BY.values()} <= asked
    assert KILLED_BY.keys() == FAULTS.FAULTS.keys()


@pytest.mark.parametrize("name", FAULTS.FAULTS)
def test_deviations_die(backend: Backend, name: str, tmp_path: Path) -> None:
    wrong = of_function(backend, FAULTS.faulty(name, tmp_path))
    verdict = verdict_of(wrong, KILLED_BY[name])
    assert verdict.status == "fail"
    if ("behind the end" in name and "score" not in name) or "next row" in name:
        assert "outside of the memory of its arguments" in verdict.message


@pytest.mark.parametrize("text", [f"sdpa/bool.bhqk/gqa2/{dt}/b2h4q5k7d6" for dt in ("f32", "bf16")])
def test_the_control_is_right(backend: Backend, text: str) -> None:
    assert judged(backend, "eager", text).status == "pass"


def test_the_interpreter_as_it_is_fails(backend: Backend) -> None:
    verdict = judged(backend, "eager-unmended", "sdpa/none/mha/bf16/b2h3q17k23d8")
    assert (verdict.status, verdict.kind) == ("fail", "value")


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


def test_a_kernel_may_reach_the_memory_around_a_view(kernels: ModuleType) -> None:
    both = torch.arange(24.0)
    to = torch.zeros(16)
    kernels.move[1,](both[4:8], to, 16, 16)
    assert (to == both[4:20]).all()


def bfloat16_results(kernels: ModuleType) -> dict[str, bool]:
    """Is each operation in bfloat16 that of torch?"""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, generator=generator).bfloat16() for _ in range(2))
    wide = torch.randn(16, generator=generator)
    wide[:3] = torch.tensor([torch.nan, 1 + 2**-8 + 2**-9, torch.inf])
    outputs = {
        "added": torch.empty(16).bfloat16(), "less": torch.empty(16, dtype=torch.bool),
        "negative": torch.empty(16).bfloat16(), "chosen": torch.empty(16).bfloat16(),
        "product": torch.empty(16, 16), "narrowed": torch.empty(16).bfloat16(),
        "whole": torch.empty(16).bfloat16(),
    }  # fmt: skip
    kernels.compute[1,](x, y, wide, *outputs.values())
    expected = {
        "added": x + y, "less": x < y, "negative": -x, "chosen": torch.where(x < y, x, 1.5),
        "product": 16 * x.float()[:, None] * y.float()[None, :], "narrowed": wide.bfloat16(),
        "whole": (torch.arange(16) * 257).bfloat16(),
    }  # fmt: skip
    return {n: np.array_equal(outputs[n].float(), expected[n].float(), True) for n in outputs}


def test_bfloat16_is_mended_within_the_context_alone(kernels: ModuleType) -> None:
    from attention_conformance.backends._triton.interpreter import mended

    with mended():
        results = bfloat16_results(kernels)
    assert all(results.values()), results
    assert {n for n, right in bfloat16_results(kernels).items() if not right} >= {
        "added", "less", "negative", "product", "narrowed", "whole",
    }  # fmt: skip


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
    assert "mended_interpreter" not in Claims.of(attend, {}).said


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
