"""Attention functions with one fault each, after reports of 2024 to 2026 or plausible slips (torch)."""

import math

import torch
import torch.nn.functional as F


def _wide(*tensors):
    return tuple(t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors)


def _spread(query, key, value, enable_gqa):
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), dim=-3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), dim=-3)
    return key, value


def _masked(scores, attn_mask, is_causal):
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, -math.inf)
        else:
            scores = scores + attn_mask
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(visible, scores, -math.inf)
    return scores


def _softmax(scores):
    empty = (scores == -math.inf).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


def _by_hand(function, query, key, value, bias, dropout_p, scale):
    """The answer of an autograd function with a backward pass of its own; with dropout without it."""
    if dropout_p > 0.0:
        return _drop(_softmax(query @ key.transpose(-2, -1) * scale + bias), dropout_p) @ value
    lead = torch.broadcast_shapes(
        query.shape[:-2], key.shape[:-2], value.shape[:-2], bias.shape[:-2]
    )
    query, key, value = (t.expand(*lead, *t.shape[-2:]) for t in (query, key, value))
    return function.apply(query, key, value, bias, scale)


def _drop(weights, dropout_p):
    return F.dropout(weights, dropout_p) if dropout_p > 0.0 else weights


def _attention(kernel):
    """A kernel with the signature of torch's attention.

    The kernel gets wide operands, keys and values for every query head, and a scale. The output has the
    dtype of the query.
    """

    def attention(
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    ):
        dtype = query.dtype
        query, key, value = _wide(query, key, value)
        key, value = _spread(query, key, value, enable_gqa)
        scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
        return kernel(query, key, value, attn_mask, dropout_p, is_causal, scale).to(dtype)

    return attention


# masks


