"""Packed and paged attention in PyTorch: jagged nested tensors, `flex_attention` with documents, and the
experimental `PagedAttention`, which converts masks for pages of `flex_attention`, and writes to pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends import memory
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.flex import (
    FLEX_REFUSALS,
    KEPT_MASKS,
    scale_and_groups,
    table_entry,
    uncompiled,
)
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import packed, paged, paged_write


class NestedSdpa(Implementation):
    """`scaled_dot_product_attention` of jagged nested tensors, (B, H, length, D)."""

    backend: TorchEngine

    name = "nested-sdpa"
    operator = packed.PACKED
    declared = Declared(
        # In 16 bits scaled queries and keys are rounded before their product. Only `working` has such
        # roundings (finding nested-in-16-bits).
        numerics={"f64": "eager", "f32": "eager", "bf16": "working", "f16": "working"},
        features=packed.FEATURES | {"length-arrays"},
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
        settings = scale_and_groups(inputs)
        if inputs.case.option("alignment") != "all":
            settings["is_causal"] = True

        def call(query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any) -> Any:
            def jagged(x: Any, offsets: Any) -> Any:
                nested = torch.nested.nested_tensor_from_jagged(x, offsets)
                return nested.transpose(1, 2)

            answer = torch.nn.functional.scaled_dot_product_attention(
                jagged(query, query_offsets), jagged(key, key_offsets), jagged(value, key_offsets),
                **settings,
            )  # fmt: skip
            return answer.transpose(1, 2).values()

        return PreparedCall(call, memory.packed_arrays(self.backend, inputs))


class FlexPacked(Implementation):
    """`flex_attention` over one sample, with a block mask of documents as in torch's documentation."""

    backend: TorchEngine

    name = "flex-packed"
    operator = packed.PACKED
    declared = Declared(
        numerics="eager",
        features=packed.FEATURES,
        refusals=FLEX_REFUSALS,
        elections={"nan-in-other-segment": "others", "segment-without-keys": "zeros"},
    )

    def __init__(self, backend: TorchEngine) -> None:
        declared = self.declared if backend.device == "cpu" else self.declared.taking("gradient")
        super().__init__(backend, declared=declared)
        self._block_masks: Cache[Any] = Cache(KEPT_MASKS)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        alignment = inputs.case.option("alignment")
        settings = scale_and_groups(inputs)
        uncompiled_function = uncompiled(flex_attention)

        def block_mask_of(query_offsets: Any, key_offsets: Any) -> Any:
            def documents(offsets: Any, count: int) -> Any:
                places = torch.arange(count, device=offsets.device)
                return torch.searchsorted(offsets, places, right=True) - 1

            query_documents = documents(query_offsets, s.Lq)
            key_documents = documents(key_offsets, s.Lk)
            more_keys = key_offsets.diff() - query_offsets.diff()  # than queries, by document

            def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
                document = table_entry(query_documents, i)
                same_document = document == table_entry(key_documents, j)
                if alignment == "all":
                    return same_document
                row = i - table_entry(query_offsets, document)
                key_place = j - table_entry(key_offsets, document)
                if alignment == "causalbr":
                    row = row + table_entry(more_keys, document)
                return same_document & (key_place <= row)

            return create_block_mask(mask_mod, None, None, s.Lq, s.Lk, device=backend.device)

        def cached_block_mask(*offsets: Any) -> Any:
            """Returns the block mask of these documents, cached: models make it once per batch.

            The key is the values of the offsets; on a GPU reading them synchronises.
            """
            key = (alignment, s.Lq, s.Lk, *(tuple(each.tolist()) for each in offsets))
            return self._block_masks.get(
                key, lambda: block_mask_of(*(each.clone() for each in offsets))
            )

        def call(query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any) -> Any:
            traced = torch.compiler.is_compiling()
            make_mask = block_mask_of if traced else cached_block_mask
            block_mask = make_mask(query_offsets, key_offsets)
            operands = (x.transpose(0, 1)[None] for x in (query, key, value))
            differentiated = any(x.requires_grad for x in (query, key, value))
            function: Any = flex_attention if differentiated else uncompiled_function
            answer = function(*operands, block_mask=block_mask, **settings)
            return answer[0].transpose(0, 1)

        return PreparedCall(call, memory.packed_arrays(self.backend, inputs))


def heads_first(pool: Any, hnd: bool) -> Any:
    """Converts a pool between (P, S, Hkv, .) and (P, Hkv, S, .). Unchanged with `hnd`."""
    return pool if hnd else pool.transpose(1, 2)


def as_cache(pool: Any, hnd: bool) -> Any:
    """Returns a pool as the cache (1, Hkv, P S, .) of `PagedAttention`."""
    return heads_first(pool, hnd).transpose(0, 1).flatten(1, 2)[None]


