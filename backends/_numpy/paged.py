"""Paged attention by definition: sample by sample."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy.attention import definition
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import paged
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import slots_first
from attention_conformance.suite.spec.operators.paged import (
    FEATURES,
    PAGED,
    allowed,
    refuse_malformed,
)


class SampleBySample(Implementation):
    """The reference of each sample over the keys of its pages, rounded once to the case's dtype."""

    name = "sample-by-sample"
    operator = PAGED
    declared = Declared(
        numerics="exact",
        features=FEATURES | {"length-arrays"},
        bitwise=("rerun", "pages"),
        refusals={"gradient": "NumPy differentiates nothing"},
        elections={"nan-behind-last-key": "blocked"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt, case = inputs.dtype, inputs.case
        settings = {"scale": inputs.scale, "fmt": fmt, **inputs.features}

        def call(
            query: Rounded,
            key: Rounded,
            value: Rounded,
            query_offsets: Rounded,
            key_lengths: Rounded,
            page_table: Rounded,
        ) -> Rounded:
            out = np.zeros((*query.values.shape[:2], value.values.shape[-1]))
            starts, table = query_offsets.values, page_table.values
            pools = slots_first(case, key.values), slots_first(case, value.values)
            refuse_malformed(query.values, *pools, starts, key_lengths.values, table)
            for n, of in enumerate(key_lengths.values):
                rows = slice(starts[n], starts[n + 1])
                taken = (pool[table[n]] for pool in pools)
                k, v = (x.reshape(-1, *x.shape[2:])[:of].transpose(1, 0, 2)[None] for x in taken)
                q = query.values[rows].transpose(1, 0, 2)[None]
                mask = allowed(case, q.shape[2], int(of))
                answer = definition(q, k, v, mask=mask, **settings)
                out[rows] = answer[0].transpose(1, 0, 2)
            return Rounded(out, fmt)

        return PreparedCall(call, paged(self.backend, inputs))
