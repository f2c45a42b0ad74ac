"""The control: product, softmax, product in one small kernel, also in the unmended interpreter."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._triton.interpreter import mended
from attention_conformance.backends.declared import ATTENTION_FEATURES, NANS, OF_BACKENDS, Declared
from attention_conformance.backends.masks import dense_arguments
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs

SMALLEST_BLOCK = 16
"""The smallest block of `triton.language.dot`."""


class Eager(Implementation):
    """`backends._triton.kernels.attend`, with the keys of a row in one block."""

    backend: TorchEngine

    name = "eager"
    textbook = True
    declared = Declared(
        numerics="exact",
        features=ATTENTION_FEATURES,
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
            "softcap": "the kernel has no softcap",
            "gradient": "the kernel has no backward pass",
        },
        elections=NANS | {"no-keys": "nan", "value-size": "accepted"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        scale = inputs.effective_scale

        def call(query: Any, key: Any, value: Any, mask: Any, bias: Any) -> Any:
            return attention(query, key, value, mask, bias, scale)

        arguments = dense_arguments(self.backend, inputs)
        return attention_call(call, arguments, inputs, constants=(scale,)).under(self.within)

    def within(self) -> AbstractContextManager[Any]:
        """Returns the context of a call."""
        return mended() if self.backend.device == "cpu" else nullcontext()


class EagerUnmended(Eager):
    """`Eager` in bfloat16, without masks and other features, in the interpreter that is not mended."""

    name = "eager-unmended"
    declared = Eager.declared.but(
        features=frozenset(),
        refusals=dict.fromkeys(OF_BACKENDS, "is tested with the control"),
        elections={},
        dtypes=("bf16",),
    )

    def within(self) -> AbstractContextManager[Any]:
        return nullcontext()


def attention(query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: float) -> Any:
    """Returns the output (B, H, Lq, Dv). mask and bias may be None; they broadcast to (B, H, Lq, Lk).
    Raises ValueError if operands do not fit."""
    import torch
    import triton

    from attention_conformance.backends._triton.kernels import attend

    (B, H, Lq, D), (Hkv, Lk, Dv) = query.shape, value.shape[1:]
    if key.shape != (B, Hkv, Lk, D) or len(value) != B or not Hkv or H % Hkv:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value do not fit: {shapes}")
    output = query.new_empty((B, H, Lq, Dv))
    resolved = [x if x is None else x.resolve_neg() for x in (query, key, value, mask, bias)]
    masks = [x if x is None else x.broadcast_to(B, H, Lq, Lk) for x in resolved[3:]]
    arrays = [*resolved[:3], *masks, output]
    strides = [array.stride() if torch.is_tensor(array) else (0, 0, 0, 0) for array in arrays]
    blocks = [max(SMALLEST_BLOCK, triton.next_power_of_2(size)) for size in (Lk, D, Dv)]
    grid = (triton.cdiv(Lq, SMALLEST_BLOCK), B * H)
    attend[grid](*arrays, *strides, H, H // Hkv, Lq, Lk, scale, D, Dv, SMALLEST_BLOCK, *blocks)
    return output
