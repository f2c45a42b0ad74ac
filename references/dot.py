"""Dot-product (Luong) attention: scores s q . k with a scalar `scale` s, 1 if absent.

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev). Bounds: `references.primitives.scores`.

Source: Luong, Pham, Manning, EMNLP 2015.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.one_head import as_head, attended
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.tape import Node


def compose(problem: Problem) -> Composition:
    """The output (B, Lq, Ev), and the weights."""
    scale = problem.exact("scale")
    return scaled(problem, 1.0 if scale is None else scale.array.value.item(), scale)


def scaled(
    problem: Problem, scale: float | np.floating, learned: Node | None = None
) -> Composition:
    """Dot-product attention with any scale. `learned` is the leaf of a scale that is an array."""
    query, key = as_head(problem.leaf("query")), as_head(problem.leaf("key"))
    pairs = Pairs.of(problem)
    return attended(problem, Scores(problem.u, query, key, scale, pairs, learned=learned), pairs)


reference = Reference(compose)
