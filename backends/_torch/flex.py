"""`flex_attention`: bias and softcap by a score_mod, masks by a block mask, sinks by its log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
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
from attention_conformance.backends.masks import dense_of, feature_arrays, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

Shape = tuple[int, int, int, int]
Axes = tuple[int | None, int | None]
"""The numbers of samples and heads of a mask; None if all share one mask."""

KEPT, SMALL = 128, 2**20
"""The number of block masks that are kept, and the largest number of query-key pairs of a kept mask."""


FLEX_REFUSALS = {
    "gradient": "flex_attention has no backward pass on CPU",
    "negative-views": "flex_attention has no kernel for tensors with the negative bit",
}
"""Features that flex_attention lacks on a CPU, with reasons."""


def scale_and_groups(inputs: Inputs) -> dict[str, Any]:
    """The arguments for an explicit scale, and for grouped heads."""
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
        self._block_masks: Cache[Any] = Cache(KEPT)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls: dict[str, PreparedCall] = {}
        if inputs.dense_mask is not None:
            calls["create_mask"] = self.prepare(inputs, self._created)
            calls["blocks of (16, 32)"] = self.prepare(inputs, blocks={"BLOCK_SIZE": (16, 32)})
            full = {"separate_full_blocks": False}
            calls["separate_full_blocks=False"] = self.prepare(inputs, blocks=full)
            calls["create_mask of a score_mod"] = self.prepare(inputs, self._created_of_scores)
        if inputs.feature("lse") and inputs.feature("sinks") is None:
            calls["return_lse"] = self.prepare(inputs, more={"return_lse": True})
        dense = inputs.dense_mask
        if dense is not None and rank4(dense).shape[0] == inputs.sizes.B > 1:
            first = {n: getattr(inputs, n)[:1] for n in ("key", "value")}
            same = {n: np.repeat(array, inputs.sizes.B, 0) for n, array in first.items()}
            one = self.prepare(problem := inputs.replace(**same))
            own = {n: one.arguments[n][:1] for n in first}
            calls["keys of one sample"] = replace(
                one, arguments=one.arguments | own, problem=problem
            )
        return calls

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        s, device = inputs.sizes, self.backend.device
        query, key, value = self.backend.memory.operands(inputs, "bhld")

        def blocks(queries: int, keys: int) -> Any:
            return create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device)

        both = {"return_lse": True, "return_aux": AuxRequest(lse=True)}
        more = [x[:1].expand(s.B + 1, -1, -1, -1) for x in (key, value)]
        changes: dict[str, dict[str, Any]] = {
            "one key head without enable_gqa": {"key": key[:, :1], "value": value[:, :1]},
            "heads that do not divide": {
                "key": key[:, :2], "value": value[:, :2], "enable_gqa": True,
            },
            "more samples of keys": dict(zip(("key", "value"), more, strict=True)),
            "more values than keys": {"key": key[:, :, 1:]},
            "queries of another size": {"query": query[..., 1:]},
            "return_lse beside return_aux": both,
            "a block mask of fewer queries": {"block_mask": blocks(s.Lq - 1, s.Lk)},
            "a block mask of fewer keys": {"block_mask": blocks(s.Lq, s.Lk - 1)},
            "a block mask of more queries": {"block_mask": blocks(s.Lq + 1, s.Lk)},
            "a block mask of more keys": {"block_mask": blocks(s.Lq, s.Lk + 1)},
        }  # fmt: skip
        own = {"query": query, "key": key, "value": value}
        call = uncompiled(flex_attention)
        return {name: partial(call, **own | change) for name, change in changes.items()}

    def _created(
        self, mask_mod: Callable[..., Any], axes: Axes, shape: Shape
    ) -> Callable[..., Any]:
        """A mask_mod that reads the array (B, H, Lq, Lk) that create_mask makes from a mask_mod."""
        from torch.nn.attention.flex_attention import create_mask

        batch, heads = axes
        mask = create_mask(mask_mod, batch, heads, *shape[2:], device=self.backend.device)
        mask = mask.expand(shape)

        def as_written(b, h, i, j):
            return mask[b, h, i, j]

        return as_written

    def _created_of_scores(
        self, mask_mod: Callable[..., Any], axes: Axes, shape: Shape
    ) -> Callable[..., Any]:
        """The same from a score_mod, which masks by scores of minus infinity."""
        where = self.backend.torch.where

        def score_mod(score, b, h, i, j):
            return where(mask_mod(b, h, i, j), score, -float("inf"))

        return self._created(score_mod, axes, shape)

    def prepare(
        self,
        inputs: Inputs,
        rewritten: Callable[[Callable[..., Any], Axes, Shape], Callable[..., Any]] | None = None,
        *,
        blocks: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> PreparedCall:
        """The call.

        `rewritten` replaces the mask_mod, `blocks` are more arguments of create_block_mask, `more` those
        of flex_attention.
        """
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        shape = (s.B, s.H, s.Lq, s.Lk)
        query, key, value = backend.memory.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        dense = dense_of(inputs, split_native(inputs).rest)
        full = None if dense is None else np.broadcast_to(dense, shape)
        leading = (1, 1) if dense is None else rank4(dense).shape[:2]
        # As in users' code: None if all samples or all heads share one mask.
        both = zip(leading, (s.B, s.H), strict=True)
        batch, heads = (None if size == 1 <= count else count for size, count in both)
        mask_mod: Any = None if full is None else _mask_mod_of(backend.array(full, None))
        if mask_mod is not None and rewritten is not None:
            mask_mod = rewritten(mask_mod, (batch, heads), shape)
        softcap, lse = inputs.feature("softcap"), inputs.feature("lse")
        if inputs.bias is not None:
            arguments["bias"] = backend.array(np.broadcast_to(inputs.bias, shape), inputs.dtype)
        arguments |= feature_arrays(backend, inputs)
        arguments |= scale_and_groups(inputs)

        def score_mod_of(bias: Any) -> Callable[..., Any]:
            def score_mod(score, b, h, i, j):
                if softcap is not None:
                    score = softcap * torch.tanh(score / softcap)
                return score if bias is None else score + looked_up(bias, b, h, i, j)

            return score_mod

        called = uncompiled(flex_attention)
        block_masks: list[Any] = []

        def block_mask() -> Any:
            named = {"device": backend.device, **(blocks or {})}
            created = create_block_mask(mask_mod, batch, heads, s.Lq, s.Lk, **named)
            if blocks is not None:
                _compare(created, np.asarray(full))
            return created

        hidden = None if full is None else sha256(full.tobytes()).hexdigest()

        def ahead() -> None:
            if full is not None and not block_masks:
                # Models also make a block mask once and pass it to every layer.
                common = full.size <= SMALL and rewritten is None and blocks is None
                cached = self._block_masks.get
                block_masks.append(cached((shape, hidden), block_mask) if common else block_mask())

        def call(bias: Any = None, sinks: Any = None, **arguments: Any) -> Any:
            traced = torch.compiler.is_compiling()
            if full is not None:
                if not traced:
                    ahead()
                arguments["block_mask"] = block_masks[0] if block_masks else block_mask()
            if bias is not None or softcap is not None:
                arguments["score_mod"] = score_mod_of(bias)
            arrays = [bias, sinks, *(arguments[name] for name in OPERANDS)]
            if more is not None:
                arguments |= more
            elif lse or sinks is not None:
                arguments["return_aux"] = AuxRequest(lse=True)
            if traced or any(array is not None and array.requires_grad for array in arrays):
                answer = flex_attention(**arguments)
            else:
                answer = called(**arguments)
            if sinks is not None:
                # Without rows flex_attention returns no log-sum-exp (finding flex-lse-of-nothing).
                total = answer[1].lse
                return answer[0] if total is None else sunk(answer[0], total, sinks)
            if not lse:
                return answer
            output, total = answer
            return output, total.lse if more is None else total

        def sunk(output: Any, total: Any, sinks: Any) -> Any:
            # The keys' share of the weight of a row: exp(lse) / (exp(lse) + exp(sink)).
            share = torch.sigmoid(total - sinks.to(total.dtype)[:, None])  # (B, H, Lq)
            return (output * share[..., None]).to(output.dtype)

        return attention_call(
            call,
            arguments,
            inputs,
            constants=(softcap, hidden),
            ahead=ahead,
        )


def _mask_mod_of(allowed: Any) -> Callable[..., Any]:
    """A mask as a function of indices."""

    def mask_mod(b, h, i, j):
        return looked_up(allowed, b, h, i, j)

    return mask_mod


def _compare(block_mask: Any, mask: np.ndarray) -> None:
    """Raise RuntimeError if a block mask does not list the blocks of the mask (B, H, Lq, Lk).

    The uncompiled operator does not read the list of blocks, so answers would not show a wrong list.
    """
    rows, keys = block_mask.BLOCK_SIZE
    *leading, queries, count = mask.shape
    padded = np.pad(mask, ((0, 0), (0, 0), (0, -queries % rows), (0, -count % keys)))
    apart = padded.reshape(*leading, -(-queries // rows), rows, -(-count // keys), keys)
    listed = np.broadcast_to(block_mask.to_dense().cpu().numpy() != 0, apart.any((3, 5)).shape)
    if (listed != apart.any((3, 5))).any():
        raise RuntimeError("the block mask lists other blocks than those of the mask")


def looked_up(table: Any, *indices: Any) -> Any:
    """The entry `table[indices]` within a mask_mod or score_mod.

    Without compilation and gradients this calls the operator `aten.index`: brackets in a mod make an
    autograd function, which takes 3 of the 4 ms of a call. The paths of create_mask use brackets.
    """
    import torch

    if torch.compiler.is_compiling() or table.requires_grad:
        return table[indices]
    return torch.ops.aten.index.Tensor(table, list(indices))


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """flex_attention with its documented switch for debugging.

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
