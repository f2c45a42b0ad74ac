"""The control's kernel. Triton decorates it when this module is imported."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    query, key, value, mask, bias, output,
    query_strides, key_strides, value_strides, mask_strides, bias_strides, output_strides,
    H, group, Lq, Lk, scale,
    D: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, COMPONENTS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Product, softmax, product for `ROWS` queries of one head, with all keys in one block.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, DV), mask and bias (B, H, Lq, Lk) or
    None; `group` is H / Hkv. The blocks are powers of 2 that hold `Lk`, `D` and `DV`.
    """
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, KEYS)[None, :]
    d = tl.arange(0, COMPONENTS)
    rows, keys = i < Lq, j < Lk
    place = b * query_strides[0] + h * query_strides[1] + i * query_strides[2]
    q = tl.load(query + place + d[None, :] * query_strides[3], rows & (d < D)[None, :], 0.0)
    place = b * key_strides[0] + h // group * key_strides[1] + j * key_strides[2]
    k = tl.load(key + place + d[:, None] * key_strides[3], keys & (d < D)[:, None], 0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if bias is not None:
        place = b * bias_strides[0] + h * bias_strides[1] + i * bias_strides[2]
        added = tl.load(bias + place + j * bias_strides[3], rows & keys, 0.0)
        scores += added.to(scores.dtype)
    attended = keys
    if mask is not None:
        place = b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2]
        attended = keys & tl.load(mask + place + j * mask_strides[3], rows & keys, 0).to(tl.int1)
    scores = tl.where(attended, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    e = tl.arange(0, VALUES)[None, :]
    place = b * value_strides[0] + h // group * value_strides[1] + tl.trans(j) * value_strides[2]
    v = tl.load(value + place + e * value_strides[3], tl.trans(keys) & (e < DV), 0.0)
    sums = tl.dot(weights, v.to(weights.dtype), input_precision="ieee")
    place = b * output_strides[0] + h * output_strides[1] + i * output_strides[2]
    to = output + place + e * output_strides[3]
    tl.store(to, sums.to(output.dtype.element_ty), rows & (e < DV))
