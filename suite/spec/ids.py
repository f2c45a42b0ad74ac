"""Ids of cases: which part stands where (see `suite.spec.case`)."""

from __future__ import annotations

PLACES = ("OPERATOR", "MASK", "HEADS", "DTYPE", "SIZES", "WIDTHS")
"""The parts of an id in their order, before its options; layers alone have WIDTHS."""


def part(text: str, place: str) -> str:
    """The part of an id, or of a pattern of ids, at one of `PLACES`."""
    return text.split("/")[PLACES.index(place)]
