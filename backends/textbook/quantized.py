"""Textbook attention over codes, with scales before the products, and textbook writing."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.in_pages import in_slots
from attention_conformance.backends.memory import by_component
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.backends.textbook.paged import slots_first, stored, unpaged
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import (
    FEATURES,
    KINDS,
    QUANTIZED,
    allowed,
    newest,
)
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE


class OverCodes(TextbookOperator):
    """Textbook code that makes codes."""

    def written(self, name: str, arrays: Arrays, inputs: Inputs) -> Any:
        """The codes of new keys or values (B, Hkv, L, .)."""
        ops, code, x = self.ops, CODES[inputs.case.option("codes")], arrays[name]
        scale, zero = (
            None if array is None else newest(array, x.shape[2])
            for array in (arrays[f"{name}_scale"], arrays.get(f"{name}_zero"))
        )
        x = ops.like(x, scale) / scale
        if zero is not None:
            x = x + ops.like(zero, scale)
        x = ops.clip(x, -code.max, code.max)
        return ops.cast(ops.rint(x) if code.is_whole else x, code.long_name)


class TextbookQuantized(OverCodes):
    """Codes times scales, stored in the query's dtype, then attention."""

    name = "textbook-quantized"
    operator = QUANTIZED
    declared = Declared(features=FEATURES)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        mask, backend = allowed(inputs), self.backend
        hidden = {} if mask is None else {"hidden": backend.array(~mask, None)}
        return super().arguments(inputs) | in_slots(backend, inputs) | hidden

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        arrays = x.copy()
        query, hidden, slots = (arrays.pop(name, None) for name in ("query", "hidden", "slots"))
        given = by_component(arrays, inputs, self.ops.repeat)
        rest = unpaged(self.ops, given, inputs, slots)
        new = {f"{name}_codes": self.codes(name, rest, inputs) for name in KINDS if name in rest}
        key, value = (self.by_head(self.scaled(n, rest | new, query), inputs) for n in KINDS)
        output = self.weighted(query, key, value, hidden, inputs)
        if slots is not None:
            new = {n: self.put(given, n, codes, slots, inputs) for n, codes in new.items()}
        return (output, *new.values()) if new else output

    def codes(self, name: str, rest: Arrays, inputs: Inputs) -> Any:
        """All codes of keys or values, with new ones in the place of the last. Codes pass through the
        dtype of the scale, because not every framework joins arrays of 8-bit numbers."""
        ops, scale, new = self.ops, rest[f"{name}_scale"], self.written(name, rest, inputs)
        kept = rest[f"{name}_codes"].shape[2] - new.shape[2]
        parts = [ops.like(rest[f"{name}_codes"], scale)[:, :, :kept], ops.like(new, scale)]
        return ops.cast(ops.concat(parts, 2), CODES[inputs.case.option("codes")].long_name)

    def put(self, given: Arrays, name: str, codes: Any, slots: Any, inputs: Inputs) -> Any:
        """The pool of codes with the last of `codes` (B, Hkv, Lk, .) in their `slots` (B, Lk)."""
        ops, scale = self.ops, given[name.replace("codes", "scale")]
        pool = slots_first(ops, ops.like(given[name], scale), inputs)
        tokens = ops.transpose(ops.like(codes, scale)[:, :, -inputs.sizes.Lq :], (0, 2, 1, 3))
        dtype = CODES[inputs.case.option("codes")].long_name
        return ops.cast(slots_first(ops, stored(ops, pool, tokens, slots), inputs), dtype)

    def scaled(self, name: str, rest: Arrays, query: Any) -> Any:
        """Keys or values in the query's dtype."""
        ops, scale = self.ops, rest[f"{name}_scale"]
        codes = ops.like(rest[f"{name}_codes"], scale)
        if f"{name}_zero" in rest:
            codes = codes - ops.like(rest[f"{name}_zero"], scale)
        return ops.like(codes * scale, query)

    def by_head(self, x: Any, inputs: Inputs) -> Any:
        """Keys or values for every query head."""
        group = inputs.sizes.group if x.shape[1] == inputs.sizes.Hkv else 1
        return self.ops.repeat(x, group, 1) if group > 1 else x


class TextbookQuantizedWrite(OverCodes):
    """x / scale + zero, clipped to the range of the codes and rounded to the nearest one."""

    name = "textbook-quantized-write"
    operator = QUANTIZED_WRITE
    declared = Declared(numerics="exact", features=WRITE_FEATURES)
    own_class = True

    def compute(self, x: Arrays, inputs: Inputs) -> tuple[Any, ...]:
        arrays = by_component(x, inputs, self.ops.repeat)
        return tuple(self.written(name, arrays, inputs) for name in KINDS)
