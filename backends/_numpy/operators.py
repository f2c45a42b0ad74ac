"""Operators by definition: the reference over plain arrays, rounded once to the dtypes of the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy.attention import as_outputs, definition, precise
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends._numpy.rotary import complex_product
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.in_pages import from_numpy_pages, with_new_tokens
from attention_conformance.backends.memory import by_component
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, Code, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import (
    cached,
    in_pages,
    latent,
    merge,
    packed,
    paged_write,
    quantized,
    quantized_write,
)
from attention_conformance.suite.spec.operators import paged as paged_attention
from attention_conformance.suite.spec.operators.rotary import Rotation
from attention_conformance.suite.spec.operators.scripts import rotation
from attention_conformance.suite.spec.operators.views import views

Values = dict[str, np.ndarray]

NOTHING = {"gradient": "NumPy differentiates nothing"}


class ByDefinition(OperatorFunction):
    """An operator by the definition of its outputs."""

    def values(self, x: Values, inputs: Inputs) -> Any:
        """The outputs as NumPy arrays, rounded to their dtypes, for the values of a call's arrays."""
        raise NotImplementedError

    def compute(self, x: dict[str, Rounded], inputs: Inputs) -> Any:
        with np.errstate(all="ignore"):
            values = self.values({n: array.values for n, array in x.items()}, inputs)
        return as_outputs(values, inputs)


class SegmentBySegment(ByDefinition):
    """Packed attention: the reference of each segment."""

    name = "segment-by-segment"
    operator = packed.PACKED
    declared = Declared(
        numerics="exact",
        features=packed.FEATURES,
        refusals=NOTHING,
        elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
    )

    def values(self, x: Values, inputs: Inputs) -> Any:
        output = np.zeros((*x["query"].shape[:2], x["value"].shape[-1]))
        starts, key_starts = x["query_offsets"], x["key_offsets"]
        for n in range(len(starts) - 1):
            rows, keys = slice(starts[n], starts[n + 1]), slice(key_starts[n], key_starts[n + 1])
            segment = {"query": rows, "key": keys, "value": keys}
            q, k, v = (x[name][part].transpose(1, 0, 2)[None] for name, part in segment.items())
            alignment = inputs.case.option("alignment")
            mask = packed.allowed_pairs(q.shape[2], k.shape[2], alignment)
            answer = definition(q, k, v, mask=mask, scale=inputs.scale, fmt=inputs.dtype)
            output[rows] = answer[0].transpose(1, 0, 2)
        return output


class SampleBySample(ByDefinition):
    """Paged attention: the reference of each sample over the keys of its pages."""

    name = "sample-by-sample"
    operator = paged_attention.PAGED
    declared = Declared(
        numerics="exact",
        features=paged_attention.FEATURES | {"length-arrays"},
        bitwise=("rerun", "pages"),
        refusals=NOTHING,
        elections={"nan-behind-last-key": "blocked"},
    )

    def values(self, x: Values, inputs: Inputs) -> Any:
        query, starts, counts, table = (
            x[name] for name in ("query", "query_offsets", "key_lengths", "page_table")
        )
        output = np.zeros((*query.shape[:2], x["value"].shape[-1]))
        key, value = (in_pages.slots_first(inputs.case, x[name]) for name in ("key", "value"))
        paged_attention.refuse_malformed(query, key, value, starts, counts, table)
        for n, count in enumerate(counts):
            rows = slice(starts[n], starts[n + 1])
            pages = (pool[table[n]] for pool in (key, value))
            k, v = (y.reshape(-1, *y.shape[2:])[:count].transpose(1, 0, 2)[None] for y in pages)
            q = query[rows].transpose(1, 0, 2)[None]
            mask = paged_attention.allowed(inputs.case, q.shape[2], int(count))
            settings = {"scale": inputs.scale, "fmt": inputs.dtype, **inputs.features}
            output[rows] = definition(q, k, v, mask=mask, **settings)[0].transpose(1, 0, 2)
        return output


class TokenByToken(ByDefinition):
    """Writing into pages: every token is copied to its slot in copies of the pools."""

    name = "token-by-token"
    operator = paged_write.PAGED_WRITE
    declared = Declared(numerics="exact", features=paged_write.FEATURES, refusals=NOTHING)

    def values(self, x: Values, inputs: Inputs) -> Any:
        return tuple(self.pool(name, x, inputs.case) for name in ("key", "value"))

    def pool(self, name: str, arrays: Values, case: Case) -> np.ndarray:
        """The pool of keys or values (`name`) after the write, in the layout of the case."""
        cache = arrays[f"{name}_cache"].copy()
        paged = in_pages.slots_first(case, cache)
        for token, slot in zip(arrays[name], arrays["slot_mapping"], strict=True):
            if slot >= 0:
                paged[divmod(slot, paged.shape[1])] = token
        return cache


class ChunkByChunk(ByDefinition):
    """Attention with a cache: the reference of each chunk over all tokens that are in the cache. No cache
    is kept."""

    name = "chunk-by-chunk"
    operator = cached.CACHED
    declared = Declared(
        numerics="exact",
        features=cached.FEATURES,
        elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
    )

    def values(self, x: Values, inputs: Inputs) -> Any:
        s, rotation_of_case = inputs.sizes, rotation(inputs.case)
        output = np.zeros((s.B, s.H, s.Lq, s.Dv))
        for view in views(inputs.case):
            k, v = (view.gathered(x[name]) for name in ("key", "value"))
            q, mask = view.queries(x["query"]), view.mask[:, None]
            if rotation_of_case is not None:
                q = rotated_by_position(q, view.at, rotation_of_case)
                k = rotated_by_position(k, view.positions, rotation_of_case)
            settings = {**view.features(inputs.features), "bias": view.bias(inputs.bias)}
            settings |= {"mask": mask, "scale": inputs.scale, "fmt": inputs.dtype}
            view.put(output, definition(q, k, v, **settings))
        return output


