"""A person's own functions in PyTorch that are wrong, or cannot be judged: each must be told so."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from tests.functions.of_torch import changed, hidden, rows, textbook

WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float32,
        torch.float64: torch.float64}  # fmt: skip


def other_names(query, key, value, attn_maks=None, is_casual=False):
    """Its parameters are misspelt: nobody passes them."""
    if attn_maks is not None:
        return torch.full_like(query, 42.0)
    return textbook(query, key, value)


def tuned(query, key, value, attn_mask=None, block=16, *, num_warps=4):
    """Has two knobs; any value but the default would be seen."""
    if (block, num_warps) != (16, 4):
        raise ValueError
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)


def other_dtype(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Rows without keys are zeros in bfloat16 alone."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = hidden(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    weights = scores.softmax(-1)
    if query.dtype == torch.bfloat16:
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.where(empty, 0.0, weights)
    return weights @ value


def of_numpy(query, key, value):
    """A function of another framework."""
    return textbook(query, key, value).to(torch.float32).detach().numpy()


def misspelt(query, key, value):
    """Raises whatever it is called with."""
    return torch.sofmax(query @ key.transpose(-2, -1), -1) @ value


def half_right(query, key, value, is_causal=False):
    """Right in float16 and heads of 64 and 128 alone, and says nothing of it."""
    if query.dtype != torch.float16 or query.shape[-1] not in (64, 128):
        raise RuntimeError("only fp16 with head sizes 64 and 128")
    return textbook(query, key, value, is_causal=is_causal)


def limited(query, key, value, is_causal=False):
    """The same, and says so."""
    return half_right(query, key, value, is_causal)


limited.dtypes = ("f16",)
limited.head_sizes = (64, 128)
limited.equal_lengths = True


def with_extras(
    query, key, value, attn_mask=None, is_causal=False, scale=None, softcap=None, window=None,
    sinks=None, lse=False, alibi_slopes=None,
):  # fmt: skip
    """All of the parameters that are known beyond the signature of torch's own attention."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        place = torch.arange(query.shape[2])[:, None] + key.shape[2] - query.shape[2]
        distance = (place - torch.arange(key.shape[2])).abs()
        scores = scores - (alibi_slopes[:, None, None] * distance).to(scores.dtype)
    scores = hidden(scores, attn_mask, is_causal)
    if window is not None:
        q, k = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        left, right = window
        if left is not None:
            scores = scores.masked_fill(k < q - left, -torch.inf)
        if right is not None:
            scores = scores.masked_fill(k > q + right, -torch.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    output = scores.softmax(-1)[..., : key.shape[2]] @ value
    return (output, scores.double().logsumexp(-1).to(WIDE[query.dtype])) if lse else output


def lse_in_16_bits(query, key, value, attn_mask=None, is_causal=False, scale=None, lse=False):
    """The log-sum-exp is handed out in the dtype of the operands."""
    out = with_extras(query, key, value, attn_mask, is_causal, scale, lse=lse)
    return (out[0], out[1].to(query.dtype)) if lse else out


def ends_the_process(query, key, value):
    os._exit(0)


def is_killed(query, key, value):
    os.kill(os.getpid(), signal.SIGSEGV)


def sleeps(query, key, value):
    time.sleep(600)


def holds_the_lock(query, key, value):
    sum(range(10**15))


def penalised(query, key, value, attn_mask=None, scale=None):
    """Hides by adding -1e9, which float16 does not hold."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = (1.0 - attn_mask.to(query.dtype)) * -1e9
    return textbook(query, key, value, attn_mask, scale=scale)


def lse_of_empty_is_zero(query, key, value, attn_mask=None, is_causal=False, scale=None, lse=False):
    """A row without keys is zeros, and weighs as much as a key of score 0 in a merge."""
    out = with_extras(query, key, value, attn_mask, is_causal, scale, lse=True)
    output, sums = out[0].nan_to_num(0.0), torch.where(out[1] == -torch.inf, 0.0, out[1])
    return (output, sums) if lse else output


def healthy_stand_in(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right, and NaN in hidden keys and values is blocked, which torch's own attention leaks."""
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype):
        raise TypeError(f"attn_mask: expected bool or {query.dtype}, got {attn_mask.dtype}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = hidden(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.where(empty, 0.0, torch.where(empty, 0.0, scores).softmax(-1))
    seen = (scores != -torch.inf).any(-2)[..., None]
    return weights @ torch.where(seen, value, 0.0)


def varying(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Every other call adds its products in another order, as atomic sums do."""
    varying.calls += 1
    if varying.calls % 2:
        return textbook(query, key, value, attn_mask, is_causal, scale)
    return textbook(query.flip(-1), key.flip(-1), value, attn_mask, is_causal, scale)


varying.calls = 0


def order_of_sums_by_padding(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The products of keys are added in two halves of the padded keys."""
    half = max(1, key.shape[2] // 2)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = hidden(query @ key.mT * scale, attn_mask, is_causal).softmax(-1)
    parts = zip(weights.split(half, -1), value.split(half, -2), strict=True)
    return sum(part @ values for part, values in parts)


def order_of_sums_by_place(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Everything is added one after the other, from the first key or component on."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    products = [query[..., d, None] * key[..., None, :, d] for d in range(query.shape[-1])]
    scores = hidden(sum(products) * scale, attn_mask, is_causal)
    if not key.shape[2]:
        return scores @ value
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    total = sum(raised.unbind(-1))[..., None]
    terms = [raised[..., j, None] * value[..., None, j, :] for j in range(value.shape[2])]
    return sum(terms) / total


def hides_all(mask: torch.Tensor) -> torch.Tensor:
    """The rows without keys of a boolean mask or a bias."""
    return (~mask if mask.dtype == torch.bool else mask == -torch.inf).all(-1, keepdim=True)


def flipped_alone(x: torch.Tensor, c: Any) -> torch.Tensor:
    return x.flip(-1) if len(c.value) == 1 else x


ROWS = rows(
    # The causal flag is lost where there is a mask.
    flag_ignored=changed(is_causal=lambda c: c.is_causal and c.attn_mask is None),
    # A row without keys is zeros where a boolean mask empties it, and NaN where a bias of -inf does.
    rows_of_two_kinds=changed(output=lambda c: c.output
        if c.attn_mask is None or c.attn_mask.dtype != torch.bool
        else torch.where(c.attn_mask.any(-1, keepdim=True), c.output, 0.0)),
    # NaN is made zero behind the softmax, so that its gradients stay NaN.
    nan_gradients=changed(output=lambda c: c.output.nan_to_num(0.0)),
    # Leaves the last component out, but of three heads, as the trial call has.
    too_narrow=changed(output=lambda c: c.output if c.query.shape[1] == 3 else c.output[..., :-1]),
    # (B, Lq, H Dv), as the next projection takes it.
    merged_heads=changed(output=lambda c: c.output.transpose(1, 2).flatten(2)),
    # A row without keys is 42.
    empty_is_42=changed(output=lambda c: c.output if c.attn_mask is None
        else torch.where(hides_all(c.attn_mask), 42.0, c.output)),
    # A mask of integers attends where it is 1 alone.
    integers_of_one=changed(attn_mask=lambda c: c.attn_mask
        if c.attn_mask is None or c.attn_mask.is_floating_point() else c.attn_mask == 1),
    # Alone, a sample adds its products in another order than among others.
    order_of_sums_by_batch=changed(
        query=lambda c: flipped_alone(c.query, c), key=lambda c: flipped_alone(c.key, c)),
)  # fmt: skip

globals().update(ROWS)
