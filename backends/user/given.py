"""What parameters of people's functions are given, by the names that people use (docs/signatures.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.masks import AttentionCall, dense_of, rank4
from attention_conformance.suite.spec.binding import ADDING, HIDING, MASK_WORDS
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.masks import Causal, Mask

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


Value = Callable[[AttentionCall, Any], Any]


@dataclass(frozen=True)
class Given:
    """What a parameter is given.

    - `names`: the names that people use, the word of the claim `parameters` first
    - `value(call, default)`: the argument, in the form of the parameter's default; None if the call does
      not need the parameter
    - `neutral(call)`: the argument of a parameter without a default in a call that does not need it
    """

    names: tuple[str, ...]
    features: tuple[str, ...] = ()
    value: Value = lambda call, default: None
    neutral: Callable[[AttentionCall], Any] = lambda call: None


def feature(name: str) -> Value:
    """The value of a feature that is a number or a flag; None if the call does not need the feature."""

    def value(call: AttentionCall, default: Any) -> Any:
        inputs = call.inputs
        return inputs.feature(name) if FEATURES[name].asked_by(inputs.case) else None

    return value


def module(call: AttentionCall) -> SimpleNamespace:
    """What functions of transformers read of their module."""
    group = call.inputs.sizes.group
    return SimpleNamespace(training=True, is_causal=False, num_key_value_groups=group)


def window(call: AttentionCall, default: Any) -> Any:
    """(left, right) of a window; -1 for a side without limit."""
    part = call.native.window
    return None if part is None else tuple(-1 if n is None else n for n in (part.left, part.right))


def window_left(call: AttentionCall, default: Any) -> Any:
    """The left side of a window; None without limit."""
    part = call.native.window
    return None if part is None else part.left


def lengths(call: AttentionCall, default: Any) -> Any:
    """The numbers of keys (B,), int64."""
    part, inputs = call.native.lengths, call.inputs
    if part is None:
        return None
    return call.backend.array(part.lengths(inputs.sizes, inputs.seed), None)


def dropout(call: AttentionCall, default: Any) -> Any:
    """The rate of dropout in training; for the default None a function that drops weights."""
    rate = call.inputs.rate if call.inputs.training else 0.0
    return dropping(call.backend, rate, default) if rate else None


def dropping(backend: Backend, rate: float, default: Any) -> Any:
    """The argument that drops weights at a rate, for a parameter with this default."""
    return rate if default is not None else backend.compilers.dropping(rate)


GIVEN = (
    Given(("attn_mask", "mask", "attention_mask")),
    Given(("causal_mask",)),
    Given(("padding_mask",)),
    Given(("bias", "attn_bias")),
    Given(("lengths", "valid_lens", "valid_len"), ("padding",), lengths),
    Given(
        ("is_causal", "causal", "use_causal_mask"),
        ("causal", "native-causal"),
        lambda call, default: call.native.causal or None,
        lambda call: False,
    ),
    Given(
        ("scale", "softmax_scale", "sm_scale", "scaling"),
        ("scale",),
        lambda call, default: call.inputs.scale,
        lambda call: call.inputs.effective_scale,
    ),
    Given(("dropout", "dropout_p", "dropout_rate", "p"), ("dropout",), dropout, lambda call: 0.0),
    Given(("window", "window_size"), ("window", "native-window"), window, lambda call: (-1, -1)),
    Given(("window_left",), ("window", "native-window"), window_left, lambda call: -1),
    Given(("softcap", "logits_soft_cap"), ("softcap",), feature("softcap"), lambda call: 0.0),
    Given(
        ("lse", "return_lse", "return_softmax_lse"), ("lse",), feature("lse"), lambda call: False
    ),
    Given(("module",), neutral=module),
    Given(("nothing",)),
)
"""What parameters are given besides query, key and value; `nothing` is None."""

ROWS = {given.names[0]: given for given in GIVEN}

OPERAND_NAMES = {
    "query": ("query", "q", "queries"),
    "key": ("key", "k", "keys"),
    "value": ("value", "v", "values"),
}
"""The names of query, key and value that people use, in small or capital letters."""

WORD_OF = {
    name: names[0]
    for names in (*OPERAND_NAMES.values(), *(given.names for given in GIVEN))
    for name in names
}
"""What a parameter of a name is given."""

PARTS: Mapping[str, Callable[[Mask], bool]] = {
    "all": lambda part: True,
    "causal": lambda part: isinstance(part, Causal),
    "rest": lambda part: not isinstance(part, Causal),
    "none": lambda part: False,
}
"""Parts of a mask."""

SERVED = {"all": HIDING, "causal": ("causal",), "rest": HIDING[:-1], "none": ()}
"""The features that parts of a mask serve."""


def parts_for(word: str, words: Collection[str]) -> str:
    """The parts of a mask that the argument `word` is given in a function with arguments `words`."""
    masks = [one for one in MASK_WORDS if one in words]
    if word == "bias":
        return "none" if masks else "all"
    if "causal_mask" not in masks or len(masks) == 1:
        return "all"
    return "causal" if word == "causal_mask" else "rest"


def pair_argument(
    name: str, word: str, words: Collection[str], kind: str, required: bool
) -> Parameter[AttentionCall]:
    """The row of a parameter with axes of queries and keys: a mask of a `kind` of
    `suite.spec.claims.MASKS`, or a bias."""
    parts = parts_for(word, words)
    own_bias = word == "bias"
    biased = own_bias or (
        word == "attn_mask" and "bias" not in words and kind in ("either", "additive")
    )

    def value(call: AttentionCall) -> Any:
        inputs = call.inputs
        rest = tuple(part for part in call.native.rest if PARTS[parts](part))
        whole = parts in ("all", "rest") or inputs.mask_array is None
        mask = dense_of(inputs, rest) if whole and parts != "none" else None
        return written(
            call, mask, inputs.bias if biased else None, "additive" if own_bias else kind
        )

    return Parameter(name, (*SERVED[parts], *(ADDING if biased else ())), value, told=required)


def written(
    call: AttentionCall, mask: np.ndarray | None, bias: np.ndarray | None, kind: str
) -> Any:
    """The array of rank 4 of a mask of a `kind`, or of a bias with -inf where the mask hides; None
    without both."""
    backend, dtype = call.backend, call.inputs.dtype
    if mask is None:
        return None if bias is None else backend.array(rank4(bias), dtype)
    if bias is not None or kind == "additive":
        added = np.where(mask, np.zeros(()) if bias is None else bias, -np.inf)
        return backend.array(rank4(added), dtype)
    seen = rank4(~mask if kind.endswith("hides") else mask)
    if kind.startswith("binary"):
        return backend.array(seen.astype(np.float64), dtype)
    return backend.array(seen, None)


def is_neutral(default: Any) -> bool:
    """True if a default means that nothing is asked: None, False, 0, or -1; of two sides both."""
    if isinstance(default, tuple | list):
        return all(side in (-1, None) for side in default)
    return default is None or (isinstance(default, bool | int | float) and default in (0, -1))


def word_of(name: str) -> str:
    """What a parameter is given by its name; "" if nobody knows."""
    return WORD_OF.get(name) or WORD_OF.get(name.lower(), "")
