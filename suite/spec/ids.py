"""The parts of case ids (see `suite.spec.case`)."""

from __future__ import annotations

PLACES = ("OPERATOR", "MASK", "HEADS", "DTYPE", "SIZES", "WIDTHS")
"""The parts of an id before its options, in order. Only layers have WIDTHS."""


def part(text: str, place: str) -> str:
    """Returns the part of an id, or of a pattern of ids, that `place` (one of `PLACES`) names."""
    return text.split("/")[PLACES.index(place)]
