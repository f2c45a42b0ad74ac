"""Ambient modes: what a framework may have switched on around a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Ambient(NamedTuple):
    """A mode that surrounds a call.

    - `within` makes the context in which the call runs.
    - `dtype`: the short name of the dtype in which the mode lets a call compute; "" for the dtype of the
      operands alone.
    - `may_raise`: True if an error is an answer, too.
    """

    within: Callable[[], AbstractContextManager[Any]]
    dtype: str = ""
    may_raise: bool = False
