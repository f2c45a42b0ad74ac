"""Masks and biases as arguments of frameworks: flags, dense arrays, and merged biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.memory import all_arrays
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Mask, Padding, Window

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


@dataclass(frozen=True)
class Native:
    """A symbolic mask, divided into flags and parts that must be passed as a dense array.

    - `causal`: True if the causal flag is passed
    - `window`: the window that is passed as a parameter, or None
    - `paddings`: the paddings behind the last key, which are passed as lengths
    - `dense_parts`: the parts that no flag expresses
    """

    causal: bool = False
    window: Window | None = None
    paddings: tuple[Padding, ...] = ()
    dense_parts: tuple[Mask, ...] = ()

    def key_counts(self, inputs: Inputs) -> np.ndarray | None:
        """Returns for each sample (B,) the number of keys that no padding masks; None without padding."""
        counts = [part.lengths(inputs.sizes, inputs.seed) for part in self.paddings]
        return np.min(counts, axis=0) if counts else None

    def valid(self, inputs: Inputs) -> np.ndarray | None:
        """Returns boolean (B, Lk), False for keys that a padding masks; None without padding."""
        counts = self.key_counts(inputs)
        return None if counts is None else np.arange(inputs.sizes.Lk) < counts[:, None]

    def dense(self, inputs: Inputs) -> np.ndarray | None:
        """Returns the dense form of `dense_parts`, or the array that the inputs have as their mask. It is
        boolean, broadcasts to (B, H, Lq, Lk), and True attends. Returns None without a mask."""
        return dense_of(inputs, self.dense_parts)

    def without_window(self) -> Native:
        """Returns the division in which the window is one of `dense_parts`."""
        if self.window is None:
            return self
        return replace(self, window=None, dense_parts=(*self.dense_parts, self.window))


def split_native(
    inputs: Inputs, causal: bool = False, window: bool = False, lengths: bool = False
) -> Native:
    """Returns the mask divided into the flags that a function has (`causal`, `window`, `lengths`), and
    dense parts.

    A pair attends only if all parts allow it. A mask array, or a mask in the form "dense", gets no flags.
    In the form "flag" a causal part of any alignment is passed as the flag; in other forms only a
    top-left one.
    """
    is_causal, window_part = False, None
    paddings, dense_parts = list[Padding](), list[Mask]()
    for part in inputs.mask.parts if inputs.mask is not None else ():
        if inputs.form == "dense":
            dense_parts.append(part)
        elif (
            causal and isinstance(part, Causal) and (inputs.form == "flag" or not part.bottom_right)
        ):
            is_causal = True
        elif window and isinstance(part, Window) and window_part is None:
            window_part = part
        elif lengths and isinstance(part, Padding) and not part.left:
            paddings.append(part)
        else:
            dense_parts.append(part)
    return Native(is_causal, window_part, tuple(paddings), tuple(dense_parts))


def causal_alone(inputs: Inputs) -> bool:
    """True if the mask is only a top-left causal mask."""
    return isinstance(inputs.mask, Causal) and not inputs.mask.bottom_right


def dense_of(inputs: Inputs, parts: tuple[Mask, ...]) -> np.ndarray | None:
    """Returns the dense form of these parts of the mask (boolean, True attends, broadcasts to (B, H, Lq,
    Lk)), or the array that the inputs have as their mask. None without parts."""
    if inputs.mask_array is not None:
        return inputs.mask_array
    if inputs.mask is not None and parts == inputs.mask.parts:
        return inputs.dense_mask
    dense: np.ndarray | None = None
    for mask in parts:
        part = mask.dense(inputs.sizes, inputs.seed)
        dense = part if dense is None else dense & part
    return dense


def merged_bias(inputs: Inputs, parts: tuple[Mask, ...] | None = None) -> np.ndarray | None:
    """Returns the bias with -inf where the mask is False, for interfaces with one additive argument.
    float64, of the rank to which mask and bias broadcast; None without bias and mask.

    `parts` are the mask's parts that no flag expresses, by default all.
    """
    mask = inputs.dense_mask if parts is None else dense_of(inputs, parts)
    if mask is None:
        return inputs.bias
    mask_bias = np.where(mask, 0.0, -np.inf)
    return mask_bias if inputs.bias is None else np.where(mask, inputs.bias, -np.inf)


def rank4(array: np.ndarray) -> np.ndarray:
    """Returns a mask or bias of rank 4, with leading axes of size 1."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


@dataclass(frozen=True)
class Call:
    """A call of a user's callable, from which the values of its arguments are made."""

    backend: Backend
    inputs: Inputs

    def option(self, name: str) -> Any:
        """Returns the value of an option of the case."""
        return self.inputs.case.option(name)

    def array(self, values: np.ndarray | None, dtype: DType | None = None) -> Any:
        """Returns the framework's array of the values; None for None."""
        return None if values is None else self.backend.array(values, dtype)


