"""Textbook writing into pages: tokens are put into the flat pools, skipped ones into a slot behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import written
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.in_pages import put
from attention_conformance.backends.textbook.operator import TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged_write import FEATURES, PAGED_WRITE


class TextbookPagedWrite(TextbookOperator):
    """Writing in operations that all frameworks have; the pools of the call stay as they are."""

    name = "textbook-paged-write"
    operator = PAGED_WRITE
    declared = Declared(numerics="exact", features=FEATURES)
    own_class = True

    def prepare(self, inputs: Inputs) -> PreparedCall:
        ops, hnd = self.ops, inputs.case.option("layout") == "hnd"
        skipped = inputs.arrays["slot_mapping"] < 0
        arguments = written(self.backend, inputs) | {"skipped": self.backend.array(skipped, None)}

        def write(cache: Any, tokens: Any, slots: Any, skipped: Any) -> Any:
            paged = ops.transpose(cache, (0, 2, 1, 3)) if hnd else cache
            pages, size = paged.shape[:2]
            larger = ops.concat([paged, paged[:1]], 0)  # the last page takes skipped tokens
            paged = put(ops, larger, ops.fill(slots, skipped, pages * size), tokens)[:pages]
            return ops.transpose(paged, (0, 2, 1, 3)) if hnd else paged

        def call(
            key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, skipped: Any
        ) -> tuple[Any, Any]:
            return (
                write(key_cache, key, slot_mapping, skipped),
                write(value_cache, value, slot_mapping, skipped),
            )

        constants = (np.shape(inputs.arrays["key_cache"]), inputs.dtype.name, hnd)
        return ops.called(self, PreparedCall(call, arguments, inputs.outputs, constants=constants))
