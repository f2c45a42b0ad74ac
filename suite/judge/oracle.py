"""The oracle: the reference value of given inputs together with how far rounding may move it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

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
        key = digest_of(inputs) + empty_rows.encode()
        if key in _CACHE:
            _CACHE.move_to_end(key)
            return _CACHE[key]
        precision = precision_for(inputs.dtype)
        reference = attention(
            inputs.query,
            inputs.key,
            inputs.value,
            mask=inputs.allowed,
            bias=inputs.bias,
            scale=inputs.scale,
            softcap=inputs.softcap,
            empty_rows=empty_rows,
            precision=precision,
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
        empty = np.broadcast_to((self.reference.terms.keys == 0)[..., None], want.shape)  # type: ignore[union-attr]
        judged = judged_elements(got, empty, nan_rows)
        with np.errstate(over="ignore"):
            limit = self.bound(numerics, flushes, exp_error)
        error, measured, deviation = hold(got, want, limit, judged, self.dtype, numerics)
        measured.grade = grade(self.reference, error, self.dtype, flushes, exp_error)
        if self.dtype.is_half and error.size:
            spread = standard_deviation(self.reference, numerics, self.dtype)
            # The model has no underflow: it speaks of answers well within the normal range.
            ok = (spread > 0) & judged & np.isfinite(want)
            ok &= np.abs(want) * self.dtype.unit_roundoff > self.dtype.smallest_normal
            if ok.any():
                scaled = error[ok].astype(np.float64) / spread[ok]
                measured.rms = float(np.sqrt(np.mean(np.square(scaled))))
        if deviation is not None:
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


def precision_for(fmt: DType) -> type:
    """What a reference is computed in: float64, for float64 cases extended precision.

    Raises HarnessError where the platform has no extended precision.
    """
    if fmt.name != "f64":
        return np.float64
    if np.finfo(np.longdouble).nmant < 63:
        raise HarnessError(
            "float64 cases need an extended-precision numpy.longdouble (x86-64 Linux has one)"
        )
    return np.longdouble


def judged_elements(got: np.ndarray, empty: np.ndarray, nan_rows: str) -> np.ndarray:
    """Which elements of an answer the reference speaks of: not those of rows without keys (`empty`)
    that are elected to be NaN, or to answer another problem ("unmasked").

    Raises Deviation "non-finite" where an element elected to be NaN is not.
    """
    if nan_rows == "nan":
        wrong = empty & ~np.isnan(got)
        if wrong.any():
            at = _first(wrong)
            raise Deviation(
                "non-finite", f"element {at} of a row without keys: got {got[at]!r}, elected NaN"
            )
    return ~empty if nan_rows in ("nan", "unmasked") else np.ones(empty.shape, bool)


def hold(
    got: np.ndarray,
    want: np.ndarray,
    limit: np.ndarray,
    judged: np.ndarray,
    fmt: DType,
    numerics: str,
    what: str = "",
) -> tuple[np.ndarray, Measured, Deviation | None]:
    """The error of an answer where it is judged (0 elsewhere), its figures, and the Deviation "value"
    with the worst element where one is beyond its limit.

    Raises Deviation "non-finite", and HarnessError where `want` is NaN where it is judged. `what` names
    the answer in messages.
    """
    blank = np.isnan(want) & judged
    if blank.any():
        raise HarnessError(f"the oracle is NaN at {_first(blank)}: the case is ill-posed")
    got, want, limit = (np.where(judged, x, 0.0) for x in (got, want, limit))
    # Beyond the largest finite number of the dtype infinity is the right answer.
    with np.errstate(over="ignore"):
        reach = np.abs(want) + limit
    wrong = ~np.isfinite(got) & np.isfinite(want)
    wrong &= ~(np.isinf(got) & (np.sign(got) == np.sign(want)) & (reach > fmt.max))
    if wrong.any():
        at = _first(wrong)
        raise Deviation(
            "non-finite",
            f"{what}element {at}: got {float(got[at])!r}, want {float(want[at]):.9g}; "
            f"{int(wrong.sum())} of {wrong.size} elements are not finite",
        )
    error = np.where(np.isfinite(got), got - want, 0.0)
    ratio = ratios(error, limit)
    measured = Measured(
        error_ratio=float(ratio.max(initial=0.0)),
        max_abs_error=float(np.abs(error).max(initial=0.0)),
    )
    deviation = None
    if ratio.size and not measured.error_ratio <= 1.0:  # type: ignore[operator]
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        axes = {4: "bhqd", 3: "bqd"}.get(ratio.ndim, "")
        named = [f"{n}={i}" for n, i in zip(axes, at, strict=True)] if axes else map(str, at)
        where = f"({', '.join(named)})"
        digits = 17 if fmt.name == "f64" else 9
        deviation = Deviation(
            "value",
            f"{what}element {where}: got {float(got[at]):.{digits}g}, "
            f"want {float(want[at]):.{digits}g}, |error| {abs(float(error[at])):.3g}, "
            f"bound {float(limit[at]):.3g} ({numerics}), ratio {float(ratio[at]):.3g}; "
            f"{int((ratio > 1).sum())} of {ratio.size} elements beyond their bound",
        )
        deviation.measured = measured  # type: ignore[attr-defined]
    return error, measured, deviation


_CACHE: OrderedDict[bytes, Oracle] = OrderedDict()
_CACHE_ENTRIES = 64


def digest_of(inputs: Any) -> bytes:
    """A digest of a dataclass of inputs: arrays by their bytes, everything else by its repr."""
    h = hashlib.blake2b(digest_size=16)
    for entry in fields(inputs):
        value = getattr(inputs, entry.name)
        for name, part in value.items() if isinstance(value, Mapping) else ((entry.name, value),):
            if isinstance(part, np.ndarray):
                h.update(f"{name}{part.shape}{part.dtype}".encode() + part.tobytes())
            else:
                h.update(f"{name}={part!r};".encode())
    return h.digest()


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
