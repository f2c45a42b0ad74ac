"""A user's function that attends codes, or writes codes, as an implementation; see docs/operators.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.memory import coded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.backends.user.paged import LAYOUT
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import FEATURES, QUANTIZED
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE
from attention_conformance.suite.spec.operators.tiles import TILE

SCALES = ("key_scale", "value_scale")

BITS = {"int4": 4}
"""The bits of codes that are less than a byte."""

ZEROS: tuple[Parameter[Inputs], ...] = (
    Parameter("key_zero", ("zero-points",), lambda inputs: inputs.arrays.get("key_zero")),
    Parameter("value_zero", ("zero-points",), lambda inputs: inputs.arrays.get("value_zero")),
)
"""The keywords of zero points, which are arrays."""


SIZE: Parameter[Inputs] = Parameter(
    "tile",
    ("scales-of-tiles",),
    lambda inputs: TILE if inputs.case.option("scales") == "pertile" else None,
)
"""The keyword of scales that do not broadcast: the components that share one."""

PAGES: tuple[Parameter[Inputs], ...] = (
    Parameter("page_table", ("pages",), lambda inputs: inputs.arrays.get("page_table")),
    Parameter("key_lengths", (), lambda inputs: inputs.arrays.get("key_lengths")),
    LAYOUT,
)
"""The keywords of codes in pages, which are arrays."""

NEW: tuple[Parameter[Inputs], ...] = (
    Parameter("key", ("new-tokens",), lambda inputs: inputs.arrays.get("key")),
    Parameter("value", ("new-tokens",), lambda inputs: inputs.arrays.get("value")),
)
"""The keywords of new tokens, which are arrays."""


class UserOfCodes(UserCallable):
    """A user's function of codes. Scales and zero points broadcast with their keys or values, but with a
    `tile` they have one number for so many components."""

    def call_of(self, inputs: Inputs) -> PreparedCall:
        keywords = self.binder.bind(inputs, inputs.needs)
        given = coded(self.backend, inputs)
        named = {name: given[name] for name in given if name in keywords}
        own = {name: value for name, value in keywords.items() if name not in named}
        if "dtype" in own:
            code = self.backend.array(np.zeros(1), CODES[inputs.case.option("codes")])
            own["dtype"] = getattr(code, "dtype", own["dtype"])

        def call(**arrays: Any) -> Any:
            placed = [arrays.pop(name) for name in self.arrays]
            return self.called(*placed, **arrays, **own)

        arguments = {name: given[name] for name in self.arrays} | named
        return PreparedCall(call, arguments, inputs.outputs, constants=tuple(own.items()))


class UserQuantized(UserOfCodes):
    """A user's `function(query, key_codes, value_codes, key_scale, value_scale, ...)`.

    The function returns (B, H, Lq, Dv) in the query's dtype. With `key` and `value` it writes these
    tokens, and returns the output and both arrays of codes, with the new ones in the place of the last.

    - query (B, H, Lq, D), key_codes (B, Hkv, Lk, D), value_codes (B, Hkv, Lk, Dv)
    - key_scale, value_scale: float32, of the codes' rank
    - key (B, Hkv, Lq, D), value (B, Hkv, Lq, Dv): new tokens
    - page_table (B, T), key_lengths (B,) of int32; codes are pools (P, S, Hkv, .), as are those that come
      back, and scales broadcast with them
    """

    operator = QUANTIZED
    arrays = ("query", "key_codes", "value_codes", *SCALES)
    table = (
        *ZEROS,
        *NEW,
        *PAGES,
        SIZE,
        Parameter(
            "causal", ("causal",), lambda inputs: inputs.case.option("alignment") == "causal"
        ),
        Parameter("scale", ("scale",), lambda inputs: inputs.scale),
    )
    features = FEATURES | {"length-arrays"}


class UserQuantizedWrite(UserOfCodes):
    """A user's `function(key, value, key_scale, value_scale, ...)`.

    The function returns the codes of keys and of values, in the framework's `dtype` for codes.

    - key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv)
    - key_scale, value_scale: float32, of the rank of key and value
    """

    operator = QUANTIZED_WRITE
    arrays = ("key", "value", *SCALES)
    table = (
        *ZEROS,
        SIZE,
        Parameter(
            "dtype", ("e4m3-codes", "e5m2-codes"), lambda inputs: inputs.case.option("codes")
        ),
        Parameter("bits", ("int4-codes",), lambda inputs: BITS.get(inputs.case.option("codes"))),
    )
    features = WRITE_FEATURES
