"""`flex_attention`: bias and softcap by a score_mod, masks by a block mask, sinks by its log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np

from attention_conformance.backends._torch.attention import SUBNORMAL
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    FILLED,
    LOWEST_IN_FLOAT32,
    ZEROS,
    Declared,
)
from attention_conformance.backends.masks import feature_arrays, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

KEPT_MASKS, LARGEST_KEPT_MASK = 128, 2**20
"""The number of cached block masks, and the largest number of query-key pairs of a cached mask."""


FLEX_REFUSALS = {
    "gradient": "flex_attention has no backward pass on CPU",
    "negative-views": "flex_attention has no kernel for tensors with the negative bit",
}
"""Features that flex_attention lacks on a CPU, with reasons."""


def scale_and_groups(inputs: Inputs) -> dict[str, Any]:
    """Returns the arguments `scale`, if it is explicit, and `enable_gqa`, if heads are grouped."""
    scale: dict[str, Any] = {} if inputs.scale is None else {"scale": inputs.scale}
    return scale | ({"enable_gqa": True} if inputs.sizes.H != inputs.sizes.Hkv else {})


class Flex(Implementation):
    """`flex_attention` without compilation."""

    backend: TorchEngine

    name = "flex"
    declared = Declared(
        numerics="eager",
        features=ATTENTION_FEATURES | {"lse", "sinks"},
        refusals={
            "native-causal": "flex_attention has no causal flag",
            "native-window": "flex_attention has no window",
            "mask-array": "flex_attention takes masks and biases as functions of indices",
            "negative-views": FLEX_REFUSALS["negative-views"],
        },
        elections=FILLED
        | ZEROS
        | {
            "lowest-row": LOWEST_IN_FLOAT32,
            "no-keys": "raises",
            "lse-of-empty-row": "minus-inf",
            "subnormal-output": SUBNORMAL,
            "score-overflow": "finite",
        },
    )

    def __init__(self, backend: TorchEngine) -> None:
        declared = self.declared
        if backend.device == "cpu":
            declared = declared.refusing(FLEX_REFUSALS)
        super().__init__(backend, declared=declared)
        self._block_masks: Cache[Any] = Cache(KEPT_MASKS)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        shape = (s.B, s.H, s.Lq, s.Lk)
        query, key, value = backend.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        dense = split_native(inputs).dense(inputs)
        full_mask = None if dense is None else np.broadcast_to(dense, shape)
        leading = (1, 1) if dense is None else rank4(dense).shape[:2]
        # As in users' code: None if all samples or all heads share one mask.
        sizes = zip(leading, (s.B, s.H), strict=True)
        batch, heads = (None if size == 1 <= count else count for size, count in sizes)
        mask_mod: Any = None if full_mask is None else _mask_mod_of(backend.array(full_mask, None))
        softcap, lse = inputs.feature("softcap"), inputs.feature("lse")
        if inputs.bias is not None:
            arguments["bias"] = backend.array(np.broadcast_to(inputs.bias, shape), inputs.dtype)
        arguments |= feature_arrays(backend, inputs)
        arguments |= scale_and_groups(inputs)

        def score_mod_of(bias: Any) -> Callable[..., Any]:
            def score_mod(score, b, h, i, j):
                if softcap is not None:
                    score = softcap * torch.tanh(score / softcap)
                return score if bias is None else score + table_entry(bias, b, h, i, j)

            return score_mod

        uncompiled_function = uncompiled(flex_attention)
        block_masks: list[Any] = []

        def make_block_mask() -> Any:
            return create_block_mask(mask_mod, batch, heads, s.Lq, s.Lk, device=backend.device)

        mask_digest = None if full_mask is None else sha256(full_mask.tobytes()).hexdigest()

        def ahead() -> None:
            if full_mask is not None and not block_masks:
                # Models also make a block mask once and pass it to every layer.
                is_cached = full_mask.size <= LARGEST_KEPT_MASK
                get, key = self._block_masks.get, (shape, mask_digest)
                block_masks.append(get(key, make_block_mask) if is_cached else make_block_mask())

        def call(bias: Any = None, sinks: Any = None, **arguments: Any) -> Any:
            traced = torch.compiler.is_compiling()
            if full_mask is not None:
                if not traced:
                    ahead()
                arguments["block_mask"] = block_masks[0] if block_masks else make_block_mask()
            if bias is not None or softcap is not None:
                arguments["score_mod"] = score_mod_of(bias)
            arrays = [bias, sinks, *(arguments[name] for name in OPERANDS)]
            if lse or sinks is not None:
                arguments["return_aux"] = AuxRequest(lse=True)
            if traced or any(array is not None and array.requires_grad for array in arrays):
                answer = flex_attention(**arguments)
            else:
                answer = uncompiled_function(**arguments)
            if sinks is not None:
                # Without rows flex_attention returns no log-sum-exp (finding flex-lse-of-nothing).
                lse_output = answer[1].lse
                return answer[0] if lse_output is None else with_sinks(answer[0], lse_output, sinks)
            if not lse:
                return answer
            output, aux = answer
            return output, aux.lse

        def with_sinks(output: Any, lse: Any, sinks: Any) -> Any:
            # The keys' share of the weight of a row: exp(lse) / (exp(lse) + exp(sink)).
            share = torch.sigmoid(lse - sinks.to(lse.dtype)[:, None])  # (B, H, Lq)
            return (output * share[..., None]).to(output.dtype)

        return attention_call(
            call,
            arguments,
            inputs,
            constants=(softcap, mask_digest),
            ahead=ahead,
        )


def _mask_mod_of(allowed: Any) -> Callable[..., Any]:
    """Returns a mask as a function of indices."""

    def mask_mod(b, h, i, j):
        return table_entry(allowed, b, h, i, j)

    return mask_mod


def table_entry(table: Any, *indices: Any) -> Any:
    """Returns `table[indices]` within a mask_mod or score_mod.

    Without compilation and gradients this calls the operator `aten.index`. Brackets in a mod make an
    autograd function, which takes 3 of the 4 ms of a call.
    """
    import torch

    if torch.compiler.is_compiling() or table.requires_grad:
        return table[indices]
    return torch.ops.aten.index.Tensor(table, list(indices))


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns flex_attention, called with its documented switch for debugging, which turns compilation
    off.

    Without the switch every call traces its closures again through torch.compile with the eager backend,
    0.35 s per call, to run the same operator. The switch warns of wrong gradients, so differentiated
    calls do not use it.
    """
    import torch.nn.attention.flex_attention as module

    def call(*operands: Any, **arguments: Any) -> Any:
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        try:
            return function(*operands, **arguments)
        finally:
            module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False

    return call
