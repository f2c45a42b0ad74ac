"""The floating-point formats of cases, and rounding to the nearest number of a format.

NumPy has no bfloat16, so values of every format are float64 arrays that hold only numbers of the
format. `carrier` is the narrowest NumPy type that holds these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DType:
    """A binary floating-point format.

    - `precision`: significand bits, including the hidden one.
    - `min_exponent`: exponent of the smallest normal number.
    - `max_exponent`: exponent of the largest finite number.
    """

    name: str
    long_name: str
    precision: int
    min_exponent: int
    max_exponent: int
    carrier: str

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of round-to-nearest: half an ulp of 1."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        return 2.0 ** (self.min_exponent - self.precision + 1)

    @property
    def max(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.max_exponent

    @property
    def least(self) -> float:
        """The lowest finite number."""
        return -self.max

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return 2 if self.is_half else np.dtype(self.carrier).itemsize

    @property
    def is_half(self) -> bool:
        """True for the 16-bit formats."""
        return self.precision <= 11

    @property
    def large(self) -> float:
        """A large number, whose products with unit normals are finite."""
        return 100.0 if self.name == "f16" else 1e4

    @property
    def widened(self) -> DType:
        """float32 for 16-bit formats, else the format itself."""
        return DTYPES["f32"] if self.is_half else self

    @property
    def working(self) -> type[np.floating[Any]]:
        """The NumPy type in which kernels compute: float64 for float64, else float32."""
        return np.float64 if self.name == "f64" else np.float32

    def __str__(self) -> str:
        return self.name


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", "float64", 53, -1022, 1023, "float64"),
        DType("f32", "float32", 24, -126, 127, "float32"),
        DType("bf16", "bfloat16", 8, -126, 127, "float32"),
        DType("f16", "float16", 11, -14, 15, "float16"),
    )
}


@dataclass(frozen=True)
class Code(DType):
    """A format of one byte in which caches keep keys and values, divided by a scale: whole numbers, or
    floating-point numbers without infinities. No case computes in it."""

    largest: float

    @property
    def is_whole(self) -> bool:
        """True if the codes are whole numbers."""
        return self.carrier == "int8"

    @property
    def max(self) -> float:
        return self.largest

    @property
    def least(self) -> float:
        return -self.largest - self.is_whole

    @property
    def itemsize(self) -> int:
        return 1


CODES: dict[str, Code] = {
    code.name: code
    for code in (
        Code("int8", "int8", 8, 7, 6, "int8", 127.0),
        Code("int4", "int8", 4, 3, 2, "int8", 7.0),
        Code("e4m3", "float8_e4m3fn", 4, -6, 8, "float32", 448.0),
        Code("e5m2", "float8_e5m2", 3, -14, 15, "float32", 57344.0),
    )
}
"""The formats of codes. A code of int4 fills a byte.

Source: Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433 (2022), table 1.
"""


def dtype(name: str) -> DType:
    """Returns the format with a short ("bf16") or long name ("bfloat16"). Raises ValueError with the
    valid names."""
    for d in DTYPES.values():
        if name in (d.name, d.long_name):
            return d
    valid = ", ".join(f"{d.name} ({d.long_name})" for d in DTYPES.values())
    raise ValueError(f"unknown dtype {name!r}; valid: {valid}")


def round_to(x: np.ndarray | float, fmt: DType) -> np.ndarray:
    """Returns `x` rounded to the nearest number of `fmt`, ties to even, as float64 of the same shape.

    Subnormals are kept. Values beyond the largest finite number become infinite. Source: IEEE 754-2019,
    section 4.3.1.
    """
    x = np.asarray(x)
    if fmt.name == "f64":
        return x.astype(np.float64)
    x = x.astype(np.float64)
    if fmt.name == "f32":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return x.astype(np.float32).astype(np.float64)  # NumPy rounds so, and much faster
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - 1, fmt.min_exponent) - (fmt.precision - 1)
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(x, -quantum)), quantum)
    above, below = rounded > fmt.max, rounded < fmt.least
    if not (above | below).any():
        return np.asarray(rounded)
    return np.where(above, np.inf, np.where(below, -np.inf, rounded))
