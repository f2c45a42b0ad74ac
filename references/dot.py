"""Dot-product (Luong) attention: scores s q . k with a scalar `scale` s, 1 if absent.

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev). Bounds: `references.primitives.scores`.

Source: Luong, Pham, Manning, EMNLP 2015.
"""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.one_head import as_head, attend_head_scores
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores


def compose(problem: Problem) -> Composition:
    """Returns the output (B, Lq, Ev), and if requested the weights."""
    learned = problem.exact_leaf("scale")
    scale = 1.0 if learned is None else learned.array.value.item()
    query, key = as_head(problem.leaf("query")), as_head(problem.leaf("key"))
    pairs = Pairs.of(problem)
    return attend_head_scores(
        problem, Scores(problem.u, query, key, scale, pairs, learned=learned), pairs
    )


reference = Reference(compose)
