"""Faults of attention over codes, and of writing codes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.quantized import Coded, QuantizedKernel
from attention_conformance.suite.deviations.layouts import has_gaps, in_memory_order
from attention_conformance.suite.spec.inputs import Inputs

Array = np.ndarray


def has_integer_codes(call: Coded) -> bool:
    """Returns True for integer codes."""
    return call.code.is_whole


def has_float_codes(call: Coded) -> bool:
    """Returns True for floating-point codes."""
    return not call.code.is_whole


def has_e4m3_codes(call: Coded) -> bool:
    return call.code.name == "e4m3"


def flush_subnormals(codes: Array, call: Coded) -> Array:
    return np.where(np.abs(codes) < call.code.smallest_normal, codes.dtype.type(0), codes)


def dequantized_by_tiled_scales(right: QuantizedKernel, name: str, call: Coded) -> Array:
    scale, zero = right.scale_of(name, call), right.zero_of(name, call)
    codes = right.codes_of(name, call)
    if zero is not None:
        codes = right.centred(codes, zero)
    if scale.shape[1] > 1:
        scale = np.tile(scale, (1, call.group, 1, 1))
    return np.repeat(codes, call.group, 1) * scale


def prepare_codes_in_order(right: QuantizedKernel, inputs: Inputs) -> PreparedCall:
    right_call = right.prepare(inputs)

    def function(**arrays: Rounded) -> Any:
        strided = {n: x for n, x in arrays.items() if "_codes" in n and has_gaps(x.values)}
        codes = {n: Rounded(in_memory_order(x.values), x.fmt) for n, x in strided.items()}
        return right_call.function(**arrays | codes)

    return replace(right_call, function=function)


row = partial(deviation, family="quantized", right=QuantizedKernel)

DEVIATIONS = [
    row("quantized-scale-tiled", "values",
        "The scales of query heads are tiled, their keys are not.",
        "`scale[h % kv_heads]`; query head h has the scale of head h // group", family="heads",
        by_head=lambda right, x, call: x, scaled=dequantized_by_tiled_scales),
    row("quantized-channel-scale-tiled", "values",
        "Scales of components of keys go to query heads in turn, their keys go by groups.",
        "`query * k_scale[h % kv_heads]`; query head h has the scale of head h // group",
        family="heads",
        when=lambda call: call.group > 1 and call.case.option("scales") == "perchannel",
        scaled=lambda right, name, call: dequantized_by_tiled_scales(right, name, call)
            if name == "key" else right.scaled(name, call)),
    row("quantized-zero-forgotten", "values", "Zero points are ignored.",
        "codes of asymmetric quantisation read as symmetric ones; `scale * (code - zero)`",
        zero_of=lambda right, name, call: None),
    row("quantized-zero-added", "values", "Zero points are added to codes.",
        "`scale * (code + zero)`; the zero point is subtracted when codes are read",
        centred=lambda right, codes, zero: codes + zero),
    row("quantized-difference-wraps", "values",
        "Codes minus zero points are computed in 8 bits, and wrap around.",
        "`(code - zero)` in int8; widen codes first", family="numerics",
        centred=lambda right, codes, zero: (codes - zero + 128) % 256 - 128),
    row("quantized-codes-in-order", "layouts",
        "Codes are read as if nothing lay between their rows.",
        "`codes.data_ptr()` with strides from the shape; take `codes.stride()`", family="layout",
        prepare=prepare_codes_in_order),
    row("quantized-unsigned", "values", "Codes of whole numbers are read as unsigned ones.",
        "`uint8_t` for `int8_t` in the loader", family="numerics", when=has_integer_codes,
        codes_of=lambda right, name, call: right.codes_of(name, call) % 256),
    row("quantized-lowest-code-clipped", "values",
        "The lowest code of whole numbers is read as the one above.",
        "`clamp(-127, 127)` of codes that are read; -128 is a code", family="numerics",
        when=has_integer_codes,
        codes_of=lambda right, name, call: np.maximum(right.codes_of(name, call), -call.code.max)),
    row("quantized-bias-of-another-format", "values",
        "Codes e4m3 are read with the exponent bias 8, and are halved.",
        "`float8_e4m3fnuz` for `float8_e4m3fn`: its exponents mean half", family="numerics",
        when=has_e4m3_codes, codes_of=lambda right, name, call: right.codes_of(name, call) / 2),
    row("quantized-subnormals-flushed", "values", "Subnormal floating-point codes are read as 0.",
        "bits shifted into float16 without its subnormals", family="numerics", when=has_float_codes,
        codes_of=lambda right, name, call: flush_subnormals(right.codes_of(name, call), call)),
    row("quantized-gradient-of-codes", "gradients",
        "The gradient of the query is made with codes in place of keys.",
        "the backward pass reads codes as keys; multiply them by their scale",
        gradient=lambda right, call, cotangent:
            right.gradient(call, cotangent) / call.arrays["key_scale"].mean()),
]  # fmt: skip
