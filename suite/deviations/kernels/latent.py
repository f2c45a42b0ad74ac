"""Right latent attention in NumPy, one method a step, unabsorbed and absorbed, with backward passes.

Arrays by name: query and query_rope (B, H, Lq, .), latent (B, Lk, R), key_rope (B, Lk, E), w_uk (R, H, D)
and w_uv (R, H, Dv).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.in_pages import from_numpy_pages, with_new_tokens
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import mask_missing_keys, stored_pool_names
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT, SERVED, split_causal
from attention_conformance.suite.spec.operators.tiles import repeat_per_component

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LatentCall(Call):
    """The call of plain attention that latent attention becomes. `nope_size`: the number of components of
    queries and keys before the rotary ones."""

    nope_size: int = 0


class LatentKernel(Differentiable):
    """Unabsorbed: keys and values of all heads are computed, and rounded to the case's dtype."""

    operator = LATENT
    features = FEATURES | SERVED | {"length-arrays"}
    elections = {
        "fully-masked-row": "zeros",
        "fully-masked-row-gradient": "nothing",
        "lse-of-empty-row": "minus-inf",
        "nan-behind-last-key": "blocked",
    }
    rounding = DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False))
    stores = ("keys", "average")

    def prepare(self, inputs: Inputs) -> PreparedCall:
        inputs_with_mask = mask_missing_keys(inputs)
        causal, mask = split_causal(inputs_with_mask.mask, inputs.form, inputs.sizes)
        fmt, lse = inputs.dtype, "lse" in inputs.outputs

        def plain_call(
            arrays: Mapping[str, Rounded], mask: Rounded | None
        ) -> tuple[Arrays, LatentCall]:
            """Returns the arrays in working precision, and the call of plain attention that they
            become."""
            x = self.load_arrays(self.from_pages(self.attended_arrays(arrays, inputs), inputs))
            operands = (self.queries(x, fmt), self.keys(x, fmt), self.values(x, fmt))
            query, key, value = (Rounded(operand, fmt) for operand in operands)
            nope_size = query.shape[-1] - x["query_rope"].shape[-1]
            return x, LatentCall(
                query, key, value, mask, causal=causal, lse=lse, scale=inputs.effective_scale,
                nope_size=nope_size,
            )  # fmt: skip

        def call(mask: Rounded | None = None, **arrays: Rounded) -> Any:
            with np.errstate(all="ignore"):
                x, call = plain_call(arrays, mask)
                answers = [self.deliver(self.output(self.compute(call), x, fmt), call)]
                if call.lse:
                    scores = self.final_scores(call)
                    answers.append(self.deliver_lse(self.log_sum_exp(scores, call), call))
            pools = self.after_store(arrays, inputs)
            answers += [pools[name] for name in stored_pool_names(inputs.case)]
            return tuple(answers) if len(answers) > 1 else answers[0]

        def vjp(
            cotangent: Rounded, wrt: Sequence[str], mask: Rounded | None = None, **arrays: Rounded
        ) -> dict[str, Any]:
            with np.errstate(all="ignore"):
                x, call = plain_call(arrays, mask)
                gradients = self.gradients(x, call, cotangent.values.astype(call.work))
            return {name: self.deliver(gradients[name], call) for name in wrt}

        constants = (fmt.name, causal, lse, inputs.scale)
        arguments = masked_arrays(self.backend, inputs_with_mask, mask)
        return PreparedCall(call, arguments, inputs.outputs, vjp=vjp, constants=constants)

    def after_store(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> dict[str, Rounded]:
        """Returns the arrays after new tokens are stored in the pools; unchanged if the call stores
        none."""
        if not stored_pool_names(inputs.case):
            return dict(arrays)
        values = with_new_tokens({name: x.values for name, x in arrays.items()}, inputs)
        return {name: Rounded(x, arrays[name].fmt) for name, x in values.items()}

    def attended_arrays(
        self, arrays: Mapping[str, Rounded], inputs: Inputs
    ) -> Mapping[str, Rounded]:
        """Returns the arrays that attention reads, with new tokens in the pools."""
        return self.after_store(arrays, inputs)

    def from_pages(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> Mapping[str, Rounded]:
        """Returns the arrays with tokens gathered from their pages; unchanged without a page table."""
        if "page_table" not in arrays:
            return arrays
        values = from_numpy_pages({name: x.values for name, x in arrays.items()}, inputs)
        return {name: Rounded(x, arrays[name].fmt) for name, x in values.items()}

    def load_arrays(self, arrays: Mapping[str, Rounded]) -> Arrays:
        """Returns the arrays of the call in working precision, with latents dequantized from codes."""
        loaded = {
            name: x.values.astype(np.float64 if x.fmt is DTYPES["f64"] else np.float32)
            for name, x in arrays.items()
        }
        return loaded | {"latent": self.dequantize(loaded)} if "latent_codes" in loaded else loaded

    def dequantize(self, x: Arrays) -> np.ndarray:
        """Returns the latents (B, Lk, R) from their codes and scales."""
        codes = x["latent_codes"]
        return np.asarray(codes * self.spread_tiles(x["latent_scale"], codes.shape[-1]))

    def spread_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        """Returns the scales of tiles (B, Lk, tiles), repeated for every component (B, Lk, R)."""
        return repeat_per_component(array, size)

    def narrowed(self, x: np.ndarray, kind: str, fmt: DType) -> np.ndarray:
        """Returns `x`, rounded to the case's dtype if its `kind` is in `stores`."""
        return round_to(x, fmt).astype(x.dtype) if kind in self.stores else x

    def queries(self, x: Arrays, fmt: DType) -> np.ndarray:
        """Returns the queries (B, H, Lq, D + E) of the call of plain attention that equals the latent
        one. `x`: the arrays by name; `fmt`: the dtype of the case."""
        return np.concatenate([x["query"], x["query_rope"]], -1)

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        """Returns the keys of the plain call, (B, H or 1, Lk, .)."""
        key = self.narrowed(np.einsum("bkr,rhd->bhkd", x["latent"], x["w_uk"]), "keys", fmt)
        rope = np.broadcast_to(x["key_rope"][:, None], (*key.shape[:3], x["key_rope"].shape[-1]))
        return np.concatenate([key, rope], -1)

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        """Returns the values of the plain call, (B, H or 1, Lk, .)."""
        return self.narrowed(np.einsum("bkr,rhv->bhkv", x["latent"], x["w_uv"]), "keys", fmt)

    def output(self, average: np.ndarray, x: Arrays, fmt: DType) -> np.ndarray:
        """Returns the output (B, H, Lq, Dv) from plain attention's average (B, H, Lq, .) of values."""
        return average

    def last_causal_key(self, row: np.ndarray, call: Call) -> np.ndarray:
        return row + (call.sizes.Lk - call.sizes.Lq)

    def gradients(self, x: Arrays, call: Call, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the gradients of all arrays by name."""
        plain = self.backward(call, cotangent, ("query", "key", "value"))
        query, key, value = (np.asarray(plain[name]) for name in ("query", "key", "value"))
        D = x["query"].shape[-1]
        return {
            "query": query[..., :D],
            "query_rope": query[..., D:],
            "key_rope": self.sum_over_heads(key[..., D:]),
            "latent": self.latent_gradient(x, key[..., :D], value),
            "w_uk": np.einsum("bkr,bhkd->rhd", x["latent"], key[..., :D]),
            "w_uv": np.einsum("bkr,bhkv->rhv", x["latent"], value),
        }

    def sum_over_heads(self, key: np.ndarray) -> np.ndarray:
        """Returns the gradient (B, Lk, E) of the rotary key, which all heads share."""
        return key.sum(1)

    def latent_gradient(self, x: Arrays, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Returns the gradient (B, Lk, R) of the latents from the gradients of keys and values."""
        from_keys = np.einsum("bhkd,rhd->bkr", key, x["w_uk"])
        return from_keys + np.einsum("bhkv,rhv->bkr", value, x["w_uv"])


class AbsorbedKernel(LatentKernel):
    """Absorbed: queries and the average of latents are projected, and rounded to the case's dtype."""

    rounding = DeclaredRounding(absorbs=dict.fromkeys(DTYPES, True))
    stores = ("queries", "average")

    def absorbed(self, x: Arrays, fmt: DType) -> np.ndarray:
        """Returns the queries projected to latents, (B, H, Lq, R)."""
        return self.narrowed(np.einsum("bhqd,rhd->bhqr", x["query"], x["w_uk"]), "queries", fmt)

    def queries(self, x: Arrays, fmt: DType) -> np.ndarray:
        return np.concatenate([self.absorbed(x, fmt), x["query_rope"]], -1)

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        return np.concatenate([x["latent"], x["key_rope"]], -1)[:, None]

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        return x["latent"][:, None]

    def output(self, average: np.ndarray, x: Arrays, fmt: DType) -> np.ndarray:
        return np.einsum("bhqr,rhv->bhqv", self.narrowed(average, "average", fmt), x["w_uv"])

    def gradients(self, x: Arrays, call: Call, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        average, R = self.compute(call), x["latent"].shape[-1]
        projected = np.einsum("bhqv,rhv->bhqr", cotangent, x["w_uv"])
        plain = self.backward(call, projected, ("query", "key", "value"))
        query, key, value = (np.asarray(plain[name]) for name in ("query", "key", "value"))
        return {
            "query": np.einsum("bhqr,rhd->bhqd", query[..., :R], x["w_uk"]),
            "query_rope": query[..., R:],
            "key_rope": key[:, 0, :, R:],
            "latent": key[:, 0, :, :R] + value[:, 0],
            "w_uk": np.einsum("bhqr,bhqd->rhd", query[..., :R], x["query"]),
            "w_uv": np.einsum("bhqr,bhqv->rhv", average, cotangent),
        }
