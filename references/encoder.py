"""A Transformer encoder layer (`suite.spec.operators.encoder`).

With a the attention of `references.multi_head`, layer norms n1 and n2, and the feed-forward network
f(y) = g(y W1 + b1) W2 + b2:

    post   y = n1(x + a(x)),   z = n2(y + f(y))
    pre    y = x + a(n1(x)),   z = y + f(n2(y))

Bounds are those of the parts. A residual x + a(x) is stored in the case's dtype; so is the sum of the
two gradients that meet at its x.

Sources: Vaswani et al. 2017, section 3.1; Xiong et al., ICML 2020 (pre-norm).
"""

from __future__ import annotations

from attention_conformance.references import multi_head
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.primitives.activation import Activation
from attention_conformance.references.primitives.arranged import Residual, SharedTensor
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.norm import Norm
from attention_conformance.references.tape import Node


def compose(problem: Problem) -> Composition:
    """Returns the output (B, L, E)."""
    u, x = problem.u, problem.leaf("query")
    pre = problem.inputs.case.option("pre")
    heads, attend = multi_head.attended(
        problem, *[SharedTensor(_norm(problem, x, "norm1") if pre else x)] * 3
    )
    y: Node = Residual(u, x, heads)
    if pre:
        z: Node = Residual(u, y, _network(problem, _norm(problem, y, "norm2")))
    else:
        y = _norm(problem, y, "norm1")
        z = _norm(problem, Residual(u, y, _network(problem, y)), "norm2")
    return Composition(z, keys=attend.pairs.keys)


def _norm(problem: Problem, x: Node, name: str) -> Norm:
    """Returns the layer norm of x with the parameters of `name` ("norm1" or "norm2")."""
    gain, offset = problem.leaf(f"{name}_gain"), problem.leaf(f"{name}_offset")
    return Norm(problem.u, x, gain, offset, (2,), problem.inputs.epsilon)


def _network(problem: Problem, y: Node) -> Node:
    """Returns the feed-forward network of y: g(y W1 + b1) W2 + b2."""
    hidden = _linear(problem, y, "linear1")
    active = Activation(problem.u, hidden, problem.inputs.case.option("activation"))
    return _linear(problem, active, "linear2")


def _linear(problem: Problem, x: Node, name: str) -> Linear:
    bias = f"{name}_bias"
    return Linear(problem.u, x, problem.leaf(f"{name}_kernel"), problem.exact_leaf(bias), bias)


reference = Reference(compose)
