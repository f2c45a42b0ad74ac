"""The picture of the rooms is that of the imports."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from suite.front import architecture

ROOT = Path(__file__).resolve().parents[1]


def test_the_picture_is_that_of_the_imports() -> None:
    """python -m suite architecture > docs/architecture.svg"""
    drawn = arrows((ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8"))
    rooms = architecture.rooms()
    assert drawn == {(upper, lower) for upper, others in rooms.items() for lower in others}
    assert {room for arrow in drawn for room in arrow} >= {"suite.judge", "suite.spec", "backends"}


def test_the_command_draws_the_picture() -> None:
    pytest.importorskip("matplotlib")
    drawn = subprocess.run(
        [sys.executable, "-m", "suite", "architecture"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert arrows(drawn) == arrows((ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8"))


def arrows(svg: str) -> set[tuple[str, ...]]:
    """The arrows of a picture."""
    ids = (node.get("id", "") for node in ElementTree.fromstring(svg).iter())
    return {tuple(name.split("--")) for name in ids if "--" in name}
