"""Answers: check the type, device, dtype and shape of an implementation's outputs, and read their
values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import ENDS, Backend, Implementation, PreparedCall
from attention_conformance.suite.judge.verdict import WrongAnswer, first_line
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs


@dataclass(frozen=True)
class Answer:
    """The outputs of a call. `arrays`: float64 arrays by name, with all axes of the operator's outputs.
    `native`: the framework's own return value."""

    arrays: Mapping[str, np.ndarray]
    native: Any

    @property
    def values(self) -> np.ndarray:
        """The values of the array `output`."""
        return self.arrays["output"]


def swap_heads_and_length(array: np.ndarray, prepared: PreparedCall) -> np.ndarray:
    """Convert an operand or output between (B, H, L, D) and the axis order of the call."""
    return array.swapaxes(1, 2) if prepared.axis_order == "blhd" else array


def differentiable_arrays(prepared: PreparedCall, inputs: Inputs) -> list[str]:
    """Returns the names of the arrays by which a call can be differentiated: its operands and its
    parameters.

    Statistics of batch norm are left out. If query, key and value are one tensor, its name is "query".
    """
    operator = inputs.operator
    return [
        name
        for name in inputs.arrays
        if prepared.argument(name) in prepared.arguments
        and name not in operator.array_kinds.constants
        if name not in ("key", "value") or not inputs.self_attention
        if name != "bias" or not operator.is_layer
    ]


def vjp_of_lse(
    implementation: Implementation, inputs: Inputs, cotangent: np.ndarray
) -> tuple[PreparedCall, dict[str, Any]]:
    """Returns the call, and by name the framework's gradients of the log-sum-exp with respect to query
    and key, for a cotangent (B, H, Lq). Raises the framework's errors."""
    backend = implementation.backend
    # `vjp` differentiates the array called `output`: here the second one, the log-sum-exp.
    prepared = replace(implementation.differentiable(inputs), outputs=("first", "output"))
    values = np.ascontiguousarray(swap_heads_and_length(cotangent, prepared))
    native_cotangent = backend.array(values, inputs.output_dtype("lse"))
    return prepared, backend.vjp(prepared, ("query", "key"), native_cotangent)[1]


def outputs_by_name(native: Any, prepared: PreparedCall) -> dict[str, Any]:
    """Returns the framework's outputs by name, from its return value `native`. Raises WrongAnswer "type"
    if the number of outputs is wrong."""
    names = prepared.outputs
    if len(names) == 1:
        return {names[0]: native}
    if not isinstance(native, tuple | list) or len(native) != len(names):
        raise WrongAnswer(
            "type", f"expected the outputs {', '.join(names)}, got {type(native).__qualname__}"
        )
    return dict(zip(names, native, strict=True))


def read_answer(
    backend: Backend, native: Any, inputs: Inputs, prepared: PreparedCall, names: Sequence[str] = ()
) -> Answer:
    """Read the outputs called `names`, by default all. Raises WrongAnswer for a wrong type, device, dtype
    or shape."""
    native_by_name = outputs_by_name(native, prepared)
    arrays = {}
    for name in names or inputs.operator.outputs(inputs.case):
        if native_by_name.get(name) is None and name != "output":
            raise WrongAnswer("type", f"no {name} came back, though they were asked for")
        shape = inputs.output_shape(name)
        if prepared.axis_order == "blhd":
            shape = (shape[0], shape[2], shape[1], *shape[3:])
        label = name if len(prepared.outputs) > 1 else ""
        array = read_array(
            backend, label, native_by_name.get(name), shape, inputs.output_dtype(name)
        )
        arrays[name] = swap_heads_and_length(array, prepared).reshape(inputs.full_shape(name))
    return Answer(arrays, native)


def read_array(
    backend: Backend, label: str, native: Any, shape: tuple[int, ...], dtype: DType
) -> np.ndarray:
    """Check the type, device, dtype and shape of an array, and return its values in float64.

    `label` names the array in messages ("" for none). Raises WrongAnswer.
    """
    values = values_of(backend, native, f" as {label}" if label else "")
    suffix = f" of {label}" if label else ""
    for kind, want, got in (
        ("device", backend.device, backend.device_name(native)),
        ("dtype", dtype.long_name, backend.dtype_name(native)),
        ("shape", shape, tuple(native.shape)),
    ):
        if want != got:
            raise WrongAnswer(kind, f"expected {kind} {want}{suffix}, got {got}")
    return values


def values_of(backend: Backend, native: Any, suffix: str = "") -> np.ndarray:
    """Returns the values of an array of the framework. `suffix` follows the expected type in messages.

    Raises WrongAnswer "type" for another type, and for an array without dense values: a sparse, nested,
    meta, fake or traced one.
    """
    type_name = f"{type(native).__module__}.{type(native).__qualname__}"
    if not backend.is_array(native):
        raise WrongAnswer("type", f"expected an array of {backend.name}{suffix}, got {type_name}")
    try:
        return backend.to_numpy(native)
    except ENDS:
        raise
    except Exception as error:
        raise WrongAnswer(
            "type",
            f"expected a dense array of {backend.name}{suffix} that holds values, got {type_name}, which "
            f"cannot be read: {first_line(error)}",
        ) from error
