"""Masks and biases in the forms that frameworks take: flags, dense arrays, and both in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.binder import Parameter, arguments
from suite.spec.features import ARRAYS
from suite.spec.inputs import Inputs, dtype_of
from suite.spec.masks import Causal, Mask, Padding, Window
from suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from backends.protocol import Backend


@dataclass(frozen=True)
class Native:
    """A symbolic mask divided into what flags express and what must be passed densely.

    `causal`: the flag; `window` and `lengths`: the parts for flags of their own, None where there are
    none; `rest`: the parts that no flag expresses.
    """

    causal: bool = False
    window: Window | None = None
    lengths: Padding | None = None
    rest: tuple[Mask, ...] = ()


def split_native(
    inputs: Inputs, causal: bool = False, window: bool = False, lengths: bool = False
) -> Native:
    """Divide the mask; `causal`, `window`, `lengths` say which flags exist (and mean intersection with
    each other). With the dense form, or a mask given as an array, nothing is native. With the form
    "flag" the causal part is what the flag means, however it is aligned.
    """
    flag, sliding, padding = False, None, None
    rest: list[Mask] = []
    for part in inputs.mask.parts if inputs.mask is not None else ():
        if inputs.form == "dense":
            rest.append(part)
        elif causal and isinstance(part, Causal) and flag_means(part, inputs.form):
            flag = True
        elif window and isinstance(part, Window) and sliding is None:
            sliding = part
        elif lengths and isinstance(part, Padding) and not part.left and padding is None:
            padding = part
        else:
            rest.append(part)
    return Native(flag, sliding, padding, tuple(rest))


def flag_means(part: Causal, form: str) -> bool:
    """Whether a causal flag stands for this mask: one of the form "flag", or one that is top-left."""
    return form == "flag" or not part.bottom_right


def causal_alone(inputs: Inputs) -> bool:
    """Whether the mask is causal from the first key on, and nothing besides."""
    return isinstance(inputs.mask, Causal) and not inputs.mask.bottom_right


def dense_of(inputs: Inputs, rest: tuple[Mask, ...]) -> np.ndarray | None:
    """The dense form of the masks that no flag expresses, or of the mask given as an array."""
    if inputs.mask_array is not None:
        return inputs.mask_array
    if inputs.mask is not None and rest == inputs.mask.parts:
        return inputs.dense_mask
    out: np.ndarray | None = None
    for mask in rest:
        block = mask.dense(inputs.sizes, inputs.seed)
        out = block if out is None else out & block
    return out


def merged_bias(inputs: Inputs, rest: tuple[Mask, ...] | None = None) -> np.ndarray | None:
    """Bias with -inf where the mask hides: for interfaces with one additive argument.

    `rest` are the parts of the mask that no flag expresses, by default all. Rank 4, or 2 where both parts
    are; float64. None where there is neither bias nor mask.
    """
    mask = inputs.dense_mask if rest is None else dense_of(inputs, rest)
    if mask is None:
        return inputs.bias
    added = np.where(mask, 0.0, -np.inf)
    return added if inputs.bias is None else np.where(mask, inputs.bias, -np.inf)


def rank4(array: np.ndarray) -> np.ndarray:
    """A mask or bias with leading axes of size 1, for interfaces that insist on rank 4."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def fewer_axes(arguments: Mapping[str, Any], name: str, least: int) -> dict[str, dict[str, Any]]:
    """The mask or bias that is passed as `name` without leading axes of size 1, but with `least` axes,
    by what it is called then; nothing where it has no more. Its array has `reshape`."""
    if name not in arguments:
        return {}
    shape = tuple(arguments[name].shape)
    left = next((n for n, size in enumerate(shape) if size != 1), len(shape))
    if (left := min(left, len(shape) - least)) < 1:
        return {}
    return {f"{name} of rank {len(shape) - left}": {name: arguments[name].reshape(shape[left:])}}


@dataclass(frozen=True)
class AttentionCall:
    """What a call of attention asks: inputs whose mask is divided into flags and the rest."""

    backend: Backend
    inputs: Inputs
    native: Native

    def mask(self) -> Any:
        """The part of the mask that no flag expresses, of rank 4."""
        mask = dense_of(self.inputs, self.native.rest)
        return None if mask is None else self.backend.array(rank4(mask), None)

    def bias(self) -> Any:
        """The bias, of rank 4."""
        bias = self.inputs.bias
        return None if bias is None else self.backend.array(rank4(bias), self.inputs.dtype)


