"""Malformed problems: requests without a meaning. An implementation must raise; a silent answer fails."""

from __future__ import annotations

from attention_conformance.suite.spec.malformed.plain import ATTENTION, LAYERS, ROTATIONS
from attention_conformance.suite.spec.malformed.problem import MalformedCase
from attention_conformance.suite.spec.malformed.served import CACHES, PACKS, PAGES, WRITES

__all__ = ["MALFORMED_CASES", "MalformedCase"]

MALFORMED_CASES: tuple[MalformedCase, ...] = (
    *ATTENTION, *LAYERS, *ROTATIONS, *PACKS, *CACHES, *PAGES, *WRITES,
)  # fmt: skip
