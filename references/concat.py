"""Concat (Luong) attention as Keras reads it: scores c sum_i tanh(s (q_i + k_i)).

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev); s is `scale` and c `concat_weight`, scalars, 1 if
absent. Bounds: `references.primitives.tanh_scores`, then the softmax.

Source: Luong, Pham, Manning, EMNLP 2015.
"""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.one_head import attend_scores
from attention_conformance.references.primitives.tanh_scores import TanhScores


def compose(problem: Problem) -> Composition:
    """Returns the output (B, Lq, Ev), and if requested the weights."""
    query, key = problem.leaf("query"), problem.leaf("key")
    scale, weight = problem.exact_leaf("scale"), problem.exact_leaf("concat_weight")
    scores = TanhScores(problem.u, query, key, scale=scale, weight=weight)
    return attend_scores(problem, scores)


reference = Reference(compose)
