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

The output is forward only: serving differentiates nothing.

Source: Vaswani et al. 2017, section 3.2.3 (masked positions); Shazeer, Fast Transformer Decoding, arXiv
1911.02150 (2019), section 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from references import sdpa
from references.blocked import bounded
from references.composition import Composition, Problem, Reference
from references.outputs import Outputs
from references.rounding import Bounded, Roundoffs, known, precision_for
from references.tape import Leaf
from suite.spec.case import Case
from suite.spec.dtypes import CODES
from suite.spec.inputs import Inputs
from suite.spec.operators.scripts import views
from suite.spec.operators.sdpa import SDPA
from suite.spec.vocabulary import OPERANDS


class OfChunks(Reference):
    """Plain attention chunk by chunk. It has no derivatives."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        s = inputs.sizes
        shape = (s.B, s.H, s.Lq, s.Dv)
        output = Bounded(np.zeros(shape, precision_for(inputs.dtype)), np.zeros(shape))
        deviation = np.zeros(shape) if inputs.dtype.is_half else None
        for n, view in enumerate(views(inputs.case)):
            operands = view.queries(inputs.query), *map(view.gathered, (inputs.key, inputs.value))
            mask, bias = view.mask[:, None], view.bias(inputs.bias)
            features = view.features(inputs.features)
            part = (
                over_codes(inputs, rounding, operands, mask, bias, features)
                if rounding.codes
                else bounded(
                    inputs, rounding, *operands, part=n, mask=mask, bias=bias, features=features
                )
            )
            found = part.arrays["output"]
            view.put(output.value, found.value)
            view.put(output.error, found.error)
            if deviation is not None and part.deviation is not None:
                view.put(deviation, part.deviation)
        return Outputs({"output": output}, np.ones((1, 1, s.Lq), int), deviation)


class FromCodes(Problem):
    """A chunk whose keys and values have been codes."""

    def leaf(self, name: str) -> Leaf:
        if name not in ("key", "value"):
            return super().leaf(name)
        x = Bounded.exact(self.arrays[name])
        return Leaf(self.u, Bounded(x.value, kept_error(x.size, self.u)))


def kept_error(size: np.ndarray, u: Roundoffs) -> np.ndarray:
    """How far a key or value (..., D) of this size is from what a cache of codes gives back."""
    code = CODES[u.codes or ""]
    scale = size.max(-1, keepdims=True, initial=0.0) / code.max
    t = size / np.where(scale > 0, scale, 1)
    error = 4 * u.score * t + u.score_floor
    step = np.maximum(code.unit_roundoff * (t + error), code.smallest_subnormal / 2)
    kept = scale * (step + error)
    return np.asarray(kept + (u.score + u.weight) * (size + kept) + u.weight_underflow)


def over_codes(
    inputs: Inputs, u: Roundoffs, operands: tuple[np.ndarray, ...], mask: np.ndarray,
    bias: np.ndarray | None, features: Mapping[str, Any],
) -> Outputs:  # fmt: skip
    """The rows of a chunk as plain attention (`references.sdpa`) over keys and values with errors."""
    (B, _, rows, _), keys = operands[0].shape, operands[1].shape[2]
    s = replace(inputs.sizes, B=B, Lq=rows, Lk=keys)
    case = Case.of(SDPA, s, inputs.dtype, scale=inputs.scale, softcap=inputs.case.option("softcap"))
    arrays = dict(zip(OPERANDS, operands, strict=True)) | ({} if bias is None else {"bias": bias})
    arrays |= {name: x for name, x in features.items() if isinstance(x, np.ndarray)}
    chunk = Inputs(case, arrays, s, mask)
    with np.errstate(all="ignore"):
        found = sdpa.compose(FromCodes(chunk, u, "zeros", "zeros")).output.output
    return Outputs({"output": known(found)}, np.ones((1, 1, s.Lq), int))


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: derivatives are not asked."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = OfChunks(compose)
