"""Shared code of PyTorch's layers with attention: masks, loading of parameters, detection
of fast paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.masks import LayerMasks, full
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs


class Masked(Implementation):
    """A layer with key_padding_mask and attn_mask."""

    backend: TorchEngine

    def masks(self, inputs: Inputs, hint: bool, float_mask: bool) -> dict[str, Any]:
        """key_padding_mask and attn_mask; in both True hides. is_causal is passed only beside a mask."""
        backend = self.backend
        if inputs.form == "flag":
            return {"is_causal": True}
        if inputs.form == "flag-and-mask":
            inputs, hint = inputs.replace(mask=None, form="dense"), True
        split = LayerMasks.of(inputs, causal=False)
        masks: dict[str, Any] = {}
        if split.valid is not None:
            valid = split.valid[0] if inputs.squeezed else split.valid
            masks["key_padding_mask"] = backend.array(~valid, None)
        if split.rest is not None and inputs.form == "raw":
            return {"attn_mask": backend.array(split.rest, None)}
        if inputs.bias is not None or (split.rest is not None and float_mask):
            added = np.zeros((1, 1)) if inputs.bias is None else inputs.bias
            if split.rest is not None:
                added = np.where(split.rest, added, -np.inf)
            masks["attn_mask"] = backend.array(self.shaped(added, inputs), inputs.dtype)
        elif split.rest is not None:
            masks["attn_mask"] = backend.array(self.shaped(~split.rest, inputs), None)
        if hint:
            masks["is_causal"] = True
        return masks

    def shaped(self, mask: np.ndarray, inputs: Inputs) -> np.ndarray:
        """The mask as (Lq, Lk) if samples and heads share it, else as (B H, Lq, Lk)."""
        s = inputs.sizes
        if mask.ndim == 2 or mask.shape[:2] == (1, 1):
            return np.ascontiguousarray(np.broadcast_to(mask, (1, 1, s.Lq, s.Lk))[0, 0])
        return full(mask, inputs).reshape(s.B * s.H, s.Lq, s.Lk).copy()


def load(
    layer: Any,
    state: Mapping[str, np.ndarray],
    backend: TorchEngine,
    dtype: DType,
    whole: bool = True,
) -> Any:
    """Load parameters by the module's names into the layer; with `whole` they must be all parameters."""
    arrays = {n: backend.array(np.ascontiguousarray(a), dtype) for n, a in state.items()}
    layer.load_state_dict(arrays, strict=whole)
    return layer


def forced(plain: PreparedCall, native: str) -> PreparedCall:
    """The call, which raises RuntimeError unless it calls the function `native`."""

    def call(**arguments: Any) -> Any:
        answer, taken = witnessed(lambda: plain.function(**arguments), native)
        if not taken:
            raise RuntimeError("the fast path was not taken")
        return answer

    return PreparedCall(call, plain.arguments, LAYER_OUTPUTS)


MULTI_HEAD_PATH = "_native_multi_head_attention"

_WITNESS = RLock()
"""Held while a function of torch is replaced by its witness, which all threads see."""


def witnessed(function: Callable[[], Any], native: str = MULTI_HEAD_PATH) -> tuple[Any, bool]:
    """The answer of a call, and whether the call took the fast path, that is, called `native`."""
    import torch

    if torch.compiler.is_compiling():
        return function(), True  # a compiler traces no function that is replaced meanwhile
    taken = []

    def counting(*arguments: Any, **named: Any) -> Any:
        taken.append(True)
        return original(*arguments, **named)

    with _WITNESS:
        original = getattr(torch, native)
        setattr(torch, native, counting)
        try:
            answer = function()
        finally:
            setattr(torch, native, original)
    return answer, bool(taken)
