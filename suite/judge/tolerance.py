"""Tolerance: how far rounding may move an answer, by the roundings of each numerics class. No other
module sets a tolerance.

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

The bounds that follow from these roundoffs stand beside the references: `references.rounding` (the
model), `references.sdpa` (its answer) and `references.primitives` (every step, with what it hands on to
gradients and tangents). An exponential that is approximated with a relative error x, running sums of
gradients that are stored, and sums over broadcast axes in 16 bits are roundoffs, too, which an
implementation declares.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1 (gamma_n) and 3.3
(running error analysis); Blanchard, Higham, Higham, IMA J. Numer. Anal. 41(4), 2021 (softmax);
Higham, Mary, arXiv 1906.10465 (the variance model behind `rms`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.references.rounding import Roundoffs
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.vocabulary import NUMERICS

MODEL_ERROR = 1.4
"""How far a right answer's root mean square may exceed that of the variance model, apart from chance.

This factor is measured, not derived: right answers in 16 bits reached 1.39. The model is of first order,
and takes roundings as independent, though a rounded constant (the scale) moves every element."""

RMS_CLASSES = ("exact", "fused", "eager", "stepwise")
"""The classes in which the root mean square decides. The variance model has no sums in 16 bits: over 20
seeds right `working` answers reached 3.6, all others 1.27."""

STORES = ("score", "step", "weight", "output", "reduction", "part")
"""The roundoffs of numbers that are stored."""

RMS_FALSE_ALARM = 1e-9
"""The largest probability that a right answer exceeds one statistical limit. A cell has one such limit;
in the checks of drawn roundings it has one for the size and one for each direction of every array."""


def roundoffs(
    numerics: str, fmt: DType, flushes: bool = False, backward: bool = False
) -> Roundoffs:
    """Returns the unit roundoffs of a class in a dtype. Raises ValueError for an unknown class.

    `flushes`: subnormals count as zero when stored and as operands of products. `backward`: the roundoffs
    of a derivative. Derivatives in bfloat16 always count as flushing. The election is observed in answers
    only, and derivatives use other kernels: dot products of bfloat16 flush operands and results in every
    mode of the processor (Intel, VDPBF16PS)."""
    flushes = flushes or (backward and fmt.name == "bf16")
    if numerics not in NUMERICS:
        raise ValueError(f"unknown numerics class {numerics!r}; valid: {', '.join(NUMERICS)}")
    in_f64 = fmt.name == "f64" and numerics != "single"
    internal = DTYPES["f64"] if in_f64 else DTYPES["f32"]
    sums = fmt if numerics == "working" else internal
    scores = fmt if numerics in ("eager", "stepwise", "working") else internal
    weights = internal if numerics in ("exact", "single") else fmt

    def underflow(stored: DType) -> float:
        return stored.smallest_normal if flushes else stored.smallest_subnormal / 2

    return Roundoffs(
        accumulate=sums.unit_roundoff,
        score=scores.unit_roundoff,
        step=fmt.unit_roundoff if numerics in ("stepwise", "working") else 0.0,
        weight=weights.unit_roundoff,
        output=fmt.unit_roundoff,
        weight_underflow=underflow(weights) + underflow(sums),
        exp_underflow=2 * internal.smallest_normal,
        product_underflow=sums.smallest_normal if flushes else sums.smallest_subnormal,
        floor=fmt.smallest_normal if flushes else fmt.smallest_subnormal,
        operand_underflow=sums.smallest_normal if flushes and backward else 0.0,
    )


def declared_roundoffs(
    declared: DeclaredRounding, numerics: str, fmt: DType, flushes: bool, backward: bool = False
) -> Roundoffs:
    """Returns the unit roundoffs of a class, changed by the implementation's other declarations. The
    error of a truncated product is up to one ulp. Arguments as in `roundoffs`."""
    base, declaration = roundoffs(numerics, fmt, flushes, backward), declared.in_dtype(fmt.name)
    if declaration["truncates_matmul"]:
        stored = base.score >= base.output
        base = replace(base, score=base.score * (1 + stored), output=2 * base.output)
    return replace(
        base,
        reduction=fmt.unit_roundoff if declaration["narrow_reductions"] else 0.0,
        part=fmt.unit_roundoff if declaration["stored_parts"] else 0.0,
        **{f.name: declaration[f.name] for f in fields(Roundoffs) if f.name in declaration},
    )


def in_both_dtypes(first: Roundoffs, second: Roundoffs) -> Roundoffs:
    """Returns the unit roundoffs of a call whose steps run in two dtypes (automatic mixed precision),
    from the unit roundoffs in each dtype.

    A number that one step stores may be rounded to the other dtype before the next step. So a stored
    number has the relative error (1 + u) (1 + u') - 1, and the sum of both underflows. Other roundoffs
    are the larger of the two. Declarations that are no numbers are those of the first dtype.
    """

    def combined(name: str) -> float:
        u, v = getattr(first, name), getattr(second, name)
        if name in ("weight_underflow", "floor"):
            return u + v
        return (1 + u) * (1 + v) - 1 if name in STORES else max(u, v)

    names = (f.name for f in fields(first) if isinstance(f.default, float) or f.default is MISSING)
    changes: dict[str, Any] = {name: combined(name) for name in names}
    return replace(first, **changes)


def chance_limit(independent: float, probability: float = RMS_FALSE_ALARM) -> float:
    """Returns a limit of the root mean square of z = error / standard deviation. Random roundings exceed
    the limit with at most this probability. `independent` is the number n of independent errors.

    A rounding is uniform, at most as wide as the model has it. Sums of such roundings are strictly
    subgaussian (Arbel, Marchal, Nguyen, ESAIM: Probability and Statistics 24, 2020), with a kurtosis from
    1.8 (one rounding) to 3 (many). So E exp(t z^2) <= (1 - 2 t)^(-1/2), as for a normal error. By
    Jensen's inequality the mean of z^2 over the dependent elements of a group satisfies it, too.

    If the largest of several independent groups has the share 1/n of all elements, Chernoff's bound for
    the mean s of all z^2 is P(mean > s) <= exp(-n/2 (s - 1 - ln s)), because -ln(1 - x) is convex and 0
    at 0. It is solved for s.
    """
    from scipy.special import lambertw

    surprise = -2 * np.log(probability) / independent
    mean_square = -float(lambertw(-np.exp(-1 - surprise), -1).real)
    return float(np.sqrt(mean_square))


def rms_limit(independent: float) -> float:
    """Returns the largest allowed root mean square of error / standard deviation: `chance_limit` times
    `MODEL_ERROR`. `independent` is the number of independent errors.

    A right answer exceeds the limit with probability `RMS_FALSE_ALARM`, if its standard deviation is at
    most `MODEL_ERROR` times that of the model.
    """
    return MODEL_ERROR * chance_limit(independent)


def shift_limit(freedom: float) -> float:
    """Returns the largest allowed sum of random errors, in standard deviations that are estimated with
    `freedom` degrees of freedom. A right answer exceeds the limit with probability `RMS_FALSE_ALARM`.

    The limit is Student's t. Sums of roundings have lighter tails than the normal distribution (see
    `rms_limit`).
    """
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, RMS_FALSE_ALARM / 2))


def ratios(error: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Returns |error| / limit, element by element. 0 / 0 is 0; other errors over a limit of 0 give
    infinity."""
    magnitude = np.abs(error).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(magnitude == 0, 0.0, magnitude / limit)


def grade(error: np.ndarray, limit: Callable[[str], np.ndarray]) -> str:
    """Returns the narrowest class whose bound, `limit(class)`, holds for every element; "none" if no
    class does.

    For float32 and float64 the classes coincide, so that the grade is `exact` or `none`.
    """
    for numerics in NUMERICS:
        if not (ratios(error, limit(numerics)) > 1).any():
            return numerics
    return "none"
