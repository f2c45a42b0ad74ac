"""Attention in JAX with one fault each, after reports of 2024 to 2026 or plausible slips."""

import functools
import math

import jax
import jax.numpy as jnp


def _lift(x):
    return x if x is None or x.ndim == 4 else x[None]


def _group(query, key):
    return jnp.repeat(key, query.shape[2] // key.shape[2], axis=2)


def _attention(kernel):
    """A kernel with the signature of JAX' attention.

    The kernel gets arrays with a batch axis, and keys and values for every query head.
    """

    def attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
        shape = query.shape[:-1] + value.shape[-1:]
        query, key, value, bias, mask = (_lift(x) for x in (query, key, value, bias, mask))
        key, value = _group(query, key), _group(query, value)
        return kernel(query, key, value, bias, mask, scale, is_causal).reshape(shape)

    return attention


def _logits(query, key, scale, bias=None):
    kind = jnp.promote_types(query.dtype, jnp.float32)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=kind) * scale
    return logits if bias is None else (logits + bias).astype(logits.dtype)


def _hide(logits, mask, is_causal):
    low = -0.7 * float(jnp.finfo(logits.dtype).max)
    if mask is not None:
        logits = jnp.where(mask, logits, low)
    if is_causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, low)
    return logits


def _mix(logits, value, dtype):
    weights = jax.nn.softmax(logits, axis=-1).astype(dtype)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value).astype(dtype)


# plausible slip, of the kind of pytorch#174049: one of the two is read, the bias is lost beside a mask
@_attention
def bias_lost_beside_a_mask(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale)
    if mask is not None:
        logits = _hide(logits, mask, False)
    elif bias is not None:
        logits = (logits + bias).astype(logits.dtype)
    logits = _hide(logits, None, is_causal)
    return _mix(logits, value, query.dtype)


# vllm-ascend#15503 (kind, 512 there): the mask lives in a table of fixed width, keys behind it are
# visible
@_attention
def mask_table_too_narrow(query, key, value, bias, mask, scale, is_causal):
    width = 32
    logits = _logits(query, key, scale, bias)
    if mask is not None and mask.shape[-1] > width:
        mask = mask.at[..., width:].set(True)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value, query.dtype)


# native-sparse-attention-triton#27, 2026 (kind): query heads are split as (share, kv) where (kv,
# share) belongs
def groups_the_wrong_way_round(
    query, key, value, bias=None, mask=None, *, scale=None, is_causal=False
):
    shape = query.shape[:-1] + value.shape[-1:]
    query, key, value, bias, mask = (_lift(x) for x in (query, key, value, bias, mask))
    b, t, n, h = query.shape
    s, k = key.shape[1:3]
    kind = jnp.promote_types(query.dtype, jnp.float32)
    scale = 1.0 / math.sqrt(h) if scale is None else scale
    packed = query.reshape(b, t, n // k, k, h)
    logits = jnp.einsum("BTGKH,BSKH->BGKTS", packed, key, preferred_element_type=kind) * scale
    logits = logits.reshape(b, n, t, s)
    if bias is not None:
        logits = (logits + bias).astype(kind)
    weights = jax.nn.softmax(_hide(logits, mask, is_causal), axis=-1).astype(query.dtype)
    out = jnp.einsum("BGKTS,BSKH->BTGKH", weights.reshape(b, n // k, k, t, s), value)
    return out.astype(query.dtype).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _core(query, key, value, extra, scale):
    return _mix(_logits(query, key, scale) + extra, value, query.dtype)


def _core_forward(query, key, value, extra, scale):
    weights = jax.nn.softmax(_logits(query, key, scale) + extra, axis=-1)
    out = jnp.einsum("BNTS,BSNH->BTNH", weights.astype(query.dtype), value).astype(query.dtype)
    return out, (query, key, value, extra, weights)


def _core_backward(scale, kept, grad):
    query, key, value, extra, weights = kept
    d_weights = jnp.einsum("BTNH,BSNH->BNTS", grad, value)
    d_logits = weights * d_weights
    d_query = jnp.einsum("BNTS,BSNH->BTNH", d_logits, key) * scale
    d_key = jnp.einsum("BNTS,BTNH->BSNH", d_logits, query) * scale
    d_value = jnp.einsum("BNTS,BTNH->BSNH", weights, grad)
    d_extra = d_logits.astype(extra.dtype)
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        d_extra,
    )


_core.defvjp(_core_forward, _core_backward)


# flash-attention backward passes (kind): the sum of the row, "delta", is not subtracted in the
# softmax's derivative
@_attention
def derivative_without_row_sum(query, key, value, bias, mask, scale, is_causal):
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    kind = jnp.promote_types(query.dtype, jnp.float32)
    extra = jnp.zeros((query.shape[0], query.shape[2], query.shape[1], key.shape[1]), kind)
    if bias is not None:
        extra = (extra + bias).astype(kind)
    extra = _hide(extra, mask, is_causal)
    return _core(query, key, value, extra, scale)


# plausible slip: 1e-9 is typed for -1e9, hidden keys have the score 0 instead of none
@_attention
def tiny_number_for_huge(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    if mask is not None:
        logits = jnp.where(mask, logits, 1e-9)
    logits = _hide(logits, None, is_causal)
    return _mix(logits, value, query.dtype)


# jax#30593 (kind): the bias is a constant for the derivative, its gradient is zero
@_attention
def bias_learns_nothing(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale)
    if bias is not None:
        logits = (logits + jax.lax.stop_gradient(bias)).astype(logits.dtype)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value, query.dtype)


# plausible slip of layouts: the scale is taken from axis -2, which here counts the heads
@_attention
def scale_of_the_head_count(query, key, value, bias, mask, scale, is_causal):
    if scale is None:
        scale = query.shape[-2] ** -0.5
    logits = _logits(query, key, scale, bias)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value, query.dtype)


_MASKS = {}


# torchtitan PR#2117 (kind): masks are kept between calls, and the key is the shape alone
@_attention
def mask_remembered_by_its_shape(query, key, value, bias, mask, scale, is_causal):
    logits = _logits(query, key, scale, bias)
    if mask is not None and not isinstance(mask, jax.core.Tracer):
        mask = _MASKS.setdefault(mask.shape, mask)
    logits = _hide(logits, mask, is_causal)
    return _mix(logits, value, query.dtype)