class FlexPaged(Implementation):
    """`flex_attention` of a batch (B, H, longest, D) over the whole pool (1, Hkv, P S, D).

    `PagedAttention`, whose page tables are set, converts masks of keys to masks of slots.
    """

    backend: TorchEngine

    name = "flex-paged"
    operator = paged.PAGED
    declared = Declared(
        numerics="eager",
        features=paged.FEATURES,
        refusals=FLEX_REFUSALS,
        elections={"nan-behind-last-key": "leaks"},
    )

    # Pages have no dtype, and the implementation `flex` tests the same operator in every dtype.
    postponed = frozenset({"f64", "f16"})

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """Returns calls of the same problem. "erase": the last sample's pages belonged to the first
        sample before. "batch_idx": samples stand in reversed order in the page tables, and `batch_idx`
        names them."""
        if inputs.sizes.B == 1:
            return {}
        return {
            "erase": self.prepare(inputs, freed=True),
            "batch_idx": self.prepare(inputs, swapped=True),
        }

    def prepare(self, inputs: Inputs, freed: bool = False, swapped: bool = False) -> PreparedCall:
        """Returns the call. Packed tokens become a batch and are packed again. `freed`: the path "erase";
        `swapped`: the path "batch_idx" (see `paths`)."""
        from torch.nn.attention.experimental._paged_attention import PagedAttention
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, backend, s, n = self.backend.torch, self.backend, inputs.sizes, inputs.letters
        pages_of_pool, page_size = n["p"], n["s"]
        case, device = inputs.case, backend.device
        (queries, keys), (counts, _) = case.option("segments"), paged.page_counts(case)
        left, softcap = case.option("left"), case.option("softcap")
        hnd, causal = case.option("layout") == "hnd", case.option("alignment") == "causal"
        # The place of each packed query in the batch: its sample, and its row there.
        sample = np.repeat(np.arange(s.B), queries)
        row = np.concatenate([np.arange(count) for count in queries])
        longest = max(queries)
        arguments = memory.paged_arrays(backend, inputs, np.int64)
        arguments |= {"sample": backend.array(sample, None), "row": backend.array(row, None)}
        offset = torch.tensor(np.subtract(keys, queries), device=device)
        settings = scale_and_groups(inputs)

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            last = i + table_entry(offset, b)
            attends = j <= last if causal else j >= 0
            return attends & (j >= last - left) if left is not None else attends

        samples = list(range(s.B))[:: -1 if swapped else 1]

        def capped(score: Any, *place: Any) -> Any:
            return torch.tanh(score / softcap) * softcap

        def manager_of(page_table: Any) -> Any:
            """Returns a `PagedAttention` whose page tables are set."""
            manager = PagedAttention(pages_of_pool, page_size, s.B, device=device)

            def set_pages(sample: int, pages: Any) -> None:
                manager.page_table[sample, : len(pages)] = pages
                order = torch.arange(len(pages), device=device)
                manager.physical_to_logical[sample, pages] = order

            if freed:
                set_pages(0, page_table[-1, : counts[-1]])
                manager.erase(torch.tensor([0], device=device))
            for sample, pages, count in zip(samples, page_table, counts.tolist(), strict=True):
                set_pages(sample, pages[:count])
            return manager

        def call(
            query: Any, key: Any, value: Any, query_offsets: Any, key_lengths: Any,
            page_table: Any, sample: Any, row: Any,
        ) -> Any:  # fmt: skip
            manager = manager_of(page_table)
            logical = create_block_mask(
                mask_mod, s.B, None, longest, pages_of_pool * page_size, device=device,
                BLOCK_SIZE=(128, page_size),
            )  # fmt: skip
            batch_idx = torch.tensor(samples, device=device) if swapped else None
            mask = manager.convert_logical_block_mask(logical, batch_idx, kv_len=key_lengths)
            score = capped if softcap is not None else None
            if not swapped:  # get_score_mod has no batch_idx
                score = manager.get_score_mod(score, key_lengths)
            batch = query.new_zeros((s.B, longest, s.H, s.D)).index_put((sample, row), query)
            answer = uncompiled(flex_attention)(
                batch.transpose(1, 2), as_cache(key, hnd), as_cache(value, hnd),
                score_mod=score, block_mask=mask, **settings,
            )  # fmt: skip
            return answer.transpose(1, 2)[sample, row]

        # The function knows lengths, and the sizes of the pool.
        constants = (inputs.scale, case.options, tuple(n.items()))
        return PreparedCall(call, arguments, constants=constants)


class FlexWrite(Implementation):
    """`PagedAttention.assign` of one sample that has all pages in order, so that positions are slots.

    Pools are copied into caches (1, Hkv, P S, D). Skipped tokens are left out before the call.
    """

    backend: TorchEngine

    name = "flex-paged-write"
    operator = paged_write.PAGED_WRITE
    declared = Declared(
        numerics="exact",
        features=paged_write.FEATURES,
        refusals={"gradient": "assign refuses tensors that require gradients"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from torch.nn.attention.experimental._paged_attention import PagedAttention

        n, hnd = inputs.letters, inputs.case.option("layout") == "hnd"
        torch, device = self.backend.torch, self.backend.device

        def call(
            key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any
        ) -> tuple[Any, Any]:
            manager = PagedAttention(n["p"], n["s"], 1, device=device)
            manager.page_table[0] = torch.arange(n["p"], device=device)
            is_written = slot_mapping >= 0
            tokens = (x[is_written].transpose(0, 1)[None] for x in (key, value))
            caches = [as_cache(x, hnd).clone() for x in (key_cache, value_cache)]
            first = torch.zeros(1, dtype=torch.int64, device=device)
            manager.assign(first, slot_mapping[is_written][None], *tokens, *caches)
            new_key, new_value = (
                heads_first(x[0].unflatten(1, (n["p"], n["s"])).transpose(0, 1), hnd)
                for x in caches
            )
            return new_key, new_value

        constants = (tuple(n.items()), hnd)
        arguments = memory.all_arrays(self.backend, inputs, integers=np.int64)
        return PreparedCall(call, arguments, inputs.outputs, constants=constants)
