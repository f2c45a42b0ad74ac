"""More attention in PyTorch with one fault each, after reports of 2024 to 2026 or plausible slips:
precision, gradients, state, bias."""

import math

import torch

from tests.diagnosed.later import _attention, _by_hand, _drop, _masked, _softmax, _spread, _wide

# precision inside


# jax PR#34114 (kind): everything goes through float32, float64 too
def doubles_become_singles(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = query.float(), key.float(), value.float()
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    key, value = _spread(query, key, value, enable_gqa)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# HabanaAI/vllm-fork#275, 2024: a constant is subtracted where the maximum belongs
@_attention
def constant_instead_of_maximum(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    powers = torch.exp(scores - 10.0)
    total = powers.sum(dim=-1, keepdim=True)
    weights = powers / torch.where((scores == -math.inf).all(dim=-1, keepdim=True), 1.0, total)
    return _drop(weights, dropout_p) @ value


# gradients


class _NoScaleForKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, scale):
        weights = _softmax(query @ key.transpose(-2, -1) * scale + bias)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.bias_shape = scale, bias.shape
        return weights @ value

    @staticmethod
    def backward(ctx, grad):
        query, key, value, weights = ctx.saved_tensors
        d_weights = grad @ value.transpose(-2, -1)
        d_scores = weights * (d_weights - (d_weights * weights).sum(dim=-1, keepdim=True))
        d_query = d_scores @ key * ctx.scale
        d_key = d_scores.transpose(-2, -1) @ query
        return (
            d_query,
            d_key,
            weights.transpose(-2, -1) @ grad,
            d_scores.sum_to_size(ctx.bias_shape),
            None,
        )


# AiDotNet.Tensors#49 (kind): the gradient of the keys lacks the scale
@_attention
def keys_gradient_without_scale(query, key, value, attn_mask, dropout_p, is_causal, scale):
    bias = _masked(query.new_zeros(query.size(-2), key.size(-2)), attn_mask, is_causal)
    return _by_hand(_NoScaleForKeys, query, key, value, bias, dropout_p, scale)


class _UnmaskedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, scale):
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.bias_shape = scale, bias.shape
        return _softmax(query @ key.transpose(-2, -1) * scale + bias) @ value

    @staticmethod
    def backward(ctx, grad):
        query, key, value = ctx.saved_tensors
        weights = _softmax(query @ key.transpose(-2, -1) * ctx.scale)
        d_weights = grad @ value.transpose(-2, -1)
        d_scores = weights * (d_weights - (d_weights * weights).sum(dim=-1, keepdim=True))
        d_query = d_scores @ key * ctx.scale
        d_key = d_scores.transpose(-2, -1) @ query * ctx.scale
        return (
            d_query,
            d_key,
            weights.transpose(-2, -1) @ grad,
            d_scores.sum_to_size(ctx.bias_shape),
            None,
        )


# flash-attention#2424, 2026: the mask is not saved, so that the backward pass runs without it
@_attention
def backward_without_the_mask(query, key, value, attn_mask, dropout_p, is_causal, scale):
    bias = _masked(query.new_zeros(query.size(-2), key.size(-2)), attn_mask, is_causal)
    return _by_hand(_UnmaskedBackward, query, key, value, bias, dropout_p, scale)


class _FirstOfTheGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x.repeat_interleave(times, dim=-3)

    @staticmethod
    def backward(ctx, grad):
        return grad.unflatten(-3, (-1, ctx.times)).select(-3, 0), None


# levanter PR#449, 2024: gradients of grouped keys and values are not summed over the group
def group_gradient_of_one_head(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    if enable_gqa:
        key = _FirstOfTheGroup.apply(key, query.size(-3) // key.size(-3))
        value = _FirstOfTheGroup.apply(value, query.size(-3) // value.size(-3))
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# state between calls

_ANSWERS = {}


# plausible slip with static buffers (graph capture): every call of a shape writes the same buffer
def one_buffer_for_all_answers(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    out = (_drop(weights, dropout_p) @ value).to(dtype)
    name = (tuple(out.shape), out.dtype, out.device)
    if name not in _ANSWERS:
        _ANSWERS[name] = torch.empty_like(out, requires_grad=False)
    return _ANSWERS[name].detach().copy_(out)


# plausible slip: the scale is folded into the query in place, the caller's tensor changes
def query_scaled_in_place(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    if query.requires_grad:
        query = query * scale
    else:
        query.mul_(scale)
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    scores = query @ key.transpose(-2, -1)
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# NaN handling


# pytorch PR#131060 review, 2024: every NaN of the weights becomes 0, also one that came with the inputs
@_attention
def nan_of_the_input_hidden(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    scores = _masked(scores, attn_mask, is_causal)
    weights = torch.nan_to_num(_softmax(scores), nan=0.0)
    return _drop(weights, dropout_p) @ value


# bias


# TransformerEngine PR#103 (kind): softmax(scale * (logits + bias)) instead of softmax(scale * logits
# + bias)
@_attention
def bias_is_scaled_too(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, attn_mask = scores + attn_mask, None
    weights = _softmax(_masked(scores * scale, attn_mask, is_causal))
    return _drop(weights, dropout_p) @ value
