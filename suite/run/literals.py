"""Arrays as Python text: numbers if they are few, else compressed bytes."""

from __future__ import annotations

import base64
import re
import textwrap
import zlib

import numpy as np

LITERALS = 600
"""Greatest size of an array that is written as numbers; larger arrays are compressed."""

IMPORTS = "import base64, zlib"
"""The imports that decompress arrays."""


def literal(array: np.ndarray | None) -> str:
    """An expression for a boolean, integer or float64 array, exact; "None" for None."""
    if array is None:
        return "None"
    shape = array.shape or "(())"
    if array.dtype == bool:
        if array.size > LITERALS:
            data = _packed(np.packbits(array).tobytes())
            return (
                f"np.unpackbits(np.frombuffer({data}, np.uint8), count={array.size})"
                f".astype(bool).reshape{shape}"
            )
        numbers = ", ".join(str(int(x)) for x in array.ravel())
        return f"{_listed(numbers)}.astype(bool).reshape{shape}"
    whole = array.dtype.kind == "i"
    kind, back = ("<i8", f".astype(np.{array.dtype.name})") if whole else ("<f8", "")
    if array.size > LITERALS:
        data = _packed(np.ascontiguousarray(array, kind).tobytes())
        return f'np.frombuffer({data}, "{kind}"){back}.reshape{shape}'
    if whole:
        numbers = ", ".join(str(int(x)) for x in array.ravel())
        return f"{_listed(numbers)}{back}.reshape{shape}"
    numbers = ", ".join(repr(float(x)) for x in array.ravel())
    numbers = re.sub(r"\b(inf|nan)\b", r"np.\1", numbers)
    return f"{_listed(numbers, ', dtype=float')}.reshape{shape}"


def _listed(numbers: str, more: str = "") -> str:
    if len(numbers) < 60:
        return f"np.array([{numbers}]{more})"
    lines = textwrap.fill(numbers, 96, initial_indent="    ", subsequent_indent="    ")
    return f"np.array([\n{lines}\n]{more})"


def _packed(data: bytes) -> str:
    text = base64.b85encode(zlib.compress(data, 9)).decode()
    lines = "\n".join(f'    b"{line}"' for line in textwrap.wrap(text, 90))
    return f"zlib.decompress(base64.b85decode(\n{lines}\n))"
