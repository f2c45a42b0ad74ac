"""Judge attention from your own tests.

    from attention_conformance import check_attention, assert_attention_close

    def test_kernel():
        check_attention(my_kernel, backend="torch")           # the cells of a level

    def test_one_call():
        assert_attention_close(my_kernel(q, k, v), q, k, v)   # your own data, the derived bound

- `check_attention` judges a function by the cases of a level.
- `judge_module` judges a layer.
- `parametrize_attention` makes a pytest case of every cell.
- `assert_attention_close` judges one call with your own arrays.
- `attention_bound` gives expected values with their bound.

Cases, bounds and verdicts are those of the command line. A framework is imported when it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attention_conformance.backends.declared import UsageError
    from attention_conformance.calls import (
        Expected,
        assert_attention_close,
        attention_bound,
    )
    from attention_conformance.cells import parametrize_attention
    from attention_conformance.judging import check_attention, judge_module
    from attention_conformance.report import AttentionFailure, Report
    from attention_conformance.suite.spec.claims import claims

_MODULES = {
    "AttentionFailure": "attention_conformance.report",
    "Expected": "attention_conformance.calls",
    "Report": "attention_conformance.report",
    "UsageError": "attention_conformance.backends.declared",
    "assert_attention_close": "attention_conformance.calls",
    "attention_bound": "attention_conformance.calls",
    "check_attention": "attention_conformance.judging",
    "claims": "attention_conformance.suite.spec.claims",
    "judge_module": "attention_conformance.judging",
    "parametrize_attention": "attention_conformance.cells",
}
"""The module of each public name. Names are imported on first use."""

__all__ = [
    "AttentionFailure",
    "Expected",
    "Report",
    "UsageError",
    "assert_attention_close",
    "attention_bound",
    "check_attention",
    "claims",
    "judge_module",
    "parametrize_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
