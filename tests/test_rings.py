"""Promise: a ring answers as one device, forward and backward, however ranks divide the sequence."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import load
from attention_conformance.suite.spec.case import Case
from tests.runtimes import of, verdict_of

CAUSAL = "sdpa/causal/mha/f32/b2h3q16k16d8"
OF_TORCH = ("ring", "ring-alltoall", "ring-balanced", "ring-balanced-alltoall")


@pytest.fixture(scope="module")
def rings(torch_backend: Any) -> dict[str, Implementation]:
    """The rings of torch by name, whose ranks are the same processes."""
    return {i.name: i for i in torch_backend.implementations() if i.name in OF_TORCH}


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_ring_of_torch_is_right(rings: dict[str, Implementation], name: str) -> None:
    for check in ("values", "gradients"):
        verdict = verdict_of(rings[name], CAUSAL, check)
        assert verdict.status == "pass", verdict.message


def test_a_rank_that_raises_names_itself_and_serves_again(
    torch_backend: Any, rings: dict[str, Implementation]
) -> None:
    ring = rings["ring"].ranks  # type: ignore[attr-defined]
    whole = torch_backend.torch.zeros(1, 1, 4, 4)
    work = {"cotangent": None, "balanced": False, "rotation": "allgather", "settings": {}}
    with pytest.raises(RuntimeError, match=r"rank 0: RuntimeError: .*same head size"):
        ring.call(work | {"operands": (whole, whole, whole[..., :2])})
    assert len(ring.call(work | {"operands": (whole, whole, whole)})) == 2
    processes = [process for process, _ in ring.processes]
    ring.end()
    assert not any(process.poll() is None for process in processes)


def test_ranks_hold_whole_blocks() -> None:
    ring = of(load("torch"), "ring-balanced")
    refused = {
        "sdpa/causal/mha/f32/b2h3q17k17d8": "multiples of 4",
        "sdpa/causal/mha/f32/b2h3q16k32d8": "equal lengths",
    }
    for text, reason in refused.items():
        assert reason in str(ring.unsupported(Case.parse(text)))


@pytest.mark.seldom
def test_rings_of_jax_are_right_where_a_cpu_counts_as_four_devices() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    script = f"""
from attention_conformance.backends.registry import load
from tests.runtimes import judged
for name in ("ring-blocks", "ring-balanced", "ring-interleaved"):
    for text in ("{CAUSAL}", "sdpa/pad/mha/f32/b2h3q16k16d8"):
        verdict = judged(load("jax"), name, text)
        assert verdict.status == "pass", (name, text, verdict.message)
verdict = judged(load("jax"), "ring-balanced", "{CAUSAL}", "gradients")
assert verdict.status == "pass", verdict.message
"""
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_on_one_device_a_ring_of_jax_says_what_it_needs() -> None:
    reason = of(load("jax"), "ring-blocks").unsupported(Case.parse(CAUSAL))
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=4" in str(reason)
