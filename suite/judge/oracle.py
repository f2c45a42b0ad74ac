"""The oracle: the reference value of given inputs together with how far rounding may move it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from references.definition import Reference, attention
from suite.judge.tolerance import (
    RMS_CLASSES,
    RMS_ELEMENTS,
    RMS_LIMIT,
    bound,
    grade,
    ratios,
    standard_deviation,
)
from suite.judge.verdict import Deviation, HarnessError, Measured
from suite.spec.dtypes import DType
from suite.spec.problem import Inputs


@dataclass(frozen=True)
class Oracle:
    """Reference output and bound terms of one set of inputs."""

    reference: Reference
    dtype: DType

    @classmethod
    def of(cls, inputs: Inputs, empty_rows: str = "zeros") -> Oracle:
        """The oracle of `inputs`, with rows without keys as `empty_rows` elects.

        float64 cases are computed in extended precision, since there the rounding of a float64
        reference is as large as what is judged. Results are cached: the same case is asked for by
        every implementation. Raises HarnessError where the platform has no extended precision.
        """
        key = _digest(inputs, empty_rows)
        if key in _CACHE:
            _CACHE.move_to_end(key)
            return _CACHE[key]
        wide = inputs.dtype.name == "f64"
        if wide and np.finfo(np.longdouble).nmant < 63:
            raise HarnessError(
                "float64 cases need an extended-precision numpy.longdouble (x86-64 Linux has one)"
            )
        reference = attention(
            inputs.query,
            inputs.key,
            inputs.value,
            mask=inputs.allowed,
            bias=inputs.bias,
            scale=inputs.scale,
            softcap=inputs.softcap,
            empty_rows=empty_rows,
            precision=np.longdouble if wide else np.float64,
            terms=True,
            variance=inputs.dtype.is_half,
        )
        oracle = cls(reference, inputs.dtype)
        _CACHE[key] = oracle
        while len(_CACHE) > _CACHE_ENTRIES:
            _CACHE.popitem(last=False)
        return oracle

    def bound(self, numerics: str, flushes: bool = False, exp_error: float = 0.0) -> np.ndarray:
        """Largest |error| rounding explains for a numerics class; see `tolerance.bound`."""
        return bound(self.reference, numerics, self.dtype, flushes, exp_error)

    def judge(
        self,
        got: np.ndarray,
        numerics: str,
        *,
        flushes: bool = False,
        exp_error: float = 0.0,
        nan_rows: str = "zeros",
    ) -> Measured:
        """Compare an answer (B, H, Lq, Dv), float64, with the oracle.

        `nan_rows` is what rows without keys are elected to be: "nan" wants NaN there, "unmasked"
        leaves them out (they are another problem's answer), anything else wants the reference's.
        Returns the figures. Raises Deviation "non-finite" or "value" with the worst element, and
        HarnessError where the oracle itself holds NaN outside rows that are elected to be NaN.
        """
        want = self.reference.output
        empty = (self.reference.terms.keys == 0)[..., None]  # type: ignore[union-attr]
        elected_nan = np.broadcast_to(empty, want.shape) if nan_rows == "nan" else None
        if nan_rows == "unmasked":
            got = np.where(empty, want, got)
        blank = np.isnan(want) if elected_nan is None else np.isnan(want) & ~elected_nan
        if blank.any():
            raise HarnessError(f"the oracle is NaN at {_first(blank)}: the case is ill-posed")
        if elected_nan is not None:
            wrong = elected_nan & ~np.isnan(got)
            if wrong.any():
                at = _first(wrong)
                raise Deviation(
                    "non-finite",
                    f"element {at} of a row without keys: got {got[at]!r}, elected NaN",
                )
            got = np.where(elected_nan, 0.0, got)
            want = np.where(elected_nan, 0.0, want)
        wrong = ~np.isfinite(got) & np.isfinite(want)
        # Beyond the largest finite number of the dtype infinity is the right answer.
        with np.errstate(over="ignore"):
            limit = self.bound(numerics, flushes, exp_error)
        reach = np.abs(want) + limit
        wrong &= ~(np.isinf(got) & (np.sign(got) == np.sign(want)) & (reach > self.dtype.max))
        if wrong.any():
            at = _first(wrong)
            raise Deviation(
                "non-finite",
                f"element {at}: got {float(got[at])!r}, want {float(want[at]):.9g}; "
                f"{int(wrong.sum())} of {wrong.size} elements are not finite",
            )
        error = np.where(np.isfinite(got), got - want, 0.0)
        if elected_nan is not None:
            limit = np.where(elected_nan, 0.0, limit)
        ratio = ratios(error, limit)
        measured = Measured(
            error_ratio=float(ratio.max(initial=0.0)),
            max_abs_error=float(np.abs(error).max(initial=0.0)),
        )
        if elected_nan is None:
            measured.grade = grade(self.reference, error, self.dtype, flushes, exp_error)
        if self.dtype.is_half and error.size:
            spread = standard_deviation(self.reference, numerics, self.dtype)
            # The model has no underflow: it speaks of answers well within the normal range.
            ok = (spread > 0) & (
                np.abs(want) * self.dtype.unit_roundoff > self.dtype.smallest_normal
            )
            if elected_nan is not None:
                ok &= ~elected_nan
            if ok.any():
                scaled = error[ok].astype(np.float64) / spread[ok]
                measured.rms = float(np.sqrt(np.mean(np.square(scaled))))
        if ratio.size and not measured.error_ratio <= 1.0:  # type: ignore[operator]
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            where = "(" + ", ".join(f"{n}={i}" for n, i in zip("bhqd", at, strict=True)) + ")"
            digits = 17 if self.dtype.name == "f64" else 9
            deviation = Deviation(
                "value",
                f"element {where}: got {float(got[at]):.{digits}g}, "
                f"want {float(want[at]):.{digits}g}, |error| {abs(float(error[at])):.3g}, "
                f"bound {float(limit[at]):.3g} ({numerics}), ratio {float(ratio[at]):.3g}; "
                f"{int((ratio > 1).sum())} of {ratio.size} elements beyond their bound",
            )
            deviation.measured = measured  # type: ignore[attr-defined]
            raise deviation
        modelled = measured.rms is not None and numerics in RMS_CLASSES
        if modelled and int(ok.sum()) >= RMS_ELEMENTS and measured.rms > RMS_LIMIT:  # type: ignore[operator]
            deviation = Deviation(
                "value",
                f"root mean square of error over standard deviation {measured.rms:.3g} in "
                f"{int(ok.sum())} elements, at most {RMS_LIMIT}: the error is systematic",
            )
            deviation.measured = measured  # type: ignore[attr-defined]
            raise deviation
        return measured


_CACHE: OrderedDict[bytes, Oracle] = OrderedDict()
_CACHE_ENTRIES = 64


def _digest(inputs: Inputs, empty_rows: str) -> bytes:
    h = hashlib.blake2b(digest_size=16)
    for array in (inputs.query, inputs.key, inputs.value, inputs.bias, inputs.mask_array):
        h.update(b"-" if array is None else str(array.shape).encode() + array.tobytes())
    parameters = (inputs.mask, inputs.scale, inputs.softcap, inputs.seed, inputs.dtype.name)
    h.update(repr((*parameters, empty_rows)).encode())
    return h.digest()


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
