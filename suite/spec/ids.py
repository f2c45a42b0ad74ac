"""The parts of case ids (see `suite.spec.case`)."""

from __future__ import annotations

PLACES = ("OPERATOR", "MASK", "HEADS", "DTYPE", "SIZES", "WIDTHS")
"""The parts of an id before its options, in order. Only layers have WIDTHS."""


def part(text: str, place: str) -> str:
    """One of `PLACES` in an id or in a pattern of ids."""
    return text.split("/")[PLACES.index(place)]
