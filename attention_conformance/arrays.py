"""Convert arrays of any framework to NumPy, without importing a framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.spec.dtypes import DTYPES, DType, dtype, round_to


def as_numpy(array: Any, what: str) -> np.ndarray:
    """Returns the array in NumPy: booleans unchanged, numbers as float64. `what` names the array in
    messages. Raises TypeError if NumPy cannot read it."""
    if hasattr(array, "detach"):  # torch has bfloat16, NumPy has not
        array = array.detach().cpu()
        array = array.double() if array.is_floating_point() else array
    try:
        values = np.asarray(array)
        return values if values.dtype.kind == "b" else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is {type(array).__name__}, which NumPy cannot read: {error}"
        ) from error


def dtype_of(array: Any, name: str | None, what: str) -> DType:
    """Returns the dtype called `name`, or without a name that of the array. `what` names the array in
    messages.

    Raises ValueError if the suite does not judge the dtype, or if values are not exact in the dtype
    `name`.
    """
    if name is not None:
        wanted, values = dtype(name), as_numpy(array, what)
        inexact = (round_to(values, wanted) != values) & ~np.isnan(values)
        if inexact.any():
            raise ValueError(
                f"{what} holds {float(values[inexact][0])!r}, which is no number of {wanted.long_name}: "
                "round the values first"
            )
        return wanted
    own_name = str(array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype)
    for candidate in DTYPES.values():
        if candidate.long_name in own_name:
            return candidate
    raise ValueError(
        f"{what} has dtype {own_name}; judged are {', '.join(f.long_name for f in DTYPES.values())}"
    )
