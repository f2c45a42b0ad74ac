"""A sliding window as an argument of the call: (left, right) keys besides the query's own position,
None for unbounded.

The mask of the case gives the window. Without this argument the window is passed as a dense mask.
"""

from __future__ import annotations

from attention_conformance.suite.spec.features.feature import Feature, Reduction

WINDOW = Feature(
    name="window",
    word="native-window",
    text="a sliding window as an argument of the call",
    reduction=Reduction("mask", operand=lambda window, rows, keys: (window.left, window.right)),
)
