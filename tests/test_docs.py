"""The examples of the documentation do what they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_examples(name: str) -> None:
    failed, _ = doctest.testfile(str(DOCS / name), module_relative=False)
    assert not failed
