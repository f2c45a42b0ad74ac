"""The reference as an implementation, rounded once to the case's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy.engine import Rounded, rounded_to
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
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


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
        fmt = inputs.dtype
        numbers = {name: x for name, x in inputs.features.items() if not FEATURES[name].axes}
        wants_lse = numbers.pop("lse", False)
        precision = np.longdouble if fmt is DTYPES["f64"] else np.float64

        def call(mask: Any, bias: Any, **arrays: Rounded) -> Any:
            operands = [arrays.pop(name).values for name in OPERANDS]
            with np.errstate(all="ignore"):
                reference = attention(
                    *operands, mask=mask and mask.values, bias=bias and bias.values, scale=inputs.scale,
                    features={n: x.values for n, x in arrays.items()} | numbers, precision=precision,
                )  # fmt: skip
            output = rounded_to(reference.output, fmt)
            if not wants_lse:
                return output
            return output, rounded_to(reference.lse, fmt.widened)

        return attention_call(call, dense_arguments(self.backend, inputs), inputs)
