"""Right attention over 8-bit codes, and right writing of codes, in NumPy, one method a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.in_pages import from_numpy_pages
from attention_conformance.backends.memory import quantized_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import DeclaredKernel
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import CODES, Code, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import slots_of, write_tokens
from attention_conformance.suite.spec.operators.quantized import (
    FEATURES,
    KINDS,
    QUANTIZED,
    allowed,
    axes_of,
    newest_scales,
)
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE
from attention_conformance.suite.spec.operators.tiles import repeat_per_component
from attention_conformance.suite.spec.sizes import Sizes


@dataclass(frozen=True)
class Coded:
    """One call: its arrays by name in working precision. Scales and zero points broadcast to their keys
    or values, unless scales are per tile.
    - `mask`: True attends; None if all pairs attend
    - `arrays_before_store`: the arrays before new tokens were stored
    """

    arrays: dict[str, np.ndarray]
    case: Case
    scale: float
    fmt: DType
    mask: np.ndarray | None = None
    arrays_before_store: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: dict[str, Rounded], inputs: Inputs) -> Coded:
        """Returns the call of inputs with these arrays."""
        work = inputs.dtype.working
        values = {name: array.values.astype(work) for name, array in arrays.items()}
        mask = allowed(inputs) if inputs.operator.has_keys else None
        return cls(values, inputs.case, inputs.effective_scale, inputs.dtype, mask)

    @property
    def code(self) -> Code:
        """The format of the codes."""
        return CODES[self.case.option("codes")]

    @property
    def sizes(self) -> Sizes:
        return self.case.sizes

    @property
    def group(self) -> int:
        return self.sizes.group


class Scales(DeclaredKernel):
    """Steps that read scales and zero points. `name` is "key" or "value"."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        """Returns the scales of keys or values, in a shape that broadcasts to them."""
        return self.broadcastable_scale(f"{name}_scale", call)

    def zero_of(self, name: str, call: Coded) -> np.ndarray | None:
        """Returns the zero points of keys or values, in a shape that broadcasts to them; None without
        any."""
        array = f"{name}_zero"
        return self.broadcastable_scale(array, call) if array in call.arrays else None

    def broadcastable_scale(self, name: str, call: Coded) -> np.ndarray:
        """Returns the array `name` of scales or zero points in a shape that broadcasts to keys or
        values."""
        array = call.arrays[name]
        if call.case.option("scales") != "pertile":
            return array
        return self.spread_tiles(array, call.case.letters[axes_of(name.partition("_")[0])[-1]])

    def spread_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        """Returns the scales of tiles (..., tiles), repeated for every component (..., size)."""
        return repeat_per_component(array, size)


class Writing(Scales):
    """Quantization: x / scale + zero point, clipped and rounded to the nearest code."""

    def written(self, name: str, call: Coded) -> np.ndarray:
        """Returns the codes of the new keys or values (`name`)."""
        x = self.quotient(self.tokens(name, call), self.new_scale(name, call), call)
        zero = self.zero_of(name, call)
        x = x if zero is None else x + newest_scales(zero, x.shape[2])
        return self.stored(self.clipped(x, call), call)

    def new_scale(self, name: str, call: Coded) -> np.ndarray:
        """Returns the scales of the new tokens."""
        return np.asarray(newest_scales(self.scale_of(name, call), call.arrays[name].shape[2]))

    def tokens(self, name: str, call: Coded) -> np.ndarray:
        """Returns the new keys or values."""
        return call.arrays[name]

    def quotient(self, x: np.ndarray, scale: np.ndarray, call: Coded) -> np.ndarray:
        return x / scale

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        return np.clip(x, -call.code.max, call.code.max)

    def stored(self, x: np.ndarray, call: Coded) -> np.ndarray:
        """Returns x rounded to the nearest codes, as float64 numbers."""
        return np.rint(x).astype(float) if call.code.is_whole else round_to(x, call.code)


class QuantizedKernel(Writing):
    """New tokens become codes; then attention over codes times scales in float32, rounded once."""

    operator = QUANTIZED
    features = FEATURES | {"length-arrays"}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype

        def attend(**arrays: Rounded) -> Any:
            with np.errstate(all="ignore"):
                call = self.after_writing(Coded.of(arrays, inputs), inputs)
                output = rounded_to(self.output(call), fmt)
            names = [f"{name}_codes" for name in KINDS if name in call.arrays]
            codes = {name: call.arrays[name].astype(np.float64) for name in names}
            if "page_table" in arrays:
                codes = {name: self.put(arrays, name, x, inputs) for name, x in codes.items()}
            return (output, *(Rounded(x, call.code) for x in codes.values())) if names else output

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            call = self.after_writing(Coded.of(arrays, inputs), inputs)
            gradient = self.gradient(call, cotangent.values.astype(call.arrays["query"].dtype))
            return {name: rounded_to(gradient, fmt) for name in wrt}

        constants = (inputs.case.options, inputs.sizes, fmt.name)
        return PreparedCall(
            attend,
            quantized_arrays(self.backend, inputs),
            inputs.outputs,
            vjp=vjp,
            constants=constants,
        )

    def put(
        self, arrays: dict[str, Rounded], name: str, codes: np.ndarray, inputs: Inputs
    ) -> np.ndarray:
        """Returns the pool `name` after new tokens are stored. `codes` (B, Hkv, Lk, .): all codes, of
        which the last Lq are new."""
        new, axes = inputs.sizes.Lq, axes_of(name.partition("_")[0])
        table, counts = arrays["page_table"].values, arrays["key_lengths"].values
        slots = slots_of(table, counts, inputs.letters["s"], inputs.sizes.Lk)
        return write_tokens(
            inputs.case, arrays[name].values, slots[:, -new:], codes[:, :, -new:], axes
        )

    def from_pages(self, call: Coded, inputs: Inputs) -> Coded:
        """Returns the call with tokens gathered from their pages."""
        return replace(call, arrays=from_numpy_pages(call.arrays, inputs))

    def after_writing(self, call: Coded, inputs: Inputs) -> Coded:
        """Returns the call with tokens gathered from their pages, and with the codes of new tokens."""
        call = self.from_pages(call, inputs)
        codes = {f"{name}_codes": self.codes(name, call) for name in KINDS if name in call.arrays}
        return replace(call, arrays=call.arrays | codes, arrays_before_store=call.arrays)

    def codes(self, name: str, call: Coded) -> np.ndarray:
        """Returns all codes of keys or values. Codes of new tokens replace the last ones."""
        codes, new = call.arrays[f"{name}_codes"].copy(), self.written(name, call)
        codes[:, :, -new.shape[2] :] = new
        return codes

    def output(self, call: Coded) -> np.ndarray:
        """Returns the output (B, H, Lq, Dv), not yet rounded."""
        value = self.by_head(self.scaled("value", call), call)
        return self.weights(self.scores(call), call) @ value

    def scores(self, call: Coded) -> np.ndarray:
        key = self.by_head(self.scaled("key", call), call)
        return np.asarray((call.arrays["query"] @ key.swapaxes(-1, -2)) * call.scale)

    def weights(self, scores: np.ndarray, call: Coded) -> np.ndarray:
        if call.mask is not None:
            scores = np.where(call.mask, scores, -np.inf)
        exponentials = self.raised(scores)
        return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))

    def raised(self, scores: np.ndarray) -> np.ndarray:
        """Returns the exponentials of scores minus the maximum of their row."""
        return np.asarray(np.exp(scores - scores.max(-1, keepdims=True)))

    def scaled(self, name: str, call: Coded) -> np.ndarray:
        """Returns the keys or values (B, Hkv, Lk, .) for which the codes stand: (code - zero) scale."""
        codes, zero = self.codes_of(name, call), self.zero_of(name, call)
        return (codes if zero is None else self.centred(codes, zero)) * self.scale_of(name, call)

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        return call.arrays[f"{name}_codes"]

    def centred(self, codes: np.ndarray, zero: np.ndarray) -> np.ndarray:
        return codes - zero

    def by_head(self, x: np.ndarray, call: Coded) -> np.ndarray:
        """Returns keys, values or scales repeated for every query head. One scale for all heads is
        unchanged.
        """
        return np.repeat(x, call.group, 1) if x.shape[1] == call.case.sizes.Hkv else x

    def gradient(self, call: Coded, cotangent: np.ndarray) -> np.ndarray:
        """Returns the gradient of the query."""
        weights = self.weights(self.scores(call), call)
        dP = cotangent @ self.by_head(self.scaled("value", call), call).swapaxes(-1, -2)
        dS = weights * (dP - (dP * weights).sum(-1, keepdims=True)) * call.scale
        return np.asarray(dS @ self.by_head(self.scaled("key", call), call))


class QuantizedWriteKernel(Writing):
    """Quantization of keys and values in float32."""

    operator = QUANTIZED_WRITE
    features = WRITE_FEATURES

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = CODES[inputs.case.option("codes")]

        def quantize(**arrays: Rounded) -> tuple[Rounded, Rounded]:
            with np.errstate(all="ignore"):
                call = Coded.of(arrays, inputs)
                key, value = (self.written(name, call) for name in KINDS)
            return Rounded(key, fmt), Rounded(value, fmt)

        constants = (inputs.case.options, inputs.dtype.name)
        arguments = quantized_arrays(self.backend, inputs)
        return PreparedCall(quantize, arguments, inputs.outputs, constants=constants)
