"""Faults that write into their arguments, or into the memory around them, in some calls only."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, rank4
from attention_conformance.suite.faults.kernels.gradient import Differentiable

FAMILY = "state"


def bias_overwritten_beside_flag(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is not None and call.causal:
        np.copyto(rank4(call.bias.values), -np.inf, where=~right.causal(call))
    return right.biased(scores, call)


def query_scaled_in_place_beside_cap(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    answer = right.attention(query, key, value, **rest)
    if rest.get("softcap") is not None:
        query.values[...] /= rest["softcap"]
    return answer


def mask_joined_in_place_with_lengths(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    if call.lengths is not None and len(mask) == call.sizes.B:
        mask &= right.within(call.lengths.values, call)
    return mask


@fault("gradients", "`bias.add_(grad)` in the backward pass; return the gradient")
class BiasClearedBackwardBesideFlag(Differentiable):
    """The backward pass adds the gradient of the scores to the bias, beside a causal flag."""

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        gradient = super().bias_gradient(ds, shape)
        if self.flagged is not None:
            self.flagged.values[...] += gradient
        return gradient

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.flagged = call.bias if call.causal else None
        return super().backward_biased(scores, call)


def whole(values: np.ndarray) -> np.ndarray:
    """The array that a view is a part of. The base of a strided view is no array, and has a base."""
    base: Any = values
    while getattr(base, "base", None) is not None:
        base = base.base
    return np.asarray(base)


def around(values: np.ndarray) -> np.ndarray:
    """The numbers of the array (n,) that a view is a part of, from the first number of the view on."""
    start = values.ctypes.data - whole(values).ctypes.data
    return whole(values).reshape(-1)[start // values.itemsize :]


def keys_padded_in_place(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    if key.values.size:
        ends = sum((n - 1) * s for n, s in zip(key.shape, key.values.strides, strict=True))
        last = ends // key.values.itemsize
        around(key.values)[last + 1 : last + 1 + key.shape[-1]] = 0
    return right.attention(query, key, value, **rest)


def scratch_between_rows(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    step = query.values.strides[-2] // query.values.itemsize
    answer = right.attention(query, key, value, **rest)
    if query.values.size and step > query.shape[-1]:
        around(query.values)[query.shape[-1] :: step][: query.shape[-2]] = 1.0
    return answer


def mask_padded_in_place(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    step = mask.strides[-2] if mask.ndim > 1 else 0
    gap = min(step - mask.shape[-1], -mask.shape[-1] % 8)
    if mask.dtype == bool and mask.strides[-1] == 1 and gap > 0:
        keys = mask.shape[-1]
        for n in range(mask.shape[-2]):
            around(mask[0, 0])[n * step + keys : n * step + keys + gap] = False
    return mask


def gradient_scratch_behind_values(
    right: Differentiable, weights: np.ndarray, cotangent: np.ndarray, call: Call
) -> np.ndarray:
    behind = around(call.value.values)[call.value.values.size :]
    if call.value.values.size and len(behind):
        behind[-1] = 1.0
    return right.value_gradient(weights, cotangent, call)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("bias-overwritten-beside-flag", "values",
        "Beside a causal flag the hidden pairs are written into the bias.",
        "`attn_mask.masked_fill_(~causal, -inf)`; `masked_fill` makes a new array",
        biased=bias_overwritten_beside_flag),
    row("query-scaled-in-place-beside-cap", "values",
        "Beside a softcap the query is divided by the cap where it lies.",
        "`query /= softcap`; `query = query / softcap` makes a new array",
        attention=query_scaled_in_place_beside_cap),
    row("mask-joined-in-place-with-lengths", "values",
        "A mask beside key lengths is written over by the pairs that both allow.",
        "`mask &= valid`; `mask = mask & valid` makes a new array",
        masked=mask_joined_in_place_with_lengths),
    row("keys-padded-in-place", "layouts",
        "Behind the last key the row of a tile that is not full is set to zero, where the keys lie.",
        "the last tile is padded where the keys lie; load it with a mask, or copy it",
        attention=keys_padded_in_place),
    row("scratch-between-rows", "layouts",
        "The maximum of a row stands in the number behind its query, if a gap lies there.",
        "the statistics of a row are stored behind its query; allocate an array for them",
        attention=scratch_between_rows),
    row("mask-padded-in-place", "mask_layouts",
        "The rows of a mask are filled up with False to a multiple of eight keys, where they lie.",
        "the mask is padded where it lies; copy it into a padded array",
        masked=mask_padded_in_place),
    row("gradient-scratch-behind-values", "gradient_layouts",
        "The backward pass leaves a sum behind the last value, in the array that holds the values.",
        "the backward pass uses the end of the storage of the values; allocate an array",
        right=Differentiable, value_gradient=gradient_scratch_behind_values),
]  # fmt: skip
