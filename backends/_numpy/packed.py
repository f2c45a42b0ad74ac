"""Packed attention by definition: segment by segment."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy.attention import definition
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import segmented
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED, allowed_pairs


class SegmentBySegment(Implementation):
    """The reference of each segment, rounded once to the case's dtype."""

    name = "segment-by-segment"
    operator = PACKED
    declared = Declared(
        numerics="exact",
        features=FEATURES,
        refusals={"gradient": "NumPy differentiates nothing"},
        elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt, case = inputs.dtype, inputs.case
        alignment, scale = case.option("alignment"), case.option("scale")

        def call(
            query: Rounded,
            key: Rounded,
            value: Rounded,
            query_offsets: Rounded,
            key_offsets: Rounded,
        ) -> Rounded:
            out = np.zeros((*query.values.shape[:2], value.values.shape[-1]))
            starts, of = query_offsets.values, key_offsets.values
            for n in range(len(starts) - 1):
                rows, keys = slice(starts[n], starts[n + 1]), slice(of[n], of[n + 1])
                arrays = (x.values[at] for x, at in ((query, rows), (key, keys), (value, keys)))
                q, k, v = (x.transpose(1, 0, 2)[None] for x in arrays)
                mask = allowed_pairs(q.shape[2], k.shape[2], alignment)
                answer = definition(q, k, v, mask=mask, scale=scale, fmt=fmt)
                out[rows] = answer[0].transpose(1, 0, 2)
            return Rounded(out, fmt)

        return PreparedCall(call, segmented(self.backend, inputs))
