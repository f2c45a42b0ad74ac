"""Attention with a cache by definition: chunk by chunk over all tokens that are in the cache."""

from __future__ import annotations

import numpy as np

from backends._numpy.attention import definition
from backends._numpy.engine import Rounded
from backends.declared import Declared
from backends.memory import sequences
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import CACHED, FEATURES
from suite.spec.operators.scripts import views


class ChunkByChunk(Implementation):
    """The reference of each chunk, rounded once to the case's dtype. No cache is kept."""

    name = "chunk-by-chunk"
    operator = CACHED
    declared = Declared(numerics="exact", features=FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype
        settings = {"scale": inputs.scale, "fmt": fmt, **inputs.features}

        def call(query: Rounded, key: Rounded, value: Rounded) -> Rounded:
            parts = []
            for view in views(inputs.case):
                k, v = (view.gathered(x.values) for x in (key, value))
                q, mask = query.values[:, :, view.rows], view.mask[:, None]
                parts.append(definition(q, k, v, mask=mask, **settings))
            return Rounded(np.concatenate(parts, 2), fmt)

        return PreparedCall(call, sequences(self.backend, inputs))
