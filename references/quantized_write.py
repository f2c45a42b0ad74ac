"""Writing codes: t = x / scale + zero, and no code may be farther from t than half a step.

The expected value is t itself, between two codes, and the bound is that of rounding to the nearest code:

    |code - t| <= max(u_c (|t| + dt), e_c / 2) + dt        dt = 3 u_s |x / scale| + u_s |t| + e_s

- u_c is the unit roundoff of the codes and e_c their smallest subnormal: at most half a step of t as it
  was computed. Of e4m3 u_c = 2^-4 and e_c / 2 = 2^-10, of e5m2 2^-3 and 2^-17, of int8 and
  int4 e_c / 2 = 1/2.
- dt: the scale, its reciprocal and the product with x are stored like scores (u_s), and lose at most e_s
  by underflow. The term u_s |t| is that of the sum with a zero point, and is 0 without one.

Times the scale this is |x - scale (code - zero)| <= scale / 2 for int8, beside the roundings of dt.
Numbers beyond the range take the last code: clipping moves t and the code in the same way, so the bound
stays. The lowest code of int8 is -127 or -128, so t is clipped to -127.5, from which both are half a step
away; of int4 to -7.5.

Sources: IEEE 754-2019, section 4.3.1; Micikevicius et al., FP8 Formats for Deep Learning, arXiv
2209.05433 (2022), section 3. The bounds are derived here.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.outputs import Outputs, in_precision
from attention_conformance.references.rounding import Bounded, Roundoffs, magnitude
from attention_conformance.suite.spec.dtypes import CODES, Code
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import KINDS, broadcast, newest_scales


class WrittenCodes(Reference):
    """The codes of keys and of values, which have no derivatives."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns keys and values before they are rounded to codes, (B, Hkv, Lk, .), with the codes'
        bound.

        There are no rows without keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        codes = (unrounded_codes(inputs, name, rounding) for name in KINDS)
        arrays = dict(zip(inputs.outputs, codes, strict=True))
        return Outputs(arrays, np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int))


def unrounded_codes(inputs: Inputs, name: str, u: Roundoffs) -> Bounded:
    """Returns t, the numbers that become codes of new keys or values (array `name`) by rounding. Their
    error is the bound of the rounded code."""
    code = CODES[inputs.case.option("codes")]
    x = in_precision(inputs)[name]
    t = x / newest_scales(broadcast(inputs, f"{name}_scale"), x.shape[2])
    error = 3 * u.score * magnitude(t) + u.score_floor
    if inputs.case.option("zero"):
        t = t + newest_scales(broadcast(inputs, f"{name}_zero"), x.shape[2])
        error = error + u.score * magnitude(t)
    lowest = -code.max - (0.5 if code.is_whole else 0.0)
    t = np.clip(t, lowest, code.max)
    return Bounded(t, code_error(magnitude(t), error, code))


def code_error(size: np.ndarray, error: np.ndarray, code: Code) -> np.ndarray:
    """Returns the bound of |code - t|. `size` is |t|, and `error` the error of t before it is rounded to
    the nearest code."""
    step = np.maximum(code.unit_roundoff * (size + error), code.smallest_subnormal / 2)
    return np.asarray(step + error)


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: codes have no derivatives."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = WrittenCodes(compose)