IS_CAUSAL: Parameter[AttentionCall] = Parameter(
    "is_causal", ("causal", "native-causal"), lambda call: call.native.causal or None
)

SCALE: Parameter[AttentionCall] = Parameter("scale", ("scale",), lambda call: call.inputs.scale)

FLAGGED: tuple[Parameter[AttentionCall], ...] = (
    IS_CAUSAL,
    Parameter("mask", ("mask", "padding", "window", "causal"), AttentionCall.mask),
    Parameter("bias", ("bias", "bias-with-mask"), AttentionCall.bias),
    SCALE,
)
"""What keras.ops and jax.nn take by keyword."""


def flagged_arguments(
    backend: Backend,
    inputs: Inputs,
    native: Native,
    table: Iterable[Parameter[AttentionCall]] = FLAGGED,
) -> dict[str, Any]:
    """query, key, value as the framework's arrays, length before heads, and the arguments of a table that
    are asked for."""
    operands = dict(zip(OPERANDS, backend.memory.operands(inputs, "blhd"), strict=True))
    return operands | arguments(table, AttentionCall(backend, inputs, native))


def full(array: np.ndarray, inputs: Inputs, heads: bool = True) -> np.ndarray:
    """A mask or bias written out as (B, H, Lq, Lk), or (B, Lq, Lk) where it knows no heads.

    Raises ValueError where it differs between heads and may not.
    """
    s = inputs.sizes
    array = rank4(array)
    if heads:
        return np.broadcast_to(array, (s.B, s.H, s.Lq, s.Lk))
    if array.shape[1] != 1:
        raise ValueError("a mask that differs between heads where heads have one mask")
    return np.broadcast_to(array[:, 0], (s.B, s.Lq, s.Lk))


@dataclass(frozen=True)
class LayerMasks:
    """A mask divided into what layers take: a causal flag, valid keys (B, Lk), the rest as a boolean
    array that broadcasts to (B, H, Lq, Lk). True attends; None where there is nothing."""

    causal: bool
    valid: np.ndarray | None
    rest: np.ndarray | None

    @classmethod
    def of(cls, inputs: Inputs, causal: bool = True, lengths: bool = True) -> LayerMasks:
        """`causal` and `lengths` say which the layer takes apart from the rest."""
        native = split_native(inputs, causal=causal, lengths=lengths)
        if native.lengths is None:
            return cls(native.causal, None, dense_of(inputs, native.rest))
        # Several paddings are one: the keys that are valid in all of them.
        more = [part for part in native.rest if isinstance(part, Padding) and not part.left]
        rest = tuple(part for part in native.rest if part not in more)
        counts = [part.lengths(inputs.sizes, inputs.seed) for part in (native.lengths, *more)]
        valid = np.arange(inputs.sizes.Lk) < np.min(counts, axis=0)[:, None]
        return cls(native.causal, valid, dense_of(inputs, rest))


def dense_arguments(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """query, key, value, mask and bias as the framework's arrays, heads before length, no flags; and
    the arrays of features where there are any.

    `mask` and `bias` are None where there is none.
    """
    query, key, value = backend.memory.operands(inputs, "bhld")
    mask = dense_of(inputs, split_native(inputs).rest)
    dense = {
        "query": query,
        "key": key,
        "value": value,
        "mask": None if mask is None else backend.array(mask, None),
        "bias": None if inputs.bias is None else backend.array(inputs.bias, inputs.dtype),
    }
    return dense | feature_arrays(backend, inputs)


def feature_arrays(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """The features that are arrays, as the framework's arrays, where there are any."""
    arrays = {name: feature_array(backend, inputs, name) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array is not None}


def feature_array(backend: Backend, inputs: Inputs, name: str) -> Any:
    """The feature of this name as the framework's array; None if the inputs have none."""
    values = inputs.arrays.get(name)
    return None if values is None else backend.array(values, dtype_of(name, inputs.case))
