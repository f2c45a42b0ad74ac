"""Multi-head attention: concat_h attention(X_q W_h^Q + b, X_k W_h^K + b, X_v W_h^V + b) W^O + b.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev)
    kernels   query (Eq, H, D), key (Ek, Hkv, D), value (Ev, Hkv, Dv), output (H, Dv, Eo)
              without an output kernel, heads are concatenated
    biases    (H, D), (Hkv, D), (Hkv, Dv), (Eo,), or absent
    gate      kernel (Eq, H, Dv) and bias (H, Dv), or absent. Heads are multiplied by
              sigmoid(X_q W^G + b). The gate and its product with the heads are stored in the case's dtype
    gains     of query and key, (D,), or absent. Projected queries and keys are normalised per head:
              (x - mean) / sqrt(variance + epsilon) gain

Scores are scaled by 1 / sqrt(D). Query head h uses key/value head h // (H / Hkv). An additive bias and
the mask broadcast to (B, H, Lq, Lk). The output projection takes fully masked rows as elected.

Bounds are those of the primitives. Libraries scale the query and store it before the product. Every
step of the norms may be stored in the case's dtype in every class, because a class only says how a
softmax is computed.

Sources: Vaswani et al. 2017, section 3.2; Ainslie et al. 2023 (grouped queries); Dehghani et al. 2023,
section 2 (normalised queries and keys); Qiu et al., Gated Attention for Large Language Models, 2025.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.one_head import layer_composition
from attention_conformance.references.primitives.activation import Activation
from attention_conformance.references.primitives.arranged import MovedAxis, Reshaped
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.bias import Biased
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.norm import Norm
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.primitives.times import Times
from attention_conformance.references.tape import Node
from attention_conformance.suite.spec.vocabulary import OPERANDS


def compose(problem: Problem) -> Composition:
    """Returns the output (B, Lq, Eo), and if requested the weights."""
    output, attend = attended(problem, *(problem.leaf(name) for name in OPERANDS))
    return layer_composition(problem, output, attend)


def attended(problem: Problem, query: Node, key: Node, value: Node) -> tuple[Node, Attend]:
    """Returns the output (B, Lq, Eo), and the attention of the heads before gate and projection."""
    attend = heads(problem, query, key, value)
    return gated_and_projected(problem, attend), attend


def heads(problem: Problem, query: Node, key: Node, value: Node) -> Attend:
    """Returns the attention of all heads, (B, H, Lq, Dv), before gate and output projection. `query`,
    `key` and `value` (B, L, width) are not yet projected."""
    u, pairs = problem.u, Pairs.of(problem)
    q, k, v = (
        _projected_heads(problem, x, name)
        for x, name in zip((query, key, value), OPERANDS, strict=True)
    )
    scores: Node = Scores(u, q, k, problem.scale, pairs, scaled_query=True)
    bias = problem.optional_leaf("bias")
    if bias is not None:
        scores = Biased(u, scores, bias)
    return Attend(u, scores, v, pairs)


def gated_and_projected(problem: Problem, attended: Node) -> Node:
    """Returns the output (B, Lq, Eo): the heads `attended` (B, H, Lq, Dv) after gate and output
    projection. A gate or projection that the problem lacks is skipped."""
    u, s, gate = problem.u, problem.sizes, problem.optional_leaf("gate_kernel")
    if gate is not None:
        bias = problem.exact_leaf("gate_bias")
        gates = Linear(u, problem.leaf("query"), gate, bias, "gate_bias")
        attended = Times(u, attended, MovedAxis(Activation(u, gates, "sigmoid"), 2, 1))
    output: Node = Reshaped(MovedAxis(attended, 1, 2), (s.B, s.Lq, s.H * s.Dv))
    kernel = problem.optional_leaf("output_kernel")
    if kernel is not None:
        flat = Reshaped(kernel, (s.H * s.Dv, kernel.array.shape[-1]))
        output = Linear(u, output, flat, problem.exact_leaf("output_bias"), "output_bias")
    return output


def _projected_heads(problem: Problem, x: Node, name: str) -> Node:
    """Returns query, key or value (`name`) after its projection, (B, heads, L, size), normalised if there
    is a gain."""
    u, kernel = problem.u, problem.leaf(f"{name}_kernel")
    bias, operands = f"{name}_bias", OPERANDS if problem.inputs.self_attention else (name,)
    # All projections of one tensor may be one product.
    projections = (*operands, "gate") if "query" in operands else operands
    kernels = [f"{projection}_kernel" for projection in projections]
    widths = [math.prod(problem.arrays[n].shape[1:]) for n in kernels if n in problem.arrays]
    joint_features = sum(widths) if len(widths) > 1 else 0
    heads = MovedAxis(Linear(u, x, kernel, problem.exact_leaf(bias), bias, joint_features), 2, 1)
    gain = problem.optional_leaf(f"{name}_gain")
    if gain is None:
        return heads
    B, H, L, D = heads.shape
    steps = replace(u, step=max(u.step, u.output))
    rows = Reshaped(heads, (B, H * L, D))
    normalised = Norm(steps, rows, gain, None, (2,), problem.inputs.epsilon)
    return Reshaped(normalised, (B, H, L, D))


reference = Reference(compose)
