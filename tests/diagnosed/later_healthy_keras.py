"""An attention function without a fault, written in an unusual way (keras)."""

from keras import ops

from tests.diagnosed.later_keras import _attention, _hide, _logits


@_attention
def in_two_halves(query, key, value, bias, mask, scale, is_causal):
    """Keys in two halves under one maximum, summed at the end."""
    logits = _logits(query, key, scale, bias)
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
