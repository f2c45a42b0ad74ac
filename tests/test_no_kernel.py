"""Promise: where torch says that a forced kernel of a GPU cannot answer, the case is unsupported."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.backends._torch.kernels import FLASH
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.prepared import NoKernel, kernel_missing
from attention_conformance.backends.registry import load
from tests.runtimes import verdict_of


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
