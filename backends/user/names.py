"""The arguments of users' functions, by the names that people use for parameters (docs/signatures.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.masks import (
    IS_CAUSAL,
    SCALE,
    AttentionCall,
    dense_of,
    feature_array,
    rank4,
)
from attention_conformance.suite.spec.binding import ADDING, HIDING, MASK_WORDS
from attention_conformance.suite.spec.features import FEATURES, Feature
from attention_conformance.suite.spec.masks import Causal, Mask

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


def feature_argument(feature: Feature, call: Any) -> Any:
    """Returns the argument of a call for a feature; None if the call does not need the feature.

    - A part of the mask: the operand that the feature's reduction makes of it.
    - Log-sum-exp: True. The function then returns output and log-sum-exp, (B, H, Lq) or (B, Lq, H) as the
      output's axis order.
    - Any other feature: its array or number.
    """
    if feature.reduction.to == "mask":
        part, sizes = getattr(call.native, feature.name), call.inputs.sizes
        return None if part is None else feature.reduction.operand(part, sizes.Lq, sizes.Lk)
    if feature.axes:
        return feature_array(call.backend, call.inputs, feature.name)
    return call.inputs.feature(feature.name) if feature.used_by(call.inputs.case) else None


def module_argument(call: AttentionCall) -> SimpleNamespace:
    """Returns a stand-in for the module whose attributes transformers' attention functions read."""
    group = call.inputs.sizes.group
    return SimpleNamespace(training=True, is_causal=False, num_key_value_groups=group)


def window_argument(call: AttentionCall) -> Any:
    """Returns (left, right) of the window; -1 for a side without limit. None without a window."""
    part = call.native.window
    return None if part is None else tuple(-1 if n is None else n for n in (part.left, part.right))


def window_left(call: AttentionCall) -> Any:
    """Returns the number of keys before the query that the window includes. None without a window, or if
    it is unbounded to the left."""
    part = call.native.window
    return None if part is None else part.left


def dropout_argument(backend: Backend, rate: float, default: Any) -> Any:
    """Returns the argument that drops weights at `rate`: the rate, or a function that drops elements if
    the parameter's default is None."""
    return rate if default is not None else backend.dropout(rate)


KNOWN: tuple[Parameter[AttentionCall], ...] = (
    Parameter("attn_mask", names=("mask", "attention_mask")),
    Parameter("causal_mask"),
    Parameter("padding_mask"),
    Parameter("bias", names=("attn_bias",)),
    Parameter("lengths", ("padding",), AttentionCall.lengths, names=("valid_lens", "valid_len")),
    IS_CAUSAL,
    SCALE,
    Parameter(
        "dropout", ("dropout",), AttentionCall.rate, names=("dropout_p", "dropout_rate", "p"),
        neutral=lambda call: 0.0,
    ),
    Parameter(
        "window", ("window", "native-window"), window_argument, names=("window_size",),
        neutral=lambda call: (-1, -1),
    ),
    Parameter("window_left", ("window", "native-window"), window_left, neutral=lambda call: -1),
    Parameter(
        "softcap", ("softcap",), partial(feature_argument, FEATURES["softcap"]),
        names=("logits_soft_cap",), neutral=lambda call: 0.0,
    ),
    Parameter(
        "lse", ("lse",), partial(feature_argument, FEATURES["lse"]),
        names=("return_lse", "return_softmax_lse"), neutral=lambda call: False,
    ),
    Parameter("module", neutral=module_argument),
    Parameter("nothing"),
)  # fmt: skip
"""The parameters that a user's function may have besides query, key and value, with their common names. A
parameter that is called `nothing`, or claimed as `nothing`, gets None in every call."""

ROWS = {row.name: row for row in KNOWN}

OPERAND_NAMES = {
    "query": ("query", "q", "queries"),
    "key": ("key", "k", "keys"),
    "value": ("value", "v", "values"),
}
"""The names of query, key and value that people use, in small or capital letters."""

WORD_OF = {
    name: names[0]
    for names in (*OPERAND_NAMES.values(), *(row.every_name for row in KNOWN))
    for name in names
}
"""By name: the first name of its row in `OPERAND_NAMES` or `KNOWN`, called its word."""

PARTS: Mapping[str, Callable[[Mask], bool]] = {
    "all": lambda part: True,
    "causal": lambda part: isinstance(part, Causal),
    "rest": lambda part: not isinstance(part, Causal),
    "none": lambda part: False,
}
"""By a choice of the mask's parts: a function that is True for the chosen parts."""

SERVED = {"all": HIDING, "causal": ("causal",), "rest": HIDING[:-1], "none": ()}
"""By a choice of the mask's parts: the features that an argument with these parts serves."""


def parts_for(word: str, words: Collection[str]) -> str:
    """Returns the key of `PARTS` for the argument with the word `word`. `words` are the words of all
    arguments of the function."""
    masks = [mask_word for mask_word in MASK_WORDS if mask_word in words]
    if word == "bias":
        return "none" if masks else "all"
    if "causal_mask" not in masks or len(masks) == 1:
        return "all"
    return "causal" if word == "causal_mask" else "rest"


def pair_argument(
    name: str, word: str, words: Collection[str], kind: str, is_required: bool
) -> Parameter[AttentionCall]:
    """Returns the row of a parameter whose argument has axes of queries and keys: a mask of a `kind` of
    `suite.spec.claims.MASKS`, or a bias."""
    parts = parts_for(word, words)
    is_bias = word == "bias"
    takes_bias = is_bias or (
        word == "attn_mask" and "bias" not in words and kind in ("either", "additive")
    )

    def value(call: AttentionCall) -> Any:
        inputs = call.inputs
        chosen_parts = tuple(part for part in call.native.dense_parts if PARTS[parts](part))
        takes_array = parts in ("all", "rest") or inputs.mask_array is None
        mask = dense_of(inputs, chosen_parts) if takes_array and parts != "none" else None
        bias = inputs.bias if takes_bias else None
        return mask_or_bias(call, mask, bias, "additive" if is_bias else kind)

    features = (*SERVED[parts], *(ADDING if takes_bias else ()))
    return Parameter(name, features, value, passes_none=is_required, word=word)


def mask_or_bias(
    call: AttentionCall, mask: np.ndarray | None, bias: np.ndarray | None, kind: str
) -> Any:
    """Returns one array of rank 4: the mask in its `kind`, or the bias with -inf where the mask is False.
    None without both."""
    backend, dtype = call.backend, call.inputs.dtype
    if mask is None:
        return None if bias is None else backend.array(rank4(bias), dtype)
    if bias is not None or kind == "additive":
        added = np.where(mask, np.zeros(()) if bias is None else bias, -np.inf)
        return backend.array(rank4(added), dtype)
    mask = rank4(~mask if kind.endswith("hides") else mask)
    if kind.startswith("binary"):
        return backend.array(mask.astype(np.float64), dtype)
    return backend.array(mask, None)


def is_neutral(default: Any) -> bool:
    """True for a default that switches its parameter off: None, False, 0 or -1, or a pair of None or
    -1."""
    if isinstance(default, tuple | list):
        return all(side in (-1, None) for side in default)
    return default is None or (isinstance(default, bool | int | float) and default in (0, -1))


def word_of(name: str) -> str:
    """Returns the word of a parameter, by its name; "" for an unknown name."""
    return WORD_OF.get(name) or WORD_OF.get(name.lower(), "")
