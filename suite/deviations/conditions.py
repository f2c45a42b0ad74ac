"""Conditions of deviations, `when`: which calls a deviation changes."""

from __future__ import annotations

from typing import Any


def has_one_query(call: Any) -> bool:
    """Returns True for a call with one query, as in decoding."""
    return bool(call.sizes.Lq == 1)


def is_float16(call: Any) -> bool:
    """Returns True for a float16 call."""
    return bool(call.fmt.name == "f16")


def has_groups(call: Any) -> bool:
    """Returns True if query heads share key heads."""
    return bool(call.sizes.H != call.sizes.Hkv)
