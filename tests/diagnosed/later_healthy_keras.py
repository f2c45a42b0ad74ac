"""An attention function without a fault, written in an unusual way (keras)."""

from keras import ops

from tests.diagnosed.later_keras import _hide, _logits, _prepare


def in_two_halves(
    query,
    key,
    value,
    bias=None,
    mask=None,
    scale=None,
    is_causal=False,
    flash_attention=None,
    attn_logits_soft_cap=None,
):
    """Keys in two halves under one maximum, summed at the end."""
    query, key, value = _prepare(query, key, value)
    logits = _logits(query, key, scale)
    if bias is not None:
        logits = logits + ops.cast(bias, logits.dtype)
    logits = _hide(logits, mask, is_causal)
    middle = (key.shape[1] + 1) // 2
    top = ops.max(logits, axis=-1, keepdims=True)
    total, out = 0.0, 0.0
    for part, rows in (
        (logits[..., :middle], value[:, :middle]),
        (logits[..., middle:], value[:, middle:]),
    ):
        powers = ops.exp(part - top)
        total = total + ops.sum(powers, axis=-1, keepdims=True)
        out = out + ops.einsum("bnts,bsnh->bnth", powers, ops.cast(rows, powers.dtype))
    return ops.cast(ops.transpose(out / total, (0, 2, 1, 3)), value.dtype)
