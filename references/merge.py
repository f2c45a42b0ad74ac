"""Merge of P partial outputs: a softmax over the parts, with their log-sum-exps as scores.

So reference and bounds are those of `references.sdpa` for one row of P keys per merged row, with a bias
as scores. Three errors are added to those of `references.primitives.softmax`:

    accumulator    A kernel that merges the parts one by one rounds up to P - 1 times where a joint merge
                   rounds once: (P - 1) u_acc stands for u_acc.
    log-sum-exp    The log-sum-exp of a group is up to log P above that of its heaviest part, and is
                   rounded before the exponential. This moves the weight of a group by at most
                   (P - 1) u_acc log P of itself, and the other weights in return. The output moves by
                   twice that times max |o_i - o|, the log-sum-exp by (P - 1) u_acc log P.
    difference     Kernels (ring attention) write o1 + w (o2 - o1) for two parts: difference and product
                   round relative to |o2 - o1|, for any weight. At most 4 (P - 1) u_acc max |o_i - o|.
                   For a cotangent g the gradient of o1 is g - w g, which rounds relative to |g|, and that
                   of l2 is w (1 - w) g . (o2 - o1), in which 1 - w is off by u_acc: at most 4 (P - 1)
                   u_acc |g|, and 4 (P - 1) u_acc sum |g| max |o_i - o|.

If the parts are wrong by d1 and d2 in their log-sum-exps and beta1 and beta2 in their outputs, the
merged output is wrong by at most

    tanh((|d1| + |d2|) / 4) |o1 - o2| + beta1 + beta2

because the weight of one of two parts is a logistic function of l1 - l2, which moves by at most tanh(d
/ 4) if its argument moves by d.

Source: Dao et al., FlashAttention, NeurIPS 2022, appendix B. The bounds are derived here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.references.blocked import bounded
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.primitives.arranged import MovedAxis, Reshaped
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.bias import Biased
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.rounding import Bounded, Roundoffs, magnitude
from attention_conformance.references.tape import Leaf
from attention_conformance.suite.spec.inputs import Inputs


def compose(problem: Problem) -> Composition:
    """Returns the merged output (B, H, Lq, Dv)."""
    s, u = problem.sizes, problem.u
    rows = s.B * s.H * s.Lq
    values = Reshaped(MovedAxis(problem.leaf("partial_output"), 0, 3), (rows, 1, s.Lk, s.Dv))
    weights = Reshaped(MovedAxis(problem.leaf("partial_lse"), 0, 3), (rows, 1, 1, s.Lk))
    lse = weights.output.value
    scores = Biased(u, Leaf(u, Bounded.exact(np.zeros_like(lse))), weights)
    attend = Attend(u, scores, values, Pairs(lse.shape, None, lse))
    return Composition(Reshaped(attend, (s.B, s.H, s.Lq, s.Dv)))


class _Merge(Reference):
    """The reference of the merge: one row of P keys per merged row."""

    def roundoffs(self, inputs: Inputs, u: Roundoffs) -> Roundoffs:
        """Returns `u` with (P - 1) u_acc for u_acc, because kernels may merge one part after the
        other."""
        return replace(u, accumulate=max(inputs.sizes.Lk - 1, 1) * u.accumulate)

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the merged output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes, and the
        log-sum-exp (B, H, Lq).

        Rows without keys in every part give 0 and -inf, for any `empty_rows`. Raises
        NoExtendedPrecision.
        """
        s, parts = inputs.sizes, inputs.sizes.Lk
        rows = s.B * s.H * s.Lq
        value, scores = (
            np.moveaxis(inputs.arrays[name], 0, 3) for name in ("partial_output", "partial_lse")
        )
        outputs = bounded(
            inputs, self.roundoffs(inputs, rounding),
            np.zeros((rows, 1, 1, 1)), np.zeros((rows, 1, parts, 1)),
            value.reshape(rows, 1, parts, s.Dv), bias=scores.reshape(rows, 1, 1, parts), lse=True,
        )  # fmt: skip
        output, lse = (
            outputs.arrays[name].reshape(*inputs.full_shape(name)) for name in ("output", "lse")
        )
        merge_error = (parts - 1) * rounding.accumulate
        lse_error = merge_error * np.log(max(parts, 1))
        distance = largest_distance(inputs, output.value)
        output = replace(output, error=output.error + (2 * lse_error + 4 * merge_error) * distance)
        lse = replace(lse, error=lse.error + lse_error)
        deviation = outputs.deviation
        if deviation is not None:
            deviation = deviation.reshape(output.value.shape)
        # No election: merging defines the output of rows without keys.
        keys = np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int)
        return Outputs({"output": output, "lse": lse}, keys, deviation)

    @np.errstate(all="ignore")
    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """As `Reference.vjp`, with the error of the difference."""
        outputs = super().vjp(inputs, cotangent, rounding, empty_rows, output)
        merged = self.forward(inputs, rounding).arrays["output"].value
        error = 4 * (inputs.sizes.Lk - 1) * rounding.accumulate * magnitude(cotangent)
        errors = {
            "partial_output": error,
            "partial_lse": (error * largest_distance(inputs, merged)).sum(-1),
        }
        arrays = {
            name: replace(gradient, error=gradient.error + errors[name])
            for name, gradient in outputs.arrays.items()
        }
        return replace(outputs, arrays=arrays)


def largest_distance(inputs: Inputs, output: np.ndarray) -> np.ndarray:
    """Returns max_i |o_i - o| over the parts i, float64 (B, H, Lq, Dv)."""
    return magnitude(inputs.arrays["partial_output"] - output).max(0, initial=0.0)


reference = _Merge(compose)
