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
from attention_conformance.references.primitives.scores import has_unrounded_scores
from attention_conformance.references.quantized import scaled
from attention_conformance.references.quantized_write import code_error
from attention_conformance.references.rotary import table
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    precision_for,
    rounded_input,
    without_nan_bounds,
)
from attention_conformance.references.sdpa import attended
from attention_conformance.references.steps import steps
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import Rotation
from attention_conformance.suite.spec.operators.scripts import rotation
from attention_conformance.suite.spec.operators.views import View, views


class OfChunks(Reference):
    """Plain attention chunk by chunk. It has no derivatives."""

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. There is no standard deviation if keys have
        errors before they attend, and for scores that no store rounds. Raises NoExtendedPrecision.
        """
        s, turn = inputs.sizes, rotation(inputs.case)
        composes = turn is not None or bool(rounding.codes) or has_unrounded_scores(inputs)
        shape = (s.B, s.H, s.Lq, s.Dv)
        output = Bounded(np.zeros(shape, precision_for(inputs.dtype)), np.zeros(shape))
        deviation = np.zeros(shape) if inputs.dtype.is_half and not composes else None
        problem = Problem(inputs, rounding, "zeros", "zeros")
        for n, view in enumerate(views(inputs.case)):
            if composes:
                answer = composed(problem, view)
                view.put(output.value, answer.value)
                view.put(output.error, answer.error)
                continue
            part = bounded(
                inputs, rounding, view.queries(inputs.query),
                *map(view.gathered, (inputs.key, inputs.value)),
                part=n, mask=view.mask[:, None], bias=view.bias(inputs.bias),
                features=view.features(inputs.features),
            )  # fmt: skip
            found = part.arrays["output"]
            view.put(output.value, found.value)
            view.put(output.error, found.error)
            if deviation is not None and part.deviation is not None:
                view.put(deviation, part.deviation)
        return Outputs({"output": output}, np.ones((1, 1, s.Lq), int), deviation)


def composed(problem: Problem, view: View) -> Bounded:
    """The rows (b, H, rows, Dv) of a chunk. Keys may have errors before they attend: of a rotation, of
    codes, or of both. A cache may rotate keys before they become codes, or when they are read."""
    u, inputs, arrays = problem.u, problem.inputs, problem.arrays
    turn = rotation(inputs.case)

    def leaf(array: np.ndarray) -> Leaf:
        return Leaf(u, rounded_input(array, u))

    key, value = (view.gathered(arrays[name]) for name in ("key", "value"))
    query: Node = leaf(view.queries(arrays["query"]))
    attending: Node = leaf(key)
    if turn is not None:
        query, attending = (
            turned(x, at, turn) for x, at in ((query, view.at), (attending, view.positions))
        )
    if u.codes:
        read_back = with_codes(attending.output, u)
        if turn is not None:
            read = turned(Leaf(u, with_codes(Bounded.exact(key), u)), view.positions, turn).output
            read_back = Bounded(read_back.value, np.maximum(read_back.error, read.error))
        attending = Leaf(u, read_back)
    values = Leaf(u, with_codes(Bounded.exact(value), u)) if u.codes else leaf(value)
    rows, keys = query.shape[2], key.shape[2]
    made = steps(view.features(inputs.features), rows, keys, precision_for(inputs.dtype))
    zero_key = None if made[1] is None else made[1].operand
    pairs = Pairs((*query.shape[:3], keys), view.mask[:, None], zero_key=zero_key)
    added = view.bias(arrays.get("bias"))
    bias = None if added is None else leaf(added)
    return without_nan_bounds(attended(problem, query, attending, values, pairs, bias, made).output)


def turned(x: Node, positions: np.ndarray, turn: Rotation) -> Rotated:
    """x (b, H, n, D) rotated by positions (b, n); negative ones count as 0."""
    at = np.maximum(positions, 0).astype(x.output.value.dtype)
    return Rotated(x.u, x, *table(turn, at, x.u), turn)


def with_codes(x: Bounded, u: Roundoffs) -> Bounded:
    """Keys or values (..., D) as a cache of codes gives them back."""
    code = CODES[u.codes or ""]
    scale = x.size.max(-1, keepdims=True, initial=0.0) / code.max
    t = x.size / np.where(scale > 0, scale, 1)
    read_back = scale * code_error(t, 4 * u.score * t + u.score_floor, code)
    return scaled(Bounded(x.value, x.error + read_back), u)


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: derivatives are not asked."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = OfChunks(compose)
