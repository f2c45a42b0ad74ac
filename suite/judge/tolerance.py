"""How far rounding may move an answer. The one module that owns tolerance.

Model. Inputs are exact in their dtype. A *numerics class* says where an implementation rounds, as
five unit roundoffs: u_acc (sums, exp, scaling), u_s (scores as stored), u_e (the steps of the softmax
as stored), u_p (weights as stored before the product with the values) and u_o (output, always the
case's dtype):

    exact     u_acc = u_s = u_p = float32 (float64 for float64); u_e = 0
    fused     u_p = case dtype
    eager     u_s = u_p = case dtype: matmul, softmax, matmul as separate operations
    stepwise  u_s = u_e = u_p = case dtype: subtraction, exp, sum and quotient, too, separately
    working   u_acc = u_s = u_e = u_p = case dtype: sums, too, in the working precision
    single    u_acc = u_s = u_p = float32 whatever the dtype: float64 with less precision inside

`stepwise` was seen in `jax.nn.softmax` called eagerly, which stores s - m, exp(s - m), their sum and
the quotient: u_e |s_j - m| on the score, and 3 u_e on every weight.

The last two are declared by implementations that compute with less precision than their dtype
promises, so that what else they do can still be judged; that they do is a failure of its own
(`suite/test_precision.py`). `working` was seen in TensorFlow's float16 einsum on CPU, `single` in the
float64 softmax of jax.nn. The bound of `working` grows with the length of the sums, so much that in 16
bits it lets faults through: neither class is ever assumed.

Bound, element by element, for weights p, output o, n attended keys, maximum m, gamma_n(u) =
n u / (1 - n u):

    |ds_j|  <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)
    eps_j    = u_acc |s_j - m| + 4 u_acc
    |do|    <= A sum_j p_j (|ds_j| + eps_j + u_e |s_j - m|)(|v_j| + |o|)
               + (u_p + 3 u_e + gamma_{n+4}(u_acc)) sum_j p_j |v_j| + (gamma_{n+4}(u_acc) + u_o) |o|
               + w sum_j |v_j| + (n + 1) e_acc + e_o

Three terms go beyond first order. With d_j the error of a score, the perturbed softmax gives exactly

    o' - o = sum_j p_j (e^{d_j} - 1)(v_j - o) / sum_j p_j e^{d_j},

so that with |d_j| <= d the first-order sum must be multiplied by A = e^d expm1(d) / d. A is 1 + 1.5 d:
nothing for float32, and what keeps bfloat16 scores of size 100 judged rightly. And weights underflow by
up to w: as they are stored by half the smallest subnormal of their dtype (float16: 2^-25, which is not
small beside 2049 weights of 2^-11), and as exp gives them by half that of the accumulator. And every
product p_j v_j, every rescaling of a running sum and the last division may underflow by half the smallest
subnormal of the accumulator: together at most (n + 1) e_acc, besides e_o, the smallest subnormal of the
output's dtype.

softcap multiplies |ds| by its derivative, and adds the error of tanh, 4 u_acc and u_s times the cap's
value. Where an implementation declares that it flushes subnormals, the smallest normal number stands
for the smallest subnormal one.

An exponential that is approximated with a relative error x, which an implementation declares, adds
x sum_j p_j (|v_j| + |o|). (PyTorch's flash kernel for 16-bit dtypes on CPU takes 2^f for 1 + f - p(f)
with a cubic p and is off by up to 1.07e-4, a fifth of float16's roundoff.)

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1 (gamma_n) and 3.3
(running error analysis); Blanchard, Higham, Higham, IMA J. Numer. Anal. 41(4), 2021 (softmax);
Higham, Mary, arXiv 1906.10465 (the variance model behind `rms`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from references.definition import Reference
from references.running import Roundoffs, gamma
from suite.spec.dtypes import DTYPES, DType
from suite.spec.vocabulary import NUMERICS

RMS_LIMIT = 1.5
"""Largest root mean square of error / standard deviation in the 16-bit dtypes. The variance model takes
every rounding for uniform over half an ulp of the top of its binade: healthy answers stay near
0.8; what lies beyond 1.5 is not rounding but a small error made everywhere, like a scale off by 1 %."""

RMS_CLASSES = ("exact", "fused", "eager")
"""The classes in which the statistic is a verdict. The variance model knows neither the steps of a
softmax nor sums in 16 bits: over 20 seeds healthy `stepwise` answers reached 1.52, `working` ones 3.6,
all others 1.27."""

RMS_ELEMENTS = 100
"""The statistic is a verdict from this many elements on."""


def roundoffs(numerics: str, fmt: DType, flushes: bool = False) -> Roundoffs:
    """The roundoffs of a class in a dtype. Raises ValueError for an unknown class."""
    if numerics not in NUMERICS:
        raise ValueError(f"unknown numerics class {numerics!r}; valid: {', '.join(NUMERICS)}")
    doubled = fmt.name == "f64" and numerics != "single"
    internal = DTYPES["f64"] if doubled else DTYPES["f32"]
    sums = fmt if numerics == "working" else internal
    scores = fmt if numerics in ("eager", "stepwise", "working") else internal
    weights = internal if numerics in ("exact", "single") else fmt

    def lost(stored: DType) -> float:
        return stored.smallest_normal if flushes else stored.smallest_subnormal / 2

    return Roundoffs(
        accumulate=sums.unit_roundoff,
        score=scores.unit_roundoff,
        step=fmt.unit_roundoff if numerics in ("stepwise", "working") else 0.0,
        weight=weights.unit_roundoff,
        output=fmt.unit_roundoff,
        weight_underflow=lost(weights) + lost(sums),
        product_underflow=sums.smallest_normal if flushes else sums.smallest_subnormal,
        floor=fmt.smallest_normal if flushes else fmt.smallest_subnormal,
    )


def gradient_roundoffs(
    numerics: str, fmt: DType, flushes: bool = False, narrow_reductions: bool = False
) -> Roundoffs:
    """The roundoffs of a class for gradients; with `narrow_reductions` sums over broadcast axes are made
    in the case's dtype."""
    u = roundoffs(numerics, fmt, flushes)
    return replace(u, reduction=fmt.unit_roundoff) if narrow_reductions else u


