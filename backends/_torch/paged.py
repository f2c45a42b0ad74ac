"""Pages in PyTorch: masks of the experimental `PagedAttention` with `flex_attention`, and its writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.flex import looked_up, uncompiled
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import paged, written
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import paged_write
from attention_conformance.suite.spec.operators.paged import FEATURES, PAGED, page_counts


class FlexPaged(Implementation):
    """`flex_attention` of a batch (B, H, longest, D) over the whole pool (1, Hkv, P S, D).

    The page tables of `PagedAttention` are set, and it turns masks of keys into masks of slots.
    """

    backend: TorchEngine

    name = "flex-paged"
    operator = PAGED
    declared = Declared(
        numerics="eager",
        features=FEATURES,
        refusals={
            "gradient": "flex_attention has no backward pass on CPU",
            "negative-views": "flex_attention has no kernel for tensors with the negative bit",
        },
        elections={"nan-behind-last-key": "leaks"},
    )

    @property
    def later(self) -> frozenset[str]:
        """Float64 and float16: pages have no dtype, and `flex` asks the same operator in every dtype."""
        return frozenset({"f64", "f16"})

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """Calls in which the first sample has freed the pages of the last one, or in which `batch_idx`
        names the samples, the last one first."""
        if inputs.sizes.B == 1:
            return {}
        return {
            "erase": self.call(inputs, freed=True),
            "batch_idx": self.call(inputs, turned=True),
        }

    def call(self, inputs: Inputs, freed: bool = False, turned: bool = False) -> PreparedCall:
        """The call of pages that were freed before, or of samples in turned order."""
        from torch.nn.attention.experimental._paged_attention import PagedAttention
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, backend, s, n = self.backend.torch, self.backend, inputs.sizes, inputs.letters
        case, device = inputs.case, backend.device
        (queries, keys), (counts, _) = case.option("segments"), page_counts(case)
        left, softcap = case.option("left"), case.option("softcap")
        hnd, causal = case.option("layout") == "hnd", case.option("alignment") == "causal"
        sample = np.repeat(np.arange(s.B), queries)
        row = np.concatenate([np.arange(of) for of in queries])
        longest = max(queries)
        arguments = paged(backend, inputs, np.int64)
        arguments |= {"sample": backend.array(sample, None), "row": backend.array(row, None)}
        offset = torch.tensor(np.subtract(keys, queries), device=device)
        settings: dict[str, Any] = {} if inputs.scale is None else {"scale": inputs.scale}
        if s.H != s.Hkv:
            settings["enable_gqa"] = True

        def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
            last = i + looked_up(offset, b)
            shown = j <= last if causal else j >= 0
            return shown & (j >= last - left) if left is not None else shown

        samples = list(range(s.B))[:: -1 if turned else 1]

        def capped(score: Any, *place: Any) -> Any:
            return torch.tanh(score / softcap) * softcap

        def slots(pool: Any) -> Any:
            pool = pool if hnd else pool.transpose(1, 2)
            return pool.transpose(0, 1).flatten(1, 2)[None]  # (1, Hkv, P S, .)

        def tables(page_table: Any) -> Any:
            manager = PagedAttention(n["p"], n["s"], s.B, device=device)

            def give(sample: int, pages: Any) -> None:
                manager.page_table[sample, : len(pages)] = pages
                order = torch.arange(len(pages), device=device)
                manager.physical_to_logical[sample, pages] = order

            if freed:
                give(0, page_table[-1, : counts[-1]])
                manager.erase(torch.tensor([0], device=device))
            for sample, pages, count in zip(samples, page_table, counts.tolist(), strict=True):
                give(sample, pages[:count])
            return manager

        def call(
            query: Any, key: Any, value: Any, query_offsets: Any, key_lengths: Any,
            page_table: Any, sample: Any, row: Any,
        ) -> Any:  # fmt: skip
            manager = tables(page_table)
            logical = create_block_mask(
                seen, s.B, None, longest, n["p"] * n["s"], device=device,
                BLOCK_SIZE=(128, n["s"]),
            )  # fmt: skip
            named = {"batch_idx": torch.tensor(samples, device=device)} if turned else {}
            mask = manager.convert_logical_block_mask(logical, **named, kv_len=key_lengths)
            score = capped if softcap is not None else None
            if not turned:  # get_score_mod has no batch_idx
                score = manager.get_score_mod(score, key_lengths)
            batch = query.new_zeros((s.B, longest, s.H, s.D)).index_put((sample, row), query)
            answer = uncompiled(flex_attention)(
                batch.transpose(1, 2), slots(key), slots(value), score_mod=score, block_mask=mask,
                **settings,
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

        def turned(pool: Any) -> Any:
            return pool if hnd else pool.transpose(1, 2)

        def call(
            key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any
        ) -> tuple[Any, Any]:
            manager = PagedAttention(n["p"], n["s"], 1, device=device)
            manager.page_table[0] = torch.arange(n["p"], device=device)
            kept = slot_mapping >= 0
            tokens = (x[kept].transpose(0, 1)[None] for x in (key, value))
            caches = [
                turned(x).transpose(0, 1).flatten(1, 2)[None].clone()
                for x in (key_cache, value_cache)
            ]
            first = torch.zeros(1, dtype=torch.int64, device=device)
            manager.assign(first, slot_mapping[kept][None], *tokens, *caches)
            new_key, new_value = (
                turned(x[0].unflatten(1, (n["p"], n["s"])).transpose(0, 1)) for x in caches
            )
            return new_key, new_value

        constants = (tuple(n.items()), hnd)
        arguments = written(self.backend, inputs)
        return PreparedCall(call, arguments, inputs.outputs, constants=constants)
