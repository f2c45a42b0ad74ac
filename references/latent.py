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
from attention_conformance.references.primitives.scores import (
    Scores,
    UnroundedScores,
    has_unrounded_scores,
)
from attention_conformance.references.quantized import scaled
from attention_conformance.references.rounding import Bounded, Roundoffs
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.latent import dequantized, plain


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv) and the log-sum-exp (B, H, Lq)."""
    u, s = problem.u, problem.sizes
    pairs, latent = Pairs.of(problem), latents(problem)
    w_uk, w_uv = problem.leaf("w_uk"), problem.leaf("w_uv")

    def scores(query: Node, key: Node, rope: Node) -> Node:
        parts = ((query, key), (problem.leaf("query_rope"), rope))
        one, two = (Scores(u, q, k, problem.scale, pairs) for q, k in parts)
        both = ScoreSum(one, two)
        if not has_unrounded_scores(problem.inputs):
            return both
        q, k, _ = plain(problem.arrays)
        return UnroundedScores(both, q, k, float(problem.scale))

    def shared(x: Node) -> Node:
        """What all heads share, (B, 1, Lk, .)."""
        return Reshaped(x, (s.B, 1, s.Lk, x.shape[-1]))

    query, rope = problem.leaf("query"), shared(problem.leaf("key_rope"))
    output: Node
    if u.absorbs:
        key = shared(latent)
        attend = Attend(
            u, scores(HeadProjection(query, MovedAxis(w_uk, 0, 2)), key, rope), key, pairs
        )
        output = ProjectedAverage(attend, MovedAxis(w_uv, 1, 0))
    else:
        features = s.H * (s.D + s.Dv)
        key, value = (
            MovedAxis(ProjectedLatents(u, latent, w, features=features), 2, 1) for w in (w_uk, w_uv)
        )
        output = attend = Attend(u, scores(query, key, rope), value, pairs)
    return Composition(output, {"lse": LogSumExp(attend)}, pairs.keys)


def latents(problem: Problem) -> Leaf:
    """The latents (B, Lk, R). Decoded ones are constants with errors."""
    if "latent" in problem.arrays:
        return problem.leaf("latent")
    return Leaf(problem.u, scaled(Bounded.exact(dequantized(problem.arrays)), problem.u))


class _Latent(InPages):
    """The form that the roundoffs declare; without a declaration the larger bound of both."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output and the log-sum-exp, with their bounds. Raises NoExtendedPrecision."""
        return self.either(super().forward, rounding, inputs, empty_rows=empty_rows)

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """Gradients of all arrays, as `Reference.vjp`."""
        more = {"empty_rows": empty_rows, "output": output}
        return self.either(super().vjp, rounding, inputs, cotangent, **more)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """The JVP of the output, as `Reference.jvp`."""
        return self.either(super().jvp, rounding, inputs, tangents, empty_rows=empty_rows)

    def either(
        self, answer: Callable[..., Outputs], u: Roundoffs, *arguments: Any, **more: Any
    ) -> Outputs:
        """What `answer` gives in the declared form, or with the larger of both bounds."""
        if u.absorbs is not None:
            return answer(*arguments, u, **more)
        one, two = (answer(*arguments, replace(u, absorbs=a), **more) for a in (False, True))
        arrays = {
            name: Bounded(x.value, np.maximum(x.error, two.arrays[name].error))
            for name, x in one.arrays.items()
        }
        return replace(one, arrays=arrays)


reference = _Latent(compose)
