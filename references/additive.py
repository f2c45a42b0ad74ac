"""Additive attention: scores w . tanh(W_q q + W_k k), output softmax(scores) value.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev)
    query_kernel (Eq, U), key_kernel (Ek, U)    if both are absent, Eq = Ek = U
    score_vector (U,)                           if absent, ones

Bounds: `references.primitives.linear`, `references.primitives.tanh_scores`, then the softmax.

Source: Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2.
"""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.one_head import attend_scores
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.tanh_scores import TanhScores
from attention_conformance.references.tape import Node


def compose(problem: Problem) -> Composition:
    """Returns the output (B, Lq, Ev), and if requested the weights."""
    kernels = {name: problem.optional_leaf(f"{name}_kernel") for name in ("query", "key")}
    joint_features = 0
    if problem.inputs.self_attention:
        joint_features = sum(
            kernel.array.shape[1] for kernel in kernels.values() if kernel is not None
        )

    def projected(name: str) -> Node:
        x, kernel = problem.leaf(name), kernels[name]
        return x if kernel is None else Linear(problem.u, x, kernel, joint_features=joint_features)

    query, key = projected("query"), projected("key")
    return attend_scores(
        problem, TanhScores(problem.u, query, key, problem.exact_leaf("score_vector"))
    )


reference = Reference(compose)
