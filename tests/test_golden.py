"""Promise: what was asked, drawn, bounded and judged before the house was rebuilt still is.

A figure of `tests/golden.json` changes only in a commit that says why.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import golden

BEFORE: dict[str, dict[str, Any]] = json.loads(golden.FILE.read_text(encoding="utf-8"))

LAST_DIGITS = 2.0**-20
"""What a bound may differ by, as a part of it: sixteen roundoffs of float32, in which `references.terms`
adds up. NumPy's exponential of float32 differs by one or two of them between a CPU with AVX512 and one
without; 1.1e-7 is the most that bounds were seen to differ by."""


def changed(part: str) -> dict[str, tuple[Any, Any]]:
    """The figures of a part that differ from the golden ones, or are gone: (before, now)."""
    now = golden.PARTS[part]()
    return {n: (x, now.get(n)) for n, x in BEFORE[part].items() if now.get(n) != x}


@pytest.mark.parametrize("part", ["ids", "draws", "numpy"])
def test_nothing_changed(part: str) -> None:
    assert not changed(part)


def test_bounds_changed_in_their_last_digits_alone() -> None:
    """One derivation that serves two places may add in another order, and errors are added up in float32,
    whose last bits hang on the CPU (see `LAST_DIGITS`)."""
    beyond = {
        name: (before, now)
        for name, (before, now) in changed("bounds").items()
        if now is None or now[2] != before[2]
        or any(abs(a - b) > LAST_DIGITS * abs(a) for a, b in zip(before, now, strict=True))
    }  # fmt: skip
    assert not beyond


@pytest.mark.slow
@pytest.mark.parametrize("part", ["honest", "torch"])
def test_no_verdict_changed(part: str) -> None:
    if part == "torch":
        pytest.importorskip("torch")
    assert not changed(part)