@dataclass(frozen=True)
class AttentionCall(Call):
    """A call of attention. `native`: its mask, divided into flags and the rest."""

    native: Native

    def mask(self) -> Any:
        """Returns the part of the mask that no flag expresses, boolean, of rank 4; None if there is
        none."""
        mask = self.native.dense(self.inputs)
        return self.array(None if mask is None else rank4(mask))

    def bias(self) -> Any:
        """Returns the bias of rank 4; None without a bias."""
        bias = self.inputs.bias
        return self.array(None if bias is None else rank4(bias), self.inputs.dtype)

    def mask_or_bias(self, reshape: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Any:
        """Returns one array for mask and bias: the part of the mask that no flag expresses, or with a
        bias the bias and -inf where the mask is False. `reshape` gives the array its final shape. None
        without both."""
        dtype = None if self.inputs.bias is None else self.inputs.dtype
        array = (dense_of if dtype is None else merged_bias)(self.inputs, self.native.dense_parts)
        return self.array(None if array is None else reshape(array), dtype)

    def lengths(self, integers: type[np.signedinteger[Any]] = np.int64) -> Any:
        """Returns the number of keys of each sample, (B,); None unless paddings are passed as lengths."""
        counts = self.native.key_counts(self.inputs)
        return self.array(None if counts is None else counts.astype(integers))

    def rate(self) -> float | None:
        """Returns the rate of dropout in training; None if nothing is dropped."""
        return self.inputs.rate or None if self.inputs.training else None

    def sinks(self) -> Any:
        """Returns the sinks (H,); None if the inputs have none."""
        return feature_array(self.backend, self.inputs, "sinks")


IS_CAUSAL: Parameter[AttentionCall] = Parameter(
    "is_causal",
    ("causal", "native-causal"),
    lambda call: call.native.causal or None,
    names=("causal", "use_causal_mask"),
    neutral=lambda call: False,
)

SCALE: Parameter[AttentionCall] = Parameter(
    "scale",
    ("scale",),
    lambda call: call.inputs.scale,
    names=("softmax_scale", "sm_scale", "scaling"),
    neutral=lambda call: call.inputs.effective_scale,
)

EFFECTIVE_SCALE = replace(SCALE, value=SCALE.neutral)
"""The parameter of a function that has no default scale."""

FLAGGED: tuple[Parameter[AttentionCall], ...] = (
    IS_CAUSAL,
    Parameter("mask", ("mask", "padding", "window", "causal"), AttentionCall.mask),
    Parameter("bias", ("bias", "bias-with-mask"), AttentionCall.bias),
    SCALE,
)
"""The keyword parameters of keras.ops and jax.nn."""


def full(array: np.ndarray, inputs: Inputs, heads: bool = True) -> np.ndarray:
    """Returns a mask or bias broadcast to (B, H, Lq, Lk), or to (B, Lq, Lk) if `heads` is False.

    Raises ValueError if `heads` is False and heads differ.
    """
    s = inputs.sizes
    array = rank4(array)
    if heads:
        return np.broadcast_to(array, (s.B, s.H, s.Lq, s.Lk))
    if array.shape[1] != 1:
        raise ValueError("the mask differs between heads, expected one mask for all heads")
    return np.broadcast_to(array[:, 0], (s.B, s.Lq, s.Lk))


def dense_arguments(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """Returns the framework's arrays query, key and value (B, H, L, D), `mask`, `bias`, and those of
    features. Without a mask or bias, `mask` or `bias` is None."""
    query, key, value = backend.operands(inputs, "bhld")
    mask = split_native(inputs).dense(inputs)
    dense = {
        "query": query,
        "key": key,
        "value": value,
        "mask": None if mask is None else backend.array(mask, None),
        "bias": None if inputs.bias is None else backend.array(inputs.bias, inputs.dtype),
    }
    return dense | feature_arrays(backend, inputs)


def masked_arrays(
    backend: Backend, inputs: Inputs, parts: tuple[Mask, ...] | None = None
) -> dict[str, Any]:
    """Returns all arrays of the inputs, and with a mask `mask`, the dense mask of rank 4. `parts` are the
    mask's parts that no flag expresses, by default all."""
    mask = dense_of(inputs, split_native(inputs).dense_parts if parts is None else parts)
    arrays = all_arrays(backend, inputs)
    return arrays if mask is None else arrays | {"mask": backend.array(rank4(mask), None)}


def feature_arrays(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """Returns the framework's arrays of the features that the inputs have, by name."""
    arrays = {name: feature_array(backend, inputs, name) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array is not None}


def feature_array(backend: Backend, inputs: Inputs, name: str) -> Any:
    """Returns the framework's array of the feature `name`; None if the inputs lack it."""
    values = inputs.arrays.get(name)
    return None if values is None else backend.array(values, inputs.case.dtype_of(name))
