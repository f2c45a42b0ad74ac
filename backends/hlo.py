"""Read optimised XLA programs, of any framework."""

from __future__ import annotations

import re


def kernels_in(text: str) -> str:
    """The custom calls, matrix products and fusions of an optimised program in XLA's notation."""
    targets = sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))
    return ", ".join([*targets, *(f"{text.count(f' {op}(')} {op}" for op in ("dot", "fusion"))])
