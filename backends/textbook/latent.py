"""Textbook latent attention."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.in_pages import in_slots
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.attention import attention
from attention_conformance.backends.textbook.layer import TextbookOperator
from attention_conformance.backends.textbook.paged import stored, unpaged
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import NEW, stores
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT, SERVED
from attention_conformance.suite.spec.operators.tiles import TILE


class TextbookLatent(TextbookOperator):
    """Keys and values of all heads are formed, with a copy of the rotary key for every head."""

    name = "textbook-latent"
    operator = LATENT
    declared = Declared(
        features=FEATURES | SERVED,
        elections={"nan-behind-last-key": "blocked"},
        rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return super().arguments(inputs) | in_slots(self.backend, inputs)

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        arrays, lse = x.copy(), "lse" in inputs.outputs
        mask, slots = arrays.pop("mask", None), arrays.pop("slots", None)
        names = stores(inputs.case)
        for name in names:
            arrays[name] = stored(self.ops, arrays[name], arrays[f"{NEW}{name}"], slots)
        tokens = unpaged(self.ops, arrays, inputs, slots)
        if "latent_codes" in tokens:
            tokens["latent"] = self.decoded(tokens)
        answer = self.attended(tokens, mask, inputs.effective_scale, lse)
        pools = [arrays[name] for name in names]
        return (*(answer if lse else (answer,)), *pools) if pools else answer

    def decoded(self, x: Arrays) -> Any:
        """The latents (B, Lk, R) of codes, in the dtype of the query."""
        ops, scale, R = self.ops, x["latent_scale"], x["latent_codes"].shape[2]
        scales = ops.repeat(scale, TILE, 2)[..., :R]
        return ops.like(ops.like(x["latent_codes"], scale) * scales, x["query"])

    def attended(self, x: Arrays, mask: Any, scale: float, lse: bool) -> Any:
        """The output (B, H, Lq, Dv), and with `lse` the pair of output and log-sum-exp (B, H, Lq)."""
        ops, heads = self.ops, x["query"].shape[1]
        key, value = (self.expanded(x["latent"], x[name]) for name in ("w_uk", "w_uv"))
        B, Lk, E = x["key_rope"].shape
        rope = ops.repeat(ops.reshape(x["key_rope"], (B, 1, Lk, E)), heads, 1)
        query = ops.concat([x["query"], x["query_rope"]], -1)
        key = ops.concat([key, rope], -1)
        return attention(ops, query, key, value, mask, None, scale, lse=lse)

    def expanded(self, latents: Any, kernel: Any) -> Any:
        """Keys or values (B, H, Lk, m) of latents (B, Lk, R) and a kernel (R, H, m)."""
        ops, (B, Lk, R), (_, H, m) = self.ops, latents.shape, kernel.shape
        flat = latents @ ops.reshape(kernel, (R, H * m))
        return ops.transpose(ops.reshape(flat, (B, Lk, H, m)), (0, 2, 1, 3))
