"""Attention with a cache by definition: chunk by chunk over all tokens that are in the cache."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy.attention import definition
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends._numpy.rotary import complex_product
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import CACHED, FEATURES
from attention_conformance.suite.spec.operators.rotary import Rotation
from attention_conformance.suite.spec.operators.scripts import rotation
from attention_conformance.suite.spec.operators.views import views


def rotated(x: np.ndarray, positions: np.ndarray, turn: Rotation) -> np.ndarray:
    """x (b, H, n, D) rotated by positions (b, n)."""
    theta = frequencies(turn, positions.astype(np.float64)).theta
    return complex_product(x, np.exp(1j * positions[:, None, :, None] * theta), turn)


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
        fmt, s, turn = inputs.dtype, inputs.sizes, rotation(inputs.case)

        def call(query: Rounded, key: Rounded, value: Rounded) -> Rounded:
            out = np.zeros((s.B, s.H, s.Lq, s.Dv))
            for view in views(inputs.case):
                k, v = (view.gathered(x.values) for x in (key, value))
                q, mask = view.queries(query.values), view.mask[:, None]
                if turn is not None:
                    q, k = (rotated(x, at, turn) for x, at in ((q, view.at), (k, view.positions)))
                settings = {**view.features(inputs.features), "bias": view.bias(inputs.bias)}
                settings |= {"mask": mask, "scale": inputs.scale, "fmt": fmt}
                view.put(out, definition(q, k, v, **settings))
            return Rounded(out, fmt)

        return PreparedCall(call, sequences(self.backend, inputs))