def rotated_by_position(x: np.ndarray, positions: np.ndarray, rotation: Rotation) -> np.ndarray:
    """x (b, H, n, D) rotated by positions (b, n)."""
    theta = frequencies(rotation, positions.astype(np.float64)).theta
    return complex_product(x, np.exp(1j * positions[:, None, :, None] * theta), rotation)


class ScaledCodes(ByDefinition):
    """Attention over codes: the reference for keys and values scale (code - zero)."""

    name = "scaled-codes"
    operator = quantized.QUANTIZED
    declared = Declared(
        numerics="exact", features=quantized.FEATURES | {"length-arrays"}, refusals=NOTHING
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        mask = quantized.allowed(inputs)
        masks = {} if mask is None else {"mask": self.backend.array(mask, None)}
        return super().arguments(inputs) | masks

    def values(self, x: Values, inputs: Inputs) -> Any:
        case, kinds, fmt = inputs.case, quantized.KINDS, inputs.dtype
        query, mask = x.pop("query"), x.pop("mask", None)
        pools = {name: array.astype(precise(fmt)) for name, array in x.items()}
        tokens = from_numpy_pages(by_component(pools, inputs, np.repeat), inputs)
        code = CODES[case.option("codes")]
        new = {n: nearest_codes(tokens, n, code) for n in kinds if n in tokens}
        for n, codes in new.items():
            tokens[f"{n}_codes"][:, :, -codes.shape[2] :] = codes
        key, value = (
            (tokens[f"{n}_codes"] - tokens.get(f"{n}_zero", 0)) * tokens[f"{n}_scale"]
            for n in kinds
        )
        output = definition(query, key, value, mask=mask, scale=inputs.scale, fmt=fmt)
        written = {n: tokens[f"{n}_codes"] for n in new}
        if "page_table" in pools:
            slots, write_tokens = in_pages.slots(inputs), in_pages.write_tokens
            written = {
                n: write_tokens(case, pools[f"{n}_codes"], slots, codes, quantized.axes_of(n))
                for n, codes in written.items()
            }
        return (output, *(y.astype(np.float64) for y in written.values())) if new else output


class NearestCodes(ByDefinition):
    """Writing codes: x / scale + zero, clipped to the range of the codes and rounded to the nearest."""

    name = "nearest-codes"
    operator = quantized_write.QUANTIZED_WRITE
    declared = Declared(numerics="exact", features=quantized_write.FEATURES)

    def values(self, x: Values, inputs: Inputs) -> Any:
        arrays = by_component(x, inputs, np.repeat)
        code = CODES[inputs.case.option("codes")]
        return tuple(nearest_codes(arrays, name, code) for name in quantized.KINDS)


def nearest_codes(arrays: Values, name: str, code: Code) -> np.ndarray:
    """The codes of new keys or values (`name`): x / scale + zero, clipped and rounded."""
    x, zero = arrays[name], arrays.get(f"{name}_zero")
    scaled = x / quantized.newest_scales(arrays[f"{name}_scale"], x.shape[2])
    scaled = scaled if zero is None else scaled + quantized.newest_scales(zero, x.shape[2])
    return round_to(np.clip(scaled, -code.max, code.max), code)


class ProjectedKeys(ByDefinition):
    """Latent attention: the reference of plain attention over keys and values that are formed exactly."""

    name = "projected-keys"
    operator = latent.LATENT
    declared = Declared(
        numerics="exact",
        features=latent.FEATURES | latent.SERVED | {"length-arrays"},
        refusals=NOTHING,
        elections={
            "fully-masked-row": "zeros",
            "lse-of-empty-row": "minus-inf",
            "nan-behind-last-key": "blocked",
        },
        rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
    )

    def values(self, x: Values, inputs: Inputs) -> Any:
        mask = x.pop("mask", None)
        x = with_new_tokens(x, inputs)
        operands = latent.plain_operands(from_numpy_pages(x, inputs), precise(inputs.dtype))
        settings = {"scale": inputs.effective_scale, "fmt": inputs.dtype, **inputs.features}
        answer = definition(*operands, mask=mask, **settings)
        pools = [x[name] for name in in_pages.stored_pool_names(inputs.case)]
        return (*(answer if isinstance(answer, tuple) else (answer,)), *pools) if pools else answer


class WeightedSum(ByDefinition):
    """The merge of partial outputs: their sum, weighted by exp(l_i - log sum_j exp(l_j))."""

    name = "weighted-sum"
    operator = merge.MERGE
    declared = Declared(numerics="exact", features=merge.FEATURES, refusals=NOTHING)

    def values(self, x: Values, inputs: Inputs) -> Any:
        fmt = inputs.dtype
        outputs, parts = (
            x[name].astype(self.work(fmt)) for name in ("partial_output", "partial_lse")
        )
        output, lse = self.merged(outputs, parts, fmt)
        return round_to(output, fmt), round_to(lse, fmt.widened)

    def work(self, fmt: DType) -> type[np.floating[Any]]:
        """The NumPy type in which sums are computed."""
        return precise(fmt)

    def merged(
        self, outputs: np.ndarray, lse: np.ndarray, fmt: DType
    ) -> tuple[np.ndarray, np.ndarray]:
        """Output (B, H, Lq, Dv) and log-sum-exp (B, H, Lq) of parts (P, B, H, Lq, Dv), (P, B, H, Lq)."""
        total = np.logaddexp.reduce(lse, 0)
        weights = np.where(np.isneginf(lse), 0, np.exp(lse - total))
        return (weights[..., None] * outputs).sum(0), total