# vllm-omni#5865 (kind): a mask is taken for key padding and one row of it stands for all
@_attention
def first_row_of_mask(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None:
        attn_mask = attn_mask[..., :1, :]
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return _drop(weights, dropout_p) @ value


# pytorch#107084 (kind): a float mask becomes a boolean one, its finite values are lost
@_attention
def float_mask_to_bool(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask > -1e4
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return _drop(weights, dropout_p) @ value


# mlx-node PR#24 review, 2026: causal masking only where the two lengths are equal
@_attention
def triangle_only_when_square(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    causal = is_causal and query.size(-2) > 1 and query.size(-2) == key.size(-2)
    weights = _softmax(_masked(scores, attn_mask, causal))
    return _drop(weights, dropout_p) @ value


# lsdefine/attention-is-all-you-need-keras#36 (kind): samples and heads are flattened, the masks are
# repeated in the other order, so that a head reads the mask of another sample
@_attention
def mask_of_another_sample(query, key, value, attn_mask, dropout_p, is_causal, scale):
    lead, (length, width) = query.shape[:-2], (query.size(-2), key.size(-2))
    count = math.prod(lead)
    q, k, v = (t.reshape(count, *t.shape[-2:]) for t in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) * scale
    if attn_mask is not None:
        if attn_mask.dim() == 4 and attn_mask.size(1) == 1:
            attn_mask = attn_mask[:, 0].expand(lead[0], length, width).repeat(lead[1], 1, 1)
        else:
            attn_mask = attn_mask.expand(*lead, length, width).reshape(count, length, width)
    weights = _drop(_softmax(_masked(scores, attn_mask, is_causal)), dropout_p)
    return torch.bmm(weights, v).reshape(*lead, length, v.size(-1))


# scale


# ipex-llm PR#12619 (kind): the head is padded to a multiple of eight, the scale is taken from the
# padded one
def scale_of_padded_head(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    extra = -query.size(-1) % 8
    query, key = F.pad(query, (0, extra)), F.pad(key, (0, extra))
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# TensorRT-LLM PR#4281 (kind): one head size for both, here that of the values, makes the scale
def scale_of_value_width(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    head_dim = value.size(-1)
    scale = head_dim**-0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# heads and grouping


# onnx PR#7274 (kind): grouped values are tiled where the keys are interleaved
def values_tiled(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), dim=-3)
        times = [1] * value.dim()
        times[-3] = query.size(-3) // value.size(-3)
        value = value.repeat(times)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# plausible slip of merging heads: the kernel's (B, L, H, E) answer is viewed instead of transposed
@_attention
def answer_viewed_as_heads(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    weights = _drop(_softmax(_masked(scores, attn_mask, is_causal)), dropout_p)
    out = weights @ value
    if out.dim() < 4:
        return out
    shape = out.shape
    out = out.transpose(-3, -2).contiguous()
    return out.view(shape)


# softmax axis and normalisation


# plausible slip: the axis that torch picked for four dimensions when `dim` was left out
@_attention
def softmax_over_heads(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    scores = _masked(scores, attn_mask, is_causal)
    axis = 1 if scores.dim() == 4 else -1
    empty = (scores == -math.inf).all(dim=axis, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), dim=axis).masked_fill(
        scores == -math.inf, 0.0
    )
    return _drop(weights, dropout_p) @ value


# kyegomez/AttentionIsOFFByOne#5 (kind): one is added to the sum of the exponentials
@_attention
def one_in_the_denominator(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    if scores.size(-1) == 0:
        return scores @ value
    top = scores.detach().amax(dim=-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    powers = torch.exp(scores - top)
    weights = powers / (1.0 + powers.sum(dim=-1, keepdim=True))
    return _drop(weights, dropout_p) @ value


# tiles and the online softmax


# diffusers#8837, 2024: the number of slices is rounded down, what is left over is never computed
@_attention
def last_keys_left_out(query, key, value, attn_mask, dropout_p, is_causal, scale):
    block = 8
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    tiles = max(key.size(-2) // block, 1)
    pieces, logs = [], []
    for i in range(tiles):
        part = scores[..., i * block : (i + 1) * block]
        pieces.append(_drop(_softmax(part), dropout_p) @ value[..., i * block : (i + 1) * block, :])
        logs.append(torch.logsumexp(part, dim=-1, keepdim=True))
    share = _softmax(torch.cat(logs, dim=-1))
    out = sum(share[..., i : i + 1] * piece for i, piece in enumerate(pieces))
    return out


# flashinfer PR#5090, 2026: lanes behind the last key of a partial tile have the score 0 and weigh
@_attention
def lanes_behind_the_last_key(query, key, value, attn_mask, dropout_p, is_causal, scale):
    block = 16
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    extra = -key.size(-2) % block if key.size(-2) > block else 0
    scores = F.pad(scores, (0, extra))
    value = F.pad(value, (0, 0, 0, extra))
    weights = _softmax(scores)
    return _drop(weights, dropout_p) @ value


# plausible slip of the online softmax: the sum is rescaled by the new maximum, the accumulator is not
@_attention
def accumulator_keeps_old_maximum(query, key, value, attn_mask, dropout_p, is_causal, scale):
    block = 16
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    top = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), scores[..., :0] @ value[..., :0, :]
    for start in range(0, key.size(-2), block):
        part = scores[..., start : start + block]
        new = torch.maximum(top, part.detach().amax(dim=-1, keepdim=True))
        safe = torch.where(new == -math.inf, 0.0, new)
        powers = torch.exp(part - safe)
        total = total * torch.exp(top - safe) + powers.sum(dim=-1, keepdim=True)
        out = out + _drop(powers, dropout_p) @ value[..., start : start + block, :]
        top = new
    return out / torch.where(total == 0.0, 1.0, total)


# flashinfer#4051, #4547 (kind): log-sum-exp in base 2 of the parts, merged in base e
@_attention
def merge_in_another_base(query, key, value, attn_mask, dropout_p, is_causal, scale):
    half = (key.size(-2) + 1) // 2
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    outs, logs = [], []
    for part, rows in (
        (scores[..., :half], value[..., :half, :]),
        (scores[..., half:], value[..., half:, :]),
    ):
        outs.append(_drop(_softmax(part), dropout_p) @ rows)
        logs.append(torch.logsumexp(part, dim=-1, keepdim=True) / math.log(2.0))
    share = _softmax(torch.cat(logs, dim=-1))
    return share[..., :1] * outs[0] + share[..., 1:] * outs[1]


# InvokeAI#7887, 2025: queries in chunks, and each chunk is given is_causal as if it began at row 0
@_attention
def triangle_begins_anew_per_chunk(query, key, value, attn_mask, dropout_p, is_causal, scale):
    chunk = 16
    outs = []
    for start in range(0, max(query.size(-2), 1), chunk):
        rows = query[..., start : start + chunk, :]
        mask = attn_mask
        if mask is not None and mask.dim() > 1 and mask.size(-2) > 1:
            mask = mask[..., start : start + chunk, :]
        scores = rows @ key.transpose(-2, -1) * scale
        weights = _softmax(_masked(scores, mask, is_causal))
        outs.append(_drop(weights, dropout_p) @ value)
    return torch.cat(outs, dim=-2)
