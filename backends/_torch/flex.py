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
from attention_conformance.backends.masks import feature_arrays, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

Shape = tuple[int, int, int, int]
Axes = tuple[int | None, int | None]
"""The numbers of samples and heads of a mask; None if all share one mask."""

KEPT_MASKS, LARGEST_KEPT_MASK = 128, 2**20
"""The number of cached block masks, and the largest number of query-key pairs of a cached mask."""


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
        self._block_masks: Cache[Any] = Cache(KEPT_MASKS)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls: dict[str, PreparedCall] = {}
        if inputs.dense_mask is not None:
            calls["create_mask"] = self.prepare(inputs, self._mask_mod_of_create_mask)
            blocks = {"BLOCK_SIZE": (16, 32)}
            calls["blocks of (16, 32)"] = self.prepare(inputs, block_options=blocks)
            options = {"separate_full_blocks": False}
            calls["separate_full_blocks=False"] = self.prepare(inputs, block_options=options)
            calls["create_mask of a score_mod"] = self.prepare(inputs, self._mask_mod_of_score_mod)
        if inputs.feature("lse") and inputs.feature("sinks") is None:
            calls["return_lse"] = self.prepare(inputs, extra_arguments={"return_lse": True})
        dense = inputs.dense_mask
        if dense is not None and rank4(dense).shape[0] == inputs.sizes.B > 1:
            first = {n: getattr(inputs, n)[:1] for n in ("key", "value")}
            repeated = {n: np.repeat(array, inputs.sizes.B, 0) for n, array in first.items()}
            call = self.prepare(problem := inputs.replace(**repeated))
            single_sample = {n: call.arguments[n][:1] for n in first}
            calls["keys of one sample"] = replace(
                call, arguments=call.arguments | single_sample, problem=problem
            )
        return calls

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        s, device = inputs.sizes, self.backend.device
        query, key, value = self.backend.operands(inputs, "bhld")

        def block_mask(queries: int, keys: int) -> Any:
            return create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device)

        both_lse_options = {"return_lse": True, "return_aux": AuxRequest(lse=True)}
        longer = [x[:1].expand(s.B + 1, -1, -1, -1) for x in (key, value)]
        changes: dict[str, dict[str, Any]] = {
            "one key head without enable_gqa": {"key": key[:, :1], "value": value[:, :1]},
            "heads that do not divide": {
                "key": key[:, :2], "value": value[:, :2], "enable_gqa": True,
            },
            "more samples of keys": dict(zip(("key", "value"), longer, strict=True)),
            "more values than keys": {"key": key[:, :, 1:]},
            "queries of another size": {"query": query[..., 1:]},
            "return_lse beside return_aux": both_lse_options,
            "a block mask of fewer queries": {"block_mask": block_mask(s.Lq - 1, s.Lk)},
            "a block mask of fewer keys": {"block_mask": block_mask(s.Lq, s.Lk - 1)},
            "a block mask of more queries": {"block_mask": block_mask(s.Lq + 1, s.Lk)},
            "a block mask of more keys": {"block_mask": block_mask(s.Lq, s.Lk + 1)},
        }  # fmt: skip
        operands = {"query": query, "key": key, "value": value}
        call = uncompiled(flex_attention)
        return {name: partial(call, **operands | change) for name, change in changes.items()}

    def _mask_mod_of_create_mask(
        self, mask_mod: Callable[..., Any], axes: Axes, shape: Shape
    ) -> Callable[..., Any]:
        """A mask_mod that reads the array (B, H, Lq, Lk) that create_mask makes from `mask_mod`."""
        from torch.nn.attention.flex_attention import create_mask

        batch, heads = axes
        mask = create_mask(mask_mod, batch, heads, *shape[2:], device=self.backend.device)
        mask = mask.expand(shape)

        def as_written(b, h, i, j):
            return mask[b, h, i, j]

        return as_written

    def _mask_mod_of_score_mod(
        self, mask_mod: Callable[..., Any], axes: Axes, shape: Shape
    ) -> Callable[..., Any]:
        """`_mask_mod_of_create_mask` of a score_mod that returns -inf where `mask_mod` is False."""
        where = self.backend.torch.where

        def score_mod(score, b, h, i, j):
            return where(mask_mod(b, h, i, j), score, -float("inf"))

        return self._mask_mod_of_create_mask(score_mod, axes, shape)

    def prepare(
        self,
        inputs: Inputs,
        rewrite: Callable[[Callable[..., Any], Axes, Shape], Callable[..., Any]] | None = None,
        *,
        block_options: Mapping[str, Any] | None = None,
        extra_arguments: Mapping[str, Any] | None = None,
    ) -> PreparedCall:
        """The call. `rewrite` returns the mask_mod to use instead of the usual one;
        `block_options` are arguments of create_block_mask, and `extra_arguments` of flex_attention,
        besides the usual ones.
        """
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
        if mask_mod is not None and rewrite is not None:
            mask_mod = rewrite(mask_mod, (batch, heads), shape)
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

        uncompiled_function = uncompiled(flex_attention)
        block_masks: list[Any] = []

        def make_block_mask() -> Any:
            options = {"device": backend.device, **(block_options or {})}
            created = create_block_mask(mask_mod, batch, heads, s.Lq, s.Lk, **options)
            if block_options is not None:
                _compare(created, np.asarray(full_mask))
            return created

        mask_digest = None if full_mask is None else sha256(full_mask.tobytes()).hexdigest()

        def ahead() -> None:
            if full_mask is not None and not block_masks:
                # Models also make a block mask once and pass it to every layer.
                is_usual = rewrite is None and block_options is None
                is_cached = is_usual and full_mask.size <= LARGEST_KEPT_MASK
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
            if extra_arguments is not None:
                arguments |= extra_arguments
            elif lse or sinks is not None:
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
            output, lse_output = answer
            return output, lse_output.lse if extra_arguments is None else lse_output

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
    in_blocks = padded.reshape(*leading, -(-queries // rows), rows, -(-count // keys), keys)
    listed = np.broadcast_to(block_mask.to_dense().cpu().numpy() != 0, in_blocks.any((3, 5)).shape)
    if (listed != in_blocks.any((3, 5))).any():
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
    """flex_attention, called with its documented switch for debugging, which turns compilation off.

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
