"""Claims: what users may declare about their function, as its attributes or by `claims`.

    from suite.spec.claims import claims

    @claims(dtypes=("f16",), head_sizes=(64, 128), equal_lengths=True)
    def flash(query, key, value, is_causal=False): ...

Without an import: `flash.dtypes = ("f16",)`. This file imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

CLAIMS = {
    "numerics": "the numerics class, or one per short dtype name",
    "dtypes": "supported dtypes: f16, bf16, f32, f64",
    "head_sizes": "supported sizes D of queries and keys",
    "value_sizes": "supported sizes Dv of values; default: head_sizes",
    "queries": "the supported number of queries, 1 for a decoding function",
    "max_length": "the largest number of queries and of keys",
    "equal_lengths": "True if the number of queries must equal the number of keys",
    "equal_heads": "True if the number of key heads must equal the number of query heads",
    "scales": "the smallest and the largest scale",
    "elections": "answers to election questions: one per question, or one per short dtype name",
    "drop_in": "True if it replaces the framework's own attention: it refuses malformed problems, "
    "and has the same elections",
    "allow_unused": "True if it may have parameters that are never passed",
    "expect": "manifests of expected failures: paths, from the folder of the function's file",
}
"""The claims, with their meaning."""

BY_DTYPE = (
    "numerics", "head_sizes", "value_sizes", "queries", "max_length", "equal_lengths", "equal_heads",
    "scales",
)  # fmt: skip
"""Claims that take one value, or one value per short dtype name."""


def claims(**what: Any) -> Callable[[F], F]:
    """A decorator that sets claims as attributes of a function. Raises TypeError for unknown claims."""
    unknown = ", ".join(name for name in what if name not in CLAIMS)
    if unknown:
        raise TypeError(f"unknown claim {unknown}; valid: {', '.join(CLAIMS)}")

    def mark(function: F) -> F:
        for name, value in what.items():
            setattr(function, name, value)
        return function

    return mark
