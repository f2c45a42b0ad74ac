"""Check that the packages `suite`, `backends` and `references` are this project's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NAMES = ("suite", "backends", "references")


def refuse_impostors() -> None:
    """Raise ImportError if another package has the name of one of this project's packages."""
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        if spec is None:  # an untrusted child has no references
            continue
        place = Path(spec.origin).resolve() if spec.origin else None
        if place != ROOT / name / "__init__.py":
            other = place or next(iter(spec.submodule_search_locations or ()), "nowhere")
            raise ImportError(
                f"the package {name!r} is imported from {other}, expected {ROOT}; rename "
                f"the other one, or remove it from sys.path (first entries: {sys.path[:3]})"
            )
