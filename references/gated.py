"""Gated self-attention: (concat_h attention_h * sigmoid(X W^G + b)) W^O + b.

Arrays and attention as in `references.multi_head`; gate kernel (E, H, Dv), gate bias (H, Dv). The gate
and its product with the heads are stored in the case's dtype.

Source: Qiu et al., Gated Attention for Large Language Models, 2025.
"""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.multi_head import heads, mixed
from attention_conformance.references.one_head import of_layer
from attention_conformance.references.primitives.activation import Activation
from attention_conformance.references.primitives.arranged import Moved
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.times import Times
from attention_conformance.suite.spec.vocabulary import OPERANDS


def compose(problem: Problem) -> Composition:
    """The output (B, Lq, Eo)."""
    u, query = problem.u, problem.leaf("query")
    attend = heads(problem, *(problem.leaf(name) for name in OPERANDS))
    bias = problem.exact("gate_bias")
    gate = Activation(
        u, Linear(u, query, problem.leaf("gate_kernel"), bias, "gate_bias"), "sigmoid"
    )
    return of_layer(problem, mixed(problem, Times(u, attend, Moved(gate, 2, 1))), attend)


reference = Reference(compose)
