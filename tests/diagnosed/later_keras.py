"""Attention in Keras with one fault each, after reports of 2024 to 2026 or plausible slips."""

import math

import keras
from keras import ops


def _attention(kernel):
    """A kernel with the signature of Keras' attention. The kernel gets tensors, with keys and values
    for every query head."""

    def attention(
        query, key, value, bias=None, mask=None, scale=None, is_causal=False,
        flash_attention=None, attn_logits_soft_cap=None,
    ):  # fmt: skip
        query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
        groups = query.shape[2] // key.shape[2]
        if groups > 1:
            key, value = ops.repeat(key, groups, axis=2), ops.repeat(value, groups, axis=2)
        return kernel(query, key, value, bias, mask, scale, is_causal)

    return attention


def _wide(x):
    return ops.cast(
        x, keras.backend.result_type(keras.backend.standardize_dtype(x.dtype), "float32")
    )


def _logits(query, key, scale, bias=None):
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = _wide(ops.einsum("btnh,bsnh->bnts", query, key)) * scale
    return logits if bias is None else logits + ops.cast(bias, logits.dtype)


def _low(x):
    most = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.7e308}
    return -0.7 * most[keras.backend.standardize_dtype(x.dtype)]


def _hide(logits, mask, is_causal):
    low = ops.full_like(logits, _low(logits))
    if mask is not None:
        logits = ops.where(mask, logits, low)
    if is_causal:
        rows, columns = ops.arange(logits.shape[-2]), ops.arange(logits.shape[-1])
        logits = ops.where(rows[:, None] >= columns[None, :], logits, low)
    return logits


def _mix(logits, value):
    weights = ops.cast(ops.softmax(logits, axis=-1), value.dtype)
    return ops.einsum("bnts,bsnh->btnh", weights, value)


# openxla/xla PR#11444 (kind): the scores are multiplied by the mask, hidden keys have the score 0
@_attention
def scores_times_the_mask(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    if mask is not None:
        logits = logits * ops.cast(mask, logits.dtype)
    logits = _hide(logits, None, is_causal)
    return _mix(logits, value)


# plausible slip (kind of stevezheng23/reading_comprehension_tf PR#30): softmax along the queries
@_attention
def softmax_along_the_queries(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    logits = _hide(logits, mask, is_causal)
    weights = ops.softmax(logits, axis=-2)
    weights = ops.cast(weights, value.dtype)
    return ops.einsum("bnts,bsnh->btnh", weights, value)


# maxtext PR#1225, 2025 (kind): scores and softmax in bfloat16 although the inputs are float32
@_attention
def softmax_in_bfloat16(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    logits = ops.cast(logits, "bfloat16")
    logits = _hide(logits, mask, is_causal)
    weights = ops.softmax(logits, axis=-1)
    weights = ops.cast(weights, value.dtype)
    return ops.einsum("bnts,bsnh->btnh", weights, value)


# plausible slip: a bias is turned to (query, key) by a look at its shape, and a square one is turned
# as well
@_attention
def square_bias_transposed(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale)
    if bias is not None:
        bias = ops.cast(bias, logits.dtype)
        if tuple(bias.shape[-2:]) == (key.shape[1], query.shape[1]):
            bias = ops.swapaxes(bias, -1, -2)
        logits = logits + bias
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value)


# onnxruntime PR#25927 (kind): the current position is left out of the causal triangle
@_attention
def triangle_without_diagonal(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    if is_causal:
        rows, columns = ops.arange(query.shape[1]), ops.arange(key.shape[1])
        earlier = (rows[:, None] > columns[None, :])[None, None]
        mask = earlier if mask is None else ops.logical_and(mask, earlier)
    logits = _hide(logits, mask, False)
    return _mix(logits, value)


# plausible slip: scores are clipped "for stability", large ones are all alike
@_attention
def scores_clipped(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale)
    logits = ops.clip(logits, -20.0, 20.0)
    if bias is not None:
        logits = logits + ops.cast(bias, logits.dtype)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value)


# mlx-node PR#24 (kind): "a single query needs no mask", so that padding is visible in decoding
@_attention
def single_query_without_mask(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    if query.shape[1] == 1:
        mask = None
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value)


# plausible slip: the scale that is passed comes on top of the usual one
@_attention
def passed_scale_on_top(query, key, value, bias, mask, scale, is_causal):
    query = query / math.sqrt(query.shape[-1])
    logits = _logits(query, key, 1.0 if scale is None else scale)
    if bias is not None:
        logits = logits + ops.cast(bias, logits.dtype)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value)
