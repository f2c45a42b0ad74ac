"""Rows that round where nothing should be rounded."""

from __future__ import annotations

from typing import Any

from tests.diagnosed.expected import BF16, F16, fault
from tests.diagnosed.rows import row
from tests.diagnosed.textbook import Change


def cast_to(dtype: str) -> Change:
    """Query, key and value are rounded to a dtype."""
    return lambda right, c: tuple(
        c.xp.cast(c.xp.cast(x, dtype), x.dtype) for x in right.operands(c)
    )


def summed_in_16_bits(right: Any, c: Any, w: Any) -> Any:
    """The products of weights and values are added one by one in the dtype of the query."""
    w, value = w.to(c.dtype), c.value.to(c.dtype)
    parts = (w[..., n : n + 1] * value[:, :, n : n + 1] for n in range(c.shape[3]))
    return sum(parts, start=w.new_zeros((*w.shape[:-1], value.shape[-1])))


def keys_in_8_bits(right: Any, c: Any) -> tuple[Any, Any, Any]:
    """Keys pass through 8 bits, one scale a tensor."""
    query, key, value = right.operands(c)
    if key.numel():
        step = key.detach().abs().amax().clamp_min(1e-12) / 127
        key = key + ((key / step).round() * step - key).detach()
    return query, key, value


ROWS = (
    row("bfloat16_inside", fault(BF16), operands=cast_to("bfloat16")),
    # jax-ml/jax#34114
    row("doubles_become_singles", fault(r"float64|double", r"float32|single|precision"),
        operands=cast_to("float32")),
    row("half_precision_scores", fault(F16),
        scores=lambda right, c: right.scores(c).half().to(c.query.dtype)),
    # huggingface/transformers#48459
    row("softmax_in_float32", fault(r"float32|single|\bf32\b|24 bits"),
        weights=lambda right, c, s: s.float().softmax(-1).to(s.dtype)),
    row("weights_in_bfloat16", fault(BF16), of="torch tf",
        weights=lambda right, c, s: c.xp.cast(c.xp.cast(right.weights(c, s), "bfloat16"), s.dtype)),
    row("sums_in_16_bits",
        fault(r"accumul|\bsum|add", r"16|half|working|case dtype|own dtype"),
        output=summed_in_16_bits),
    # thu-ml/SageAttention has this as a choice
    row("eight_bit_keys", fault(r"8[ -]bit|int8|quant|float8|fp8|bits"),
        operands=keys_in_8_bits),
)  # fmt: skip
