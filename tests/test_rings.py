"""Promise: a rank of a ring that raises names itself, and the ring goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtimes import of


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
