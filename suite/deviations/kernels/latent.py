"""Honest latent attention in NumPy, one method a step (see `attention`), in both forms and both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from attention_conformance.suite.spec.operators.in_pages import masked, stores
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT, SERVED, split_causal
from attention_conformance.suite.spec.operators.tiles import untiled

Arrays = Mapping[str, np.ndarray]


class LatentKernel(Differentiable):
    """Keys and values of all heads are formed, and stored in the dtype of the case (unabsorbed)."""

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
        shown = masked(inputs)
        flagged, rest = split_causal(shown.mask, inputs.form, inputs.sizes)
        fmt, lse = inputs.dtype, "lse" in inputs.outputs

        def made(arrays: Mapping[str, Rounded], mask: Rounded | None) -> tuple[Arrays, Call]:
            x = self.read(self.gathered(self.attended(arrays, inputs), inputs))
            parts = (self.queries(x, fmt), self.keys(x, fmt), self.values(x, fmt))
            query, key, value = (Rounded(part, fmt) for part in parts)
            return x, Call(
                query, key, value, mask, causal=flagged, lse=lse, scale=inputs.effective_scale
            )

        def call(mask: Rounded | None = None, **arrays: Rounded) -> Any:
            with np.errstate(all="ignore"):
                x, call = made(arrays, mask)
                answers = [self.deliver(self.output(self.compute(call), x, fmt), call)]
                if call.lse:
                    scores = self.final(call)
                    answers.append(self.deliver_lse(self.log_sum_exp(scores, call), call))
            stored = self.stored(arrays, inputs)
            answers += [stored[name] for name in stores(inputs.case)]
            return tuple(answers) if len(answers) > 1 else answers[0]

        def vjp(
            cotangent: Rounded, wrt: Sequence[str], mask: Rounded | None = None, **arrays: Rounded
        ) -> dict[str, Any]:
            with np.errstate(all="ignore"):
                x, call = made(arrays, mask)
                gradients = self.gradients(x, call, cotangent.values.astype(call.work))
            return {name: self.deliver(gradients[name], call) for name in wrt}

        constants = (fmt.name, flagged, lse, inputs.scale)
        return PreparedCall(
            call, masked_arrays(self.backend, shown, rest), inputs.outputs, vjp=vjp, constants=constants
        )  # fmt: skip

    def stored(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> dict[str, Rounded]:
        """The arrays with new tokens in their pools; of a call without them the very arrays."""
        if not stores(inputs.case):
            return dict(arrays)
        made = with_new_tokens({name: x.values for name, x in arrays.items()}, inputs)
        return {name: Rounded(x, arrays[name].fmt) for name, x in made.items()}

    def attended(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> Mapping[str, Rounded]:
        """The arrays whose tokens are attended."""
        return self.stored(arrays, inputs)

    def gathered(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> Mapping[str, Rounded]:
        """The arrays with tokens taken from their pages."""
        if "page_table" not in arrays:
            return arrays
        plain = {name: x.values for name, x in arrays.items()}
        made = from_numpy_pages(plain, inputs)
        return {name: Rounded(x, arrays[name].fmt) for name, x in made.items()}

    def read(self, arrays: Mapping[str, Rounded]) -> Arrays:
        """The arrays of the call in working precision."""
        wide = {name: x.fmt is DTYPES["f64"] for name, x in arrays.items()}
        read = {
            name: x.values.astype(np.float64 if wide[name] else np.float32)
            for name, x in arrays.items()
        }
        return read | {"latent": self.decoded(read)} if "latent_codes" in read else read

    def decoded(self, x: Arrays) -> np.ndarray:
        """The latents (B, Lk, R) of codes."""
        codes = x["latent_codes"]
        return np.asarray(codes * self.of_tiles(x["latent_scale"], codes.shape[-1]))

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        """The scales of tiles (B, Lk, tiles) for every component (B, Lk, R)."""
        return untiled(array, size)

    def narrowed(self, x: np.ndarray, what: str, fmt: DType) -> np.ndarray:
        """`x` as it is stored, in the case's dtype if `what` is among `stores`."""
        return round_to(x, fmt).astype(x.dtype) if what in self.stores else x

    def queries(self, x: Arrays, fmt: DType) -> np.ndarray:
        """The queries that the products take, (B, H, Lq, .)."""
        return np.concatenate([x["query"], x["query_rope"]], -1)

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        """The keys that the products take, (B, H or 1, Lk, .)."""
        key = self.narrowed(np.einsum("bkr,rhd->bhkd", x["latent"], x["w_uk"]), "keys", fmt)
        rope = np.broadcast_to(x["key_rope"][:, None], (*key.shape[:3], x["key_rope"].shape[-1]))
        return np.concatenate([key, rope], -1)

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        """What the weights average, (B, H or 1, Lk, .)."""
        return self.narrowed(np.einsum("bkr,rhv->bhkv", x["latent"], x["w_uv"]), "keys", fmt)

    def output(self, average: np.ndarray, x: Arrays, fmt: DType) -> np.ndarray:
        """The output of the average (B, H, Lq, .)."""
        return average

    def limit(self, row: np.ndarray, call: Call) -> np.ndarray:
        return row + (call.sizes.Lk - call.sizes.Lq)

    def gradients(self, x: Arrays, call: Call, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        """Gradients of all arrays."""
        moved = self.backward(call, cotangent, ("query", "key", "value"))
        query, key, value = (np.asarray(moved[name]) for name in ("query", "key", "value"))
        D = x["query"].shape[-1]
        return {
            "query": query[..., :D],
            "query_rope": query[..., D:],
            "key_rope": self.over_heads(key[..., D:]),
            "latent": self.latent_gradient(x, key[..., :D], value),
            "w_uk": np.einsum("bkr,bhkd->rhd", x["latent"], key[..., :D]),
            "w_uv": np.einsum("bkr,bhkv->rhv", x["latent"], value),
        }

    def over_heads(self, key: np.ndarray) -> np.ndarray:
        """The gradient of what all heads share."""
        return key.sum(1)

    def latent_gradient(self, x: Arrays, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        of_keys = np.einsum("bhkd,rhd->bkr", key, x["w_uk"])
        return of_keys + np.einsum("bhkv,rhv->bkr", value, x["w_uv"])


class AbsorbedKernel(LatentKernel):
    """Queries and the average of latents are projected, and stored in the case's dtype (absorbed)."""

    rounding = DeclaredRounding(absorbs=dict.fromkeys(DTYPES, True))
    stores = ("queries", "average")

    def absorbed(self, x: Arrays, fmt: DType) -> np.ndarray:
        """The queries of latents, (B, H, Lq, R)."""
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
        lifted = np.einsum("bhqv,rhv->bhqr", cotangent, x["w_uv"])
        moved = self.backward(call, lifted, ("query", "key", "value"))
        query, key, value = (np.asarray(moved[name]) for name in ("query", "key", "value"))
        return {
            "query": np.einsum("bhqr,rhd->bhqd", query[..., :R], x["w_uk"]),
            "query_rope": query[..., R:],
            "key_rope": key[:, 0, :, R:],
            "latent": key[:, 0, :, :R] + value[:, 0],
            "w_uk": np.einsum("bhqr,bhqd->rhd", query[..., :R], x["query"]),
            "w_uv": np.einsum("bhqr,bhqv->rhv", average, cotangent),
        }
