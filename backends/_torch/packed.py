"""Packed attention in PyTorch: jagged nested tensors, and `flex_attention` with a mask of documents."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.flex import KEPT, looked_up, uncompiled
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import segmented
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED


class NestedSdpa(Implementation):
    """`scaled_dot_product_attention` of jagged nested tensors, (B, H, length, D)."""

    backend: TorchEngine

    name = "nested-sdpa"
    operator = PACKED
    declared = Declared(
        # In 16 bits scaled queries and keys are rounded before their product. Only `working` has such
        # roundings (finding nested-in-16-bits).
        numerics={"f64": "eager", "f32": "eager", "bf16": "working", "f16": "working"},
        features=FEATURES | {"length-arrays"},
        refusals={
            "causal": "on a CPU is_causal does not work with nested tensors",
            "causal-bottom-right": "on a CPU is_causal does not work with nested tensors",
            "grouped-heads": "on a CPU grouped heads do not work with nested tensors",
            "strided-operands": "nested tensors must be made of contiguous arrays",
        },
        elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        torch = self.backend.torch
        settings: dict[str, Any] = {"scale": inputs.scale}
        if inputs.case.option("alignment") != "all":
            settings["is_causal"] = True
        if inputs.sizes.H != inputs.sizes.Hkv:
            settings["enable_gqa"] = True

        def call(query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any) -> Any:
            def jagged(x: Any, offsets: Any) -> Any:
                nested = torch.nested.nested_tensor_from_jagged(x, offsets)
                return nested.transpose(1, 2)

            answer = torch.nn.functional.scaled_dot_product_attention(
                jagged(query, query_offsets), jagged(key, key_offsets), jagged(value, key_offsets),
                **settings,
            )  # fmt: skip
            return answer.transpose(1, 2).values()

        return PreparedCall(call, segmented(self.backend, inputs))


class FlexPacked(Implementation):
    """`flex_attention` over one sample, with a block mask of documents as in its documentation."""

    backend: TorchEngine

    name = "flex-packed"
    operator = PACKED
    declared = Declared(
        numerics="eager",
        features=FEATURES,
        refusals={
            "gradient": "flex_attention has no backward pass on CPU",
            "negative-views": "flex_attention has no kernel for tensors with the negative bit",
        },
        elections={"nan-in-other-segment": "others", "segment-without-keys": "zeros"},
    )

    def __init__(self, backend: TorchEngine) -> None:
        declared = self.declared if backend.device == "cpu" else self.declared.taking("gradient")
        super().__init__(backend, declared=declared)
        self._block_masks: Cache[Any] = Cache(KEPT)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        alignment = inputs.case.option("alignment")
        settings: dict[str, Any] = {} if inputs.scale is None else {"scale": inputs.scale}
        if s.H != s.Hkv:
            settings["enable_gqa"] = True
        called = uncompiled(flex_attention)

        def block_mask_of(query_offsets: Any, key_offsets: Any) -> Any:
            def documents(offsets: Any, count: int) -> Any:
                places = torch.arange(count, device=offsets.device)
                return torch.searchsorted(offsets, places, right=True) - 1

            of_query, of_key = documents(query_offsets, s.Lq), documents(key_offsets, s.Lk)
            of_rows, of_keys = query_offsets.diff(), key_offsets.diff()

            def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
                document = looked_up(of_query, i)
                same = document == looked_up(of_key, j)
                if alignment == "all":
                    return same
                row = i - looked_up(query_offsets, document)
                key_place = j - looked_up(key_offsets, document)
                if alignment == "causalbr":
                    row = row + looked_up(of_keys, document) - looked_up(of_rows, document)
                return same & (key_place <= row)

            return create_block_mask(mask_mod, None, None, s.Lq, s.Lk, device=backend.device)

        def kept(*offsets: Any) -> Any:
            """The block mask of these documents, cached: models make it once per batch.

            The key is the values of the offsets; on a GPU reading them synchronises.
            """
            key = (alignment, s.Lq, s.Lk, *(tuple(each.tolist()) for each in offsets))
            return self._block_masks.get(
                key, lambda: block_mask_of(*(each.clone() for each in offsets))
            )

        def call(query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any) -> Any:
            traced = torch.compiler.is_compiling()
            block_mask = (block_mask_of if traced else kept)(query_offsets, key_offsets)
            operands = (x.transpose(0, 1)[None] for x in (query, key, value))
            differentiated = any(x.requires_grad for x in (query, key, value))
            function: Any = flex_attention if differentiated else called
            answer = function(*operands, block_mask=block_mask, **settings)
            return answer[0].transpose(0, 1)

        return PreparedCall(call, segmented(self.backend, inputs))
