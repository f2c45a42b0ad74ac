"""The arguments of a call of a user's layer, and cases changed for a kind of layer."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.masks import Call, Native, full
from attention_conformance.backends.user.names import ROWS
from attention_conformance.backends.user.observing import MASKS, Facts
from attention_conformance.suite.spec.case import Case, Widths


def as_kind(case: Case, kind: str) -> Case:
    """Returns a case of multi-head attention changed for layers of `kind`: self-attention; for the kind
    "self-attention" also one head and no output projection. Other operators' cases are returned
    unchanged. Raises ValueError if the operator has no such case."""
    if case.option("kind") in (None, kind) or kind == case.operator.name:
        return case
    s, w = case.sizes, case.widths
    assert w is not None
    heads = {"H": 1, "Hkv": 1} if kind == "self-attention" else {}
    output = s.Dv if kind == "self-attention" else w.output
    sizes, widths = replace(s, Lk=s.Lq, **heads), Widths(w.query, w.query, w.query, output)
    sized = replace(case, sizes=sizes, widths=widths)
    return sized.with_options(kind=kind, self_attention=True)


def parameter_names(case: Case) -> frozenset[str]:
    """Returns the names of a case's learned parameters."""
    return frozenset(case.operator.learned(case.axes))


class ReadNames(UserDict[str, Any]):
    """A dictionary of parameters. `names`: the names that were read."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def biases_of(names: Iterable[str]) -> set[str]:
    """Returns those of `names` that are names of projection biases."""
    return {name for name in names if name.endswith("_bias")}


def without_biases(case: Case) -> Case | None:
    """Returns the case without projection biases; None if its operator lacks the option."""
    if "without_biases" not in {option.name for option in case.operator.options}:
        return None
    return case.with_options(without_biases=True)


@dataclass(frozen=True)
class LayerCall(Call):
    """A call of a layer. `masks`: its mask, divided into the layer's arguments. `facts`: how the layer is
    called."""

    masks: Native
    facts: Facts
    hides: bool
    """True if the layer's masks are True for masked keys."""

    def mask(self) -> Any:
        """Returns the part of the mask that `causal` and `valid` do not pass, with `Facts.mask_axes` axes
        and of the kind `Facts.mask_kind`. None without such a part. A mask in the form "raw" is passed
        unchanged, except that (Lq, Lk) gets these axes."""
        inputs, facts = self.inputs, self.facts
        mask = self.masks.dense(inputs)
        raw, s = inputs.form == "raw", inputs.sizes
        if mask is not None and (not raw or mask.shape == (s.Lq, s.Lk)):
            heads_share = mask.ndim < 4 or mask.shape[1] == 1
            mask = full(mask, inputs)[:, :1] if heads_share else full(mask, inputs)
            mask = mask[:, 0] if facts.mask_axes == 3 else mask
            mask = ~mask if self.hides and not raw else mask
        if mask is None or facts.mask_kind == MASKS[0] or raw:
            return self.array(mask)
        added = facts.mask_kind == MASKS[2]
        return self.array(np.where(mask, *(0.0, -np.inf) if added else (1.0, 0.0)), inputs.dtype)

    def valid(self) -> Any:
        """Returns boolean (B, Lk), True for valid keys; None without padding."""
        return self.array(self.masks.valid(self.inputs))

    def valid_lens(self) -> Any:
        """Returns the number of valid keys of each sample, (B,) int32; None without padding."""
        valid = self.masks.valid(self.inputs)
        return None if valid is None else self.array(valid.sum(-1).astype(np.int32))

    def padding(self) -> Any:
        """Returns boolean (B, Lk), True for padding; None without padding."""
        valid = self.masks.valid(self.inputs)
        return None if valid is None else self.array(~valid)

    def bias(self) -> Any:
        """Returns the bias, broadcast to (B, H, Lq, Lk); None without a bias."""
        inputs = self.inputs
        bias = None if inputs.bias is None else full(inputs.bias, inputs)
        return self.array(bias, inputs.dtype)


CALL: tuple[Parameter[LayerCall], ...] = (
    Parameter(
        "causal", ("causal", "native-causal"), lambda call: call.masks.causal or None,
        names=ROWS["is_causal"].every_name,
    ),
    Parameter("valid", ("padding",), LayerCall.valid),
    Parameter(
        "valid_lens", ("padding",), LayerCall.valid_lens, unless="valid",
        names=(*ROWS["lengths"].every_name, "valid_lengths"),
    ),
    Parameter("key_padding_mask", ("padding",), LayerCall.padding, unless="valid"),
    Parameter(
        "mask", ("mask", "mask-array", "window", "causal", "padding"), LayerCall.mask,
        names=ROWS["attn_mask"].every_name,
    ),
    Parameter("bias", ("bias", "bias-with-mask"), LayerCall.bias),
    Parameter(
        "return_weights",
        ("average", "weights"),
        lambda call: call.inputs.returned != "none" or None,
        names=(
            "return_attention_scores", "need_weights", "return_attention", "output_attentions",
        ),
    ),
    Parameter(
        "training", (), lambda call: call.inputs.training, names=("train", "is_training")
    ),
    Parameter("deterministic", (), lambda call: not call.inputs.training),
    Parameter("seed", (), lambda call: call.inputs.dropout_seed),
    Parameter("sow_weights"),  # of Flax: weights are then stored in the module
)  # fmt: skip
"""The keyword parameters of layers."""
