"""The reference as an implementation, rounded once to the case's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import (
    FILLED,
    TEXTBOOK_FEATURES,
    UNFLUSHED,
    ZEROS,
    Declared,
)
from attention_conformance.backends.masks import dense_arguments
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.references.blocked import attention
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs


class Definition(Implementation):
    """`references.blocked.attention`, rounded once to the case's dtype."""

    name = "definition"
    declared = Declared(
        numerics="exact",
        features=TEXTBOOK_FEATURES | {"no-heads"},
        refusals={
            "native-causal": "masks are predicates here, without a causal flag",
            "native-window": "masks are predicates here, without a window argument",
            "gradient": "NumPy differentiates nothing",
        },
        elections=FILLED
        | ZEROS
        | UNFLUSHED
        | {
            "no-keys": "zeros",
            "lse-of-empty-row": "minus-inf",
            "nan-in-masked-value": "blocked",
            "integer-mask": "raises",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        numbers = {name: x for name, x in inputs.features.items() if not FEATURES[name].axes}
        settings = {"scale": inputs.scale, "fmt": inputs.dtype, **numbers}

        def call(**arrays: Rounded | None) -> Any:
            values: dict[str, Any] = {
                name: None if a is None else a.values for name, a in arrays.items()
            }
            with np.errstate(all="ignore"):
                return as_outputs(definition(**values, **settings), inputs)

        return attention_call(call, dense_arguments(self.backend, inputs), inputs)


def as_outputs(returned: Any, inputs: Inputs) -> Any:
    """A function's result, an array or a tuple of arrays, as `Rounded` in the dtypes of the outputs."""
    if len(inputs.outputs) == 1:
        return Rounded(returned, inputs.dtype)
    formats = map(inputs.output_dtype, inputs.outputs)
    return tuple(Rounded(x, fmt) for x, fmt in zip(returned, formats, strict=True))


def precise(fmt: DType) -> type[np.floating[Any]]:
    """The NumPy type to compute in for a format: extended precision for float64, else float64."""
    return np.longdouble if fmt is DTYPES["f64"] else np.float64


def definition(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, fmt: DType, lse: bool = False,
    mask: np.ndarray | None = None, bias: np.ndarray | None = None, scale: float | None = None,
    **features: Any,
) -> Any:  # fmt: skip
    """The reference in a `precise` type, rounded once to `fmt`."""
    used = {name: x for name, x in features.items() if x is not None}
    reference = attention(
        query, key, value, mask=mask, bias=bias, scale=scale, features=used, precision=precise(fmt)
    )
    output = round_to(reference.output, fmt)
    return (output, round_to(reference.lse, fmt.widened)) if lse else output
