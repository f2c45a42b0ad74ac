"""Multi-head latent attention, in both forms.

    unabsorbed   k = c W^UK, v = c W^UV, stored;   softmax(scale (q k^T + q^R k^R^T)) v
    absorbed     q~ = q W^UK^T, stored;   a = softmax(scale (q~ c^T + q^R k^R^T)) c, stored;   a W^UV

The forms are equal by the associativity of products, and round other numbers. Bounds are those of the
primitives (`references.primitives.latent`): the unabsorbed form has keys with errors gamma_R |c| |W| +
u_o |k|, the absorbed form queries with errors gamma_D |q| |W| + u_o |q~|, and an average with errors
relative to |a| |W|. Either bound may be several times the other. `Roundoffs.absorbs` says which form is
meant; None stands for either, elementwise the larger bound.

Latents that are codes times scales are exact in the reference, and have the errors of keys that are codes
(`references.quantized`): (u_s + u_p) |c|, whether scales multiply codes, or sums over a tile. They have
no gradient.

Source: DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434 (2024), section 2.1.2 and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.references.composition import Composition, Problem
from attention_conformance.references.in_pages import InPages
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.primitives.arranged import MovedAxis, Reshaped
from attention_conformance.references.primitives.attend import Attend, LogSumExp
from attention_conformance.references.primitives.latent import (
    HeadProjection,
    ProjectedAverage,
    ProjectedLatents,
    ScoreSum,
)
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import ExactScores, Scores, has_exact_scores
from attention_conformance.references.quantized import with_product_errors
from attention_conformance.references.rounding import Bounded, Roundoffs
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.latent import dequantized, plain_operands


def compose(problem: Problem) -> Composition:
    """Returns the output (B, H, Lq, Dv) and the log-sum-exp (B, H, Lq)."""
    u, s = problem.u, problem.sizes
    pairs, latent = Pairs.of(problem), latents(problem)
    w_uk, w_uv = problem.leaf("w_uk"), problem.leaf("w_uv")

    def scores(query: Node, key: Node, rope: Node) -> Node:
        """Returns the scores of `query` and `key` plus the scores of the rotary queries and the rotary
        keys `rope`."""
        parts = ((query, key), (problem.leaf("query_rope"), rope))
        plain_part, rotary_part = (Scores(u, q, k, problem.scale, pairs) for q, k in parts)
        score_sum = ScoreSum(plain_part, rotary_part)
        if not has_exact_scores(problem.inputs):
            return score_sum
        q, k, _ = plain_operands(problem.arrays)
        return ExactScores(score_sum, q, k, float(problem.scale))

    def as_one_head(x: Node) -> Node:
        """Returns x (B, Lk, .), which all heads share, as (B, 1, Lk, .)."""
        return Reshaped(x, (s.B, 1, s.Lk, x.shape[-1]))

    query, rope = problem.leaf("query"), as_one_head(problem.leaf("key_rope"))
    output: Node
    if u.absorbs:
        key = as_one_head(latent)
        absorbed_query = HeadProjection(query, MovedAxis(w_uk, 0, 2))
        attend = Attend(u, scores(absorbed_query, key, rope), key, pairs)
        output = ProjectedAverage(attend, MovedAxis(w_uv, 1, 0))
    else:
        width = s.H * (s.D + s.Dv)
        key, value = (
            MovedAxis(ProjectedLatents(u, latent, w, joint_features=width), 2, 1)
            for w in (w_uk, w_uv)
        )
        output = attend = Attend(u, scores(query, key, rope), value, pairs)
    return Composition(output, {"lse": LogSumExp(attend)}, pairs.keys)


def latents(problem: Problem) -> Leaf:
    """Returns the leaf of the latents (B, Lk, R). Latents that come as codes are a constant with
    errors."""
    if "latent" in problem.arrays:
        return problem.leaf("latent")
    exact = Bounded.exact(dequantized(problem.arrays))
    return Leaf(problem.u, with_product_errors(exact, problem.u))


class _Latent(InPages):
    """Latent attention in the form that the roundoffs declare, or with the larger bound of both forms."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the output and the log-sum-exp, with their bounds. Raises NoExtendedPrecision."""
        return self.in_declared_form(super().forward, rounding, inputs, empty_rows=empty_rows)

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """Gradients of all arrays, as `Reference.vjp`."""
        options = {"empty_rows": empty_rows, "output": output}
        return self.in_declared_form(super().vjp, rounding, inputs, cotangent, **options)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """Returns the JVP of the output, as `Reference.jvp`."""
        return self.in_declared_form(super().jvp, rounding, inputs, tangents, empty_rows=empty_rows)

    def in_declared_form(
        self, compute: Callable[..., Outputs], u: Roundoffs, *arguments: Any, **options: Any
    ) -> Outputs:
        """Returns `compute(*arguments, roundoffs, **options)` in the form that `u.absorbs` declares. If
        it is None, both forms are computed, and each element has the larger bound."""
        if u.absorbs is not None:
            return compute(*arguments, u, **options)
        forms = (replace(u, absorbs=absorbs) for absorbs in (False, True))
        unabsorbed, absorbed = (compute(*arguments, form, **options) for form in forms)
        arrays = {
            name: Bounded(x.value, np.maximum(x.error, absorbed.arrays[name].error))
            for name, x in unabsorbed.arrays.items()
        }
        return replace(unabsorbed, arrays=arrays)


reference = _Latent(compose)
