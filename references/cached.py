"""Attention with a cache: every chunk is plain attention (`references.sdpa`) over the tokens that are in
the cache, in the order of their positions, under a causal mask that ends at the chunk's last token.

Bound: that of the chunk alone, over the keys that attend. A cache holds keys and values in the dtype of
the case, and copies, moves and overwrites their bits, so keeping them adds no rounding. A ring attends
its slots in another order: the bound of a row of n keys allows any order of the sums. Slots that hold no
key, or a hidden one, add exact zeros.

Codes. A cache that keeps codes (`Roundoffs.codes`), of which nobody but the cache knows, promises less. A
key k of a token and head has the scale s = max_i |k_i| / c, where c is the largest code, so nothing is
clipped. A code of k / s is off by at most b as in `references.quantized_write`, s b in the units of k:

    |dk_i| <= s max(u_c (|t_i| + dt), e_c / 2) + s dt,   t = k / s,   dt = 4 u_s |t_i| + e_s

- dt has one rounding more than there, because the scale is computed.
- With zero points the range of a token is at most twice its largest magnitude, in twice as many codes, so
  the step is not wider. The zero point is rounded, too, so a number at the end of the range is up to half
  a step beyond the last code: still half a step away.
- Reading rounds scale times code again: (u_s + u_p) (|k| + |dk|).

Values are off likewise. The chunk's own tokens may be attended as they came, or as codes. So the bound is
that of attention over such keys and values, which `references.primitives.softmax` has to all orders in
dk. There is no variance model for codes.

If the call rotates queries and keys, both have the errors of a rotation at their positions
(`references.rotary`), stored in the dtype of the case, and the scores inherit these errors. Positions
count from the first token in the cache: the scores depend on differences of positions alone, so that
positions behind left padding, or from the beginning of a document, are smaller, with smaller errors.

The output is forward only: serving differentiates nothing.

Source: Vaswani et al. 2017, section 3.2.3 (masked positions); Shazeer, Fast Transformer Decoding, arXiv
1911.02150 (2019), section 2.4.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.references.blocked import bounded
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.rotation import Rotated
from attention_conformance.references.primitives.scores import has_exact_scores
from attention_conformance.references.quantized import with_product_errors
from attention_conformance.references.quantized_write import code_error
from attention_conformance.references.rotary import table
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    nan_to_inf,
    precision_for,
    rounded_input,
)
from attention_conformance.references.sdpa import attended
from attention_conformance.references.steps import split_steps
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import Rotation
from attention_conformance.suite.spec.operators.scripts import rotation
from attention_conformance.suite.spec.operators.views import View, views


class ChunkedReference(Reference):
    """Plain attention chunk by chunk, without derivatives."""

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. There is no standard deviation if keys have
        errors before they attend, and for scores that no store rounds. Raises NoExtendedPrecision.
        """
        s, rope = inputs.sizes, rotation(inputs.case)
        is_composed = rope is not None or bool(rounding.codes) or has_exact_scores(inputs)
        shape = (s.B, s.H, s.Lq, s.Dv)
        output = Bounded(np.zeros(shape, precision_for(inputs.dtype)), np.zeros(shape))
        deviation = np.zeros(shape) if inputs.dtype.is_half and not is_composed else None
        problem = Problem(inputs, rounding, "zeros", "zeros")
        for n, view in enumerate(views(inputs.case)):
            if is_composed:
                rows = chunk_rows(problem, view)
                view.put(output.value, rows.value)
                view.put(output.error, rows.error)
                continue
            part = bounded(
                inputs, rounding, view.queries(inputs.query),
                *map(view.gathered, (inputs.key, inputs.value)),
                part=n, mask=view.mask[:, None], bias=view.bias(inputs.bias),
                features=view.features(inputs.features),
            )  # fmt: skip
            part_output = part.arrays["output"]
            view.put(output.value, part_output.value)
            view.put(output.error, part_output.error)
            if deviation is not None and part.deviation is not None:
                view.put(deviation, part.deviation)
        return Outputs({"output": output}, np.ones((1, 1, s.Lq), int), deviation)


def chunk_rows(problem: Problem, view: View) -> Bounded:
    """Returns the output rows (b, H, rows, Dv) of a chunk. Its keys have errors of a rotation, of codes,
    or of both. A cache may rotate keys before or after it rounds them to codes: the larger error
    counts."""
    u, inputs, arrays = problem.u, problem.inputs, problem.arrays
    rope = rotation(inputs.case)

    def leaf(array: np.ndarray) -> Leaf:
        return Leaf(u, rounded_input(array, u))

    key, value = (view.gathered(arrays[name]) for name in ("key", "value"))
    query: Node = leaf(view.queries(arrays["query"]))
    rotated_key: Node = leaf(key)
    if rope is not None:
        query, rotated_key = (
            rotated(x, at, rope) for x, at in ((query, view.at), (rotated_key, view.positions))
        )
    if u.codes:
        code_key = with_code_errors(rotated_key.output, u)
        if rope is not None:
            unrotated_codes = Leaf(u, with_code_errors(Bounded.exact(key), u))
            rotated_codes = rotated(unrotated_codes, view.positions, rope).output
            code_key = Bounded(code_key.value, np.maximum(code_key.error, rotated_codes.error))
        rotated_key = Leaf(u, code_key)
    values = Leaf(u, with_code_errors(Bounded.exact(value), u)) if u.codes else leaf(value)
    rows, keys = query.shape[2], key.shape[2]
    features, precision = view.features(inputs.features), precision_for(inputs.dtype)
    score_steps, sink = split_steps(features, rows, keys, precision)
    sink_scores = None if sink is None else sink.operand
    pairs = Pairs((*query.shape[:3], keys), view.mask[:, None], sink=sink_scores)
    view_bias = view.bias(arrays.get("bias"))
    bias = None if view_bias is None else leaf(view_bias)
    attend = attended(problem, query, rotated_key, values, pairs, bias, score_steps, sink)
    return nan_to_inf(attend.output)


def rotated(x: Node, positions: np.ndarray, rope: Rotation) -> Rotated:
    """Returns x (b, H, n, D), rotated by its positions (b, n). Negative positions count as 0."""
    clipped = np.maximum(positions, 0).astype(x.output.value.dtype)
    return Rotated(x.u, x, *table(rope, clipped, x.u), rope)


def with_code_errors(x: Bounded, u: Roundoffs) -> Bounded:
    """Returns keys or values x (..., D) with the errors of a cache that keeps codes of the format
    `u.codes`. The value is unchanged."""
    code = CODES[u.codes or ""]
    scale = x.magnitude.max(-1, keepdims=True, initial=0.0) / code.max
    t = x.magnitude / np.where(scale > 0, scale, 1)
    rounding_error = scale * code_error(t, 4 * u.score * t + u.score_floor, code)
    return with_product_errors(Bounded(x.value, x.error + rounding_error), u)


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: attention with a cache has no derivatives."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = ChunkedReference(compose)
