"""Claims: what a person may say of a function of their own, as attributes of it or by `claims`.

    from suite.spec.claims import claims

    @claims(dtypes=("f16",), head_sizes=(64, 128), equal_lengths=True)
    def flash(query, key, value, is_causal=False): ...

The same without an import: `flash.dtypes = ("f16",)`. The standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

CLAIMS = {
    "numerics": "the numerics class, or one by short dtype name",
    "dtypes": "the dtypes it takes: f16, bf16, f32, f64",
    "head_sizes": "the sizes D of queries and keys that it takes",
    "value_sizes": "the sizes Dv of values that it takes, by default those of head_sizes",
    "queries": "the number of queries that it takes, 1 of a function that decodes",
    "max_length": "the largest number of queries and of keys",
    "equal_lengths": "whether it takes as many queries as keys alone",
    "equal_heads": "whether it takes as many heads of keys as of queries alone",
    "scales": "the smallest and the largest scale",
    "elections": "answers by question, each one answer or one by short dtype name",
    "drop_in": "whether it stands in for the framework's own attention: refuses malformed problems, "
    "and answers as that does where the field has no single answer",
    "allow_unused": "whether it may have parameters that nobody passes",
    "expect": "manifests of expected failures: paths, from the folder of the function's file",
}
"""What can be claimed, in words."""

BY_DTYPE = (
    "numerics", "head_sizes", "value_sizes", "queries", "max_length", "equal_lengths", "equal_heads",
    "scales",
)  # fmt: skip
"""Claims that can be one value, or one by short dtype name."""


def claims(**what: Any) -> Callable[[F], F]:
    """A decorator that sets attributes of a function called like `CLAIMS`. Raises TypeError for
    others."""
    unknown = ", ".join(name for name in what if name not in CLAIMS)
    if unknown:
        raise TypeError(f"unknown claim {unknown}; valid: {', '.join(CLAIMS)}")

    def mark(function: F) -> F:
        for name, value in what.items():
            setattr(function, name, value)
        return function

    return mark
