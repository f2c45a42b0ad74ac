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
    declared = Declared(
        numerics="exact",
        features=FEATURES,
        elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype
        s = inputs.sizes

        def call(query: Rounded, key: Rounded, value: Rounded) -> Rounded:
            out = np.zeros((s.B, s.H, s.Lq, s.Dv))
            for view in views(inputs.case):
                k, v = (view.gathered(x.values) for x in (key, value))
                q, mask = view.queries(query.values), view.mask[:, None]
                settings = {**view.features(inputs.features), "bias": view.bias(inputs.bias)}
                settings |= {"mask": mask, "scale": inputs.scale, "fmt": fmt}
                view.put(out, definition(q, k, v, **settings))
            return Rounded(out, fmt)

        return PreparedCall(call, sequences(self.backend, inputs))
