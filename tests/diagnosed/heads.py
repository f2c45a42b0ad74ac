"""Rows that mix up heads, axes, memory, calls or dropout."""

from __future__ import annotations

from typing import Any

from attention_conformance.suite.deviations.deviation import memory
from tests.diagnosed.expected import DROPOUT_ON, fault, viewed
from tests.diagnosed.rows import row


def of_first(x: Any, count: int) -> Any:
    """The first head for all heads."""
    return x[:, :1].expand(-1, count, -1, -1)


def tiled_values(right: Any, c: Any, x: Any) -> Any:
    """Values are tiled, keys are repeated."""
    group = c.shape[1] // x.shape[1]
    return c.xp.tile(x, group) if x is c.value else right.of_groups(c, x)


def in_memory_order(right: Any, c: Any) -> tuple[Any, Any, Any]:
    """Keys are read with the strides of their shape."""
    B, H, S, D = c.key.shape
    if c.key.untyped_storage().nbytes() >= c.key.numel() * c.key.element_size():
        c.key = c.key.as_strided((B, H, S, D), (H * S * D, S * D, D, 1))
    return right.operands(c)


def scaled_in_place(right: Any, c: Any) -> tuple[Any, Any, Any]:
    """The caller's query is multiplied."""
    if not c.query.requires_grad:
        c.query.mul_(c.factor)
        c.factor = 1.0
    return right.operands(c)


def in_one_buffer(right: Any, c: Any, output: Any) -> Any:
    """Every call of a shape writes the same buffer."""
    output = right.handed(c, output)
    kept = memory(right).setdefault((output.shape, output.dtype), output.detach().clone())
    return kept.copy_(output.detach())


def viewed_as_heads(right: Any, c: Any, output: Any) -> Any:
    """(B, L, H, D) is viewed as (B, H, L, D)."""
    output = right.handed(c, output)
    return output.transpose(1, 2).reshape(output.shape)


ROWS = (
    # onnx/onnx#7274, ekzhang/jax-js#180, microsoft/onnxscript#2408
    row("tiled_groups", "heads-tiled", r"heads are tiled", takes="enable_gqa", of="torch jax tf",
        of_groups=lambda right, c, x: c.xp.tile(x, c.shape[1] // x.shape[1])),
    row("first_key_head_for_all", "first-key-head-only", r"every head reads head 0", takes="enable_gqa",
        of_groups=lambda right, c, x: x if x.shape[1] == c.shape[1] else of_first(x, c.shape[1])),
    row("values_of_another_group", "value-heads-tiled", r"value heads are tiled", takes="enable_gqa",
        of_groups=tiled_values),
    # jsbaan/transformer-from-scratch#6
    row("heads_merged_by_view", viewed, handed=viewed_as_heads),
    # huggingface/candle#3703
    row("keys_in_contiguous_memory", fault(r"stride|contiguous|layout|view|memory|order"),
        operands=in_memory_order),
    row("scales_query_in_place",
        fault(r"in[ -]?place|changes?|modif|overwrit|writes?|input|operand|untouched"),
        operands=scaled_in_place),
    row("one_buffer_for_all_answers",
        fault(r"earlier|previous|first|buffer|alias|shar|reus",
              r"call|answer|output|result"), handed=in_one_buffer),
    # huggingface/pytorch-image-models#1978
    row("dropout_stays_on", fault(DROPOUT_ON), of="torch tf",
        dropped=lambda right, c, w: c.xp.drop(w, 0.1)),
    row("dropout_without_rescaling",
        fault(r"rescal|divid|1 ?- ?(p|rate)|keep|scal|mean|kept"), takes="dropout_p",
        dropped=lambda right, c, w: right.dropped(c, w) * (1 - c.dropout_p)),
)  # fmt: skip
