"""The kernels of rows in PyTorch, (B, H, L, D), with the signature of `scaled_dot_product_attention`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.diagnosed.kernels import kernels_of


def read(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the textbook: a float mask is a bias."""
    mask = given.pop("attn_mask", None)
    return given | {"mask" if mask is None or mask.dtype == torch.bool else "bias": mask}


def as_dtype(dtype: Any) -> Any:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


TORCH = SimpleNamespace(
    parameters=("attn_mask", "is_causal", "scale"),
    has_flag=True,
    read=read,
    heads_first=lambda x: x,
    heads_back=lambda x: x,
    wide=lambda x: x.to(torch.promote_types(x.dtype, torch.float32)),
    cast=lambda x, dtype: x.to(as_dtype(dtype)),
    repeat=lambda x, times: x.repeat_interleave(times, 1),
    tile=lambda x, times: x.repeat(1, times, 1, 1),
    amax=lambda x: x.amax(-1, keepdim=True),
    zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    drop=torch.nn.functional.dropout,
    stop=torch.detach,
    concatenate=torch.cat,
    inf=torch.inf,
    **{
        name: getattr(torch, name)
        for name in ("arange", "einsum", "exp", "logsumexp", "softmax", "tanh", "where")
    },
)  # fmt: skip

globals().update(kernels_of(TORCH, "torch"))
