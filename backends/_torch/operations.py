"""The operations of textbook code in PyTorch."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.textbook.layer import Operations


def operations(torch: Any) -> Operations:
    """PyTorch's names for the operations of textbook code."""
    return Operations(
        softmax=lambda x: torch.softmax(x, -1),
        fill=lambda x, hidden, number: x.masked_fill(hidden, number),
        tanh=torch.tanh,
        total=lambda x, axis: x.sum(axis),
        mean=lambda x, axis: x.mean(axis),
        root=torch.sqrt,
        concat=lambda arrays, axis: torch.cat(list(arrays), axis),
        transpose=lambda x, axes: x.permute(*axes),
        reshape=lambda x, shape: x.reshape(shape),
        put=lambda x, indices, values: x.index_put((indices,), values),
        take=lambda x, indices: x[indices],
        repeat=lambda x, times, axis: x.repeat_interleave(times, axis),
        cos=torch.cos,
        sin=torch.sin,
        power=torch.pow,
        clip=torch.clamp,
        rint=torch.round,
        exp=torch.exp,
        log=torch.log,
        largest=lambda x, axis: x.amax(axis),
        cast=lambda x, dtype: x.to(getattr(torch, dtype)),
        number=lambda value, x: value,
        hide=lambda scores, mask: scores.masked_fill(~mask, -torch.inf),
        broadcast=lambda x, shape: x.expand(shape),
        logsumexp=lambda x: torch.logsumexp(
            x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1
        ),
        like=lambda x, other: x.to(other.dtype),
        counted=lambda n, x: torch.arange(n, dtype=x.dtype, device=x.device),
    )
