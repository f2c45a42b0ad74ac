"""Layer norm: (x - mean) / sqrt(variance + epsilon) gain + offset, mean and variance over the features.

query (B, L, E) is x; key and value are not looked at; gain and offset (E,) or absent. See
`references.primitives.norm`. There are no rows without keys.

Source: Ba, Kiros, Hinton 2016, section 3.
"""

from __future__ import annotations

from references.composition import Composition, Problem, Reference
from references.primitives.norm import Norm


def compose(problem: Problem) -> Composition:
    """The output (B, L, E)."""
    x, gain, offset = problem.leaf("query"), problem.optional("gain"), problem.optional("offset")
    return Composition(Norm(problem.u, x, gain, offset, (2,), problem.inputs.epsilon))


reference = Reference(compose)
