"""Textbook attention in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs

# Not declared for bfloat16: oneDNN's products flush subnormals only on CPUs with AVX512_BF16 or AMX.
SUBNORMAL = {"f64": "kept", "f32": "kept", "f16": "kept"}


EAGER = TextbookAttention.declared.electing(
    {
        "fully-masked-row": "nan",
        "fully-masked-row-gradient": "nan",
        "minus-inf-row-gradient": "nan",
        "lse-of-empty-row": "minus-inf",
        "subnormal-output": SUBNORMAL,
    }
)
"""The declaration of textbook attention: matmul, softmax, matmul; masked scores are -inf."""


def operations(torch: Any) -> Operations:
    """Returns the operations of textbook code in PyTorch."""
    return operations_of(
        torch,
        softmax=lambda x: torch.softmax(x, -1),
        fill=lambda x, hidden, number: x.masked_fill(hidden, number),
        mask_scores=lambda scores, mask: scores.masked_fill(~mask, -torch.inf),
        logsumexp=lambda x: torch.logsumexp(
            x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1
        ),
        take=lambda x, indices: x[indices],
        put=lambda x, indices, values: x.index_put((indices,), values),
        astype=lambda x, dtype: x.to(getattr(torch, dtype)),
        cast_like=lambda x, other: x.to(other.dtype),
        arange_like=lambda n, x: torch.arange(n, dtype=x.dtype, device=x.device),
        max=torch.amax,
        permute_dims=torch.permute,
        repeat=torch.repeat_interleave,
    )


TWIN = "the variant for rewrites by pattern"


class EagerPermuted(TextbookAttention):
    """Textbook attention with keys as (Lk, H, B, D), which one call permutes to (B, H, D, Lk).

    It is judged only through compilers. A compiler that rewrites the pattern `key.transpose` must not
    match this permutation, even if all sizes are equal.
    """

    name = "eager-permuted"
    declared = EAGER.refusing(
        {
            "grouped-heads": f"{TWIN} has no grouped heads",
            "gradient": f"{TWIN} has no gradients",
            **{f.word: f"{TWIN} has no {f.word}" for f in FEATURES.values() if f.axes or f.outputs},
        }
    )

    def __init__(self, backend: TorchEngine) -> None:
        # `attention` permutes only keys, to (B, H, D, Lk).
        ops = replace(
            operations(backend.torch), permute_dims=lambda key, axes: key.permute(2, 1, 3, 0)
        )
        super().__init__(backend, ops)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared = super().prepare(inputs)
        key = prepared.arguments["key"].permute(2, 1, 0, 3).contiguous()
        return replace(prepared, arguments=prepared.arguments | {"key": key})
