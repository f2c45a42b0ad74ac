"""Scaled dot-product attention without heads and parameters: scores q . k / sqrt(D).

query (B, Lq, D), key (B, Lk, D), value (B, Lk, Ev). Bounds: `references.primitives.scores`.

Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

from attention_conformance.references import dot
from attention_conformance.references.composition import Composition, Problem, Reference


def compose(problem: Problem) -> Composition:
    """The output (B, Lq, Ev), and the weights."""
    return dot.scaled(problem, problem.scale)


reference = Reference(compose)
