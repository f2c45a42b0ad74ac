"""Attention over codes, and writing of codes, by definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._numpy.attention import definition
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.in_pages import from_numpy_pages
from attention_conformance.backends.memory import by_component, coded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.dtypes import CODES, Code, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import put, slots
from attention_conformance.suite.spec.operators.quantized import (
    FEATURES,
    KINDS,
    QUANTIZED,
    allowed,
    axes_of,
    newest,
)
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE


class ScaledCodes(Implementation):
    """The reference over scale (code - zero), rounded once to the case's dtype."""

    name = "scaled-codes"
    operator = QUANTIZED
    declared = Declared(
        numerics="exact",
        features=FEATURES | {"length-arrays"},
        refusals={"gradient": "NumPy differentiates nothing"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt, mask, code = inputs.dtype, allowed(inputs), CODES[inputs.case.option("codes")]
        precision = np.longdouble if fmt.name == "f64" else np.float64

        def call(query: Rounded, **arrays: Rounded) -> Any:
            plain: dict[str, Any] = {
                n: array.values.astype(precision) for n, array in arrays.items()
            }
            pools, plain = plain, by_component(plain, inputs, np.repeat)
            plain = from_numpy_pages(plain, inputs)
            new = {n: nearest(plain, n, code) for n in KINDS if n in plain}
            for n, codes in new.items():
                plain[f"{n}_codes"][:, :, -codes.shape[2] :] = codes
            key, value = (
                (plain[f"{n}_codes"] - plain.get(f"{n}_zero", 0)) * plain[f"{n}_scale"]
                for n in KINDS
            )
            output = Rounded(
                definition(query.values, key, value, mask=mask, scale=inputs.scale, fmt=fmt), fmt
            )
            kept = [plain[f"{n}_codes"] for n in new]
            if "page_table" in pools:
                at = slots(inputs)
                kept = [
                    put(inputs.case, pools[f"{n}_codes"], at, plain[f"{n}_codes"], axes_of(n))
                    for n in new
                ]
            return (output, *(Rounded(x.astype(np.float64), code) for x in kept)) if new else output

        return PreparedCall(call, coded(self.backend, inputs), inputs.outputs)


def nearest(arrays: Mapping[str, np.ndarray], name: str, code: Code) -> np.ndarray:
    """The codes of new keys or values."""
    x, zero = arrays[name], arrays.get(f"{name}_zero")
    t = x / newest(arrays[f"{name}_scale"], x.shape[2])
    t = t if zero is None else t + newest(zero, x.shape[2])
    return round_to(np.clip(t, -code.max, code.max), code)


class NearestCodes(Implementation):
    """x / scale + zero, clipped to the range of the codes and rounded to the nearest one."""

    name = "nearest-codes"
    operator = QUANTIZED_WRITE
    declared = Declared(numerics="exact", features=WRITE_FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        code = CODES[inputs.case.option("codes")]

        def call(**arrays: Rounded) -> tuple[Rounded, Rounded]:
            plain = {name: array.values for name, array in arrays.items()}
            plain = by_component(plain, inputs, np.repeat)
            key, value = (nearest(plain, n, code) for n in KINDS)
            return Rounded(key, code), Rounded(value, code)

        return PreparedCall(call, coded(self.backend, inputs), inputs.outputs)