def bound(
    reference: Reference,
    numerics: str,
    fmt: DType,
    flushes: bool = False,
    exp_error: float = 0.0,
) -> np.ndarray:
    """Largest |error| that rounding explains, float64 (B, H, Lq, Dv); 0 where the answer is exact.

    `exp_error` is the relative error of an exponential that is approximated, not rounded.
    Raises ValueError where the reference carries no terms.
    """
    t = reference.terms
    if t is None:
        raise ValueError("the reference was computed without terms; pass terms=True")
    u = roundoffs(numerics, fmt, flushes)
    peak = u.accumulate * t.peak_accumulate + u.score * t.peak_score + u.step * t.peak_shift
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.where(
            peak > 0, np.exp(peak) * np.expm1(peak) / np.where(peak > 0, peak, 1), 1.0
        )
        per_summand = gamma(t.summands, u.accumulate) / t.summands
        scores = growth[..., None] * (
            per_summand * t.accumulate + u.score * t.score + u.step * t.shift
        )
    products = gamma(t.keys + 4, u.accumulate)[..., None]
    size = np.abs(reference.output).astype(np.float64)
    out = (
        scores
        + exp_error * (t.value + size)
        + (u.weight + 3 * u.step + products) * t.value
        + (products + u.output) * size
        + u.weight_underflow * t.underflow
        + u.product_underflow * (t.keys + 1)[..., None]
        + u.floor
    )
    exact = (t.keys == 0)[..., None] & (size == 0)
    return np.where(exact, 0.0, out)


def standard_deviation(reference: Reference, numerics: str, fmt: DType) -> np.ndarray:
    """Standard deviation of the error where every rounding is uniform in half an ulp, (B, H, Lq, Dv).

    Each rounding of relative size u has variance u^2 / 3. Meant for the 16-bit dtypes, where the
    roundoff of sums is negligible.
    """
    t = reference.terms
    if t is None:
        raise ValueError("the reference was computed without terms; pass terms=True")
    u = roundoffs(numerics, fmt)
    size = np.square(reference.output.astype(np.float64))
    variance = u.score**2 * t.score_var + u.weight**2 * t.value_var + u.output**2 * size
    return np.sqrt(variance / 3.0)


def ratios(error: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """|error| / limit with 0 / 0 = 0; anything above a limit of 0 is infinite."""
    magnitude = np.abs(error).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(magnitude == 0, 0.0, magnitude / limit)


def grade(
    reference: Reference,
    error: np.ndarray,
    fmt: DType,
    flushes: bool = False,
    exp_error: float = 0.0,
) -> str:
    """The narrowest class whose bound holds for every element; "none" where even the widest fails.

    For float32 and float64 the classes coincide, so that the grade is `exact` or `none`.
    """
    for numerics in NUMERICS:
        if not (ratios(error, bound(reference, numerics, fmt, flushes, exp_error)) > 1).any():
            return numerics
    return "none"
