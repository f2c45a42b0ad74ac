"""What several files of tests share: one thread for frameworks, the adapter of PyTorch, the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.registry import load
from backends.threads import limit_threads
from tests.wheels import build

# Cases are tiny, and workers share the cores: threads would wait for each other most of the time.
limit_threads(1)

collect_ignore = ["outside"]
"""Projects of other people, which `test_outside.py` runs in environments of their own."""


@pytest.fixture(scope="module")
def torch_backend() -> Any:
    """The adapter of PyTorch on the CPU."""
    pytest.importorskip("torch")
    return load("torch")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build(tmp_path_factory.mktemp("wheel"))
