"""Layer norm: (x - mean) / sqrt(variance + epsilon) gain + offset, mean and variance over the features.

x is query (B, L, E); gain and offset (E,), or absent; key and value are unused. No row is fully masked.
Bounds: `references.primitives.norm`.

Source: Ba, Kiros, Hinton 2016, section 3.
"""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.primitives.norm import Norm


def compose(problem: Problem) -> Composition:
    """The output (B, L, E)."""
    x, gain, offset = problem.leaf("query"), problem.optional("gain"), problem.optional("offset")
    return Composition(Norm(problem.u, x, gain, offset, (2,), problem.inputs.epsilon))


reference = Reference(compose)
