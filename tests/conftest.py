"""What several files of tests share: one thread for every framework, and the adapter of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from backends.registry import load
from backends.threads import limit_threads

# Cases are tiny, and workers share the cores: threads would wait for each other most of the time.
limit_threads(1)


@pytest.fixture(scope="module")
def torch_backend() -> Any:
    """The adapter of PyTorch on the CPU."""
    pytest.importorskip("torch")
    return load("torch")
