"""A sliding window as an argument of the call: (left, right) keys besides the query's own position, None
for no end. The mask of a case says it; without the argument it is passed densely."""

from __future__ import annotations

from suite.spec.features.feature import Feature

WINDOW = Feature(name="window", word="native-window", text="a sliding window of its own")
