"""Promise: where torch says that a forced kernel of a GPU cannot answer, the case is unsupported."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from attention_conformance.backends.prepared import NoKernel, kernel_missing
from attention_conformance.backends.registry import load
from tests.runtimes import judged, of


def test_a_missing_kernel_is_no_failure() -> None:
    with pytest.raises(NoKernel, match="No available"), kernel_missing("No avail"):
        raise RuntimeError("No available kernel. Aborting execution.")
    with pytest.raises(RuntimeError, match="something else"), kernel_missing("No avail"):
        raise RuntimeError("something else")


@pytest.mark.parametrize(("error", "status"), [(NoKernel, "unsupported"), (RuntimeError, "fail")])
def test_the_case_is_unsupported(error: type[Exception], status: str) -> None:
    backend = load("torch")
    with patch.object(type(of(backend, "sdpa-flash")), "forced", side_effect=error("no kernel")):
        verdict = judged(backend, "sdpa-flash", "sdpa/none/mha/f32/b2h3q5k7d8")
    assert (verdict.status, "no kernel" in verdict.message) == (status, True)
