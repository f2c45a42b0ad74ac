"""Flash attention in Triton: forward, with a causal flag, grouped heads, and any strides."""

import torch
import triton
import triton.language as tl

from attention_conformance import claims


@triton.jit
def forward(
    Q, K, V, OUT, qb, qh, qm, qd, kb, kh, kn, kd, vb, vh, vn, vd, ob, oh, om, od,
    H, GROUP, M, N, scale, CAUSAL: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    b, h, first = tl.program_id(1) // H, tl.program_id(1) % H, tl.program_id(0) * BM
    m, n = first + tl.arange(0, BM)[:, None], tl.arange(0, BN)
    d, e = tl.arange(0, BD), tl.arange(0, BE)[None, :]
    kv = h // GROUP
    q = tl.load(Q + b * qb + h * qh + m * qm + d[None, :] * qd, (m < M) & (d < D)[None, :], 0.0)
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BE), tl.float32)
    end = tl.minimum(N, first + BM) if CAUSAL else N
    for start in range(0, end, BN):
        j, i = (start + n)[None, :], (start + n)[:, None]
        k = tl.load(
            K + b * kb + kv * kh + j * kn + d[:, None] * kd, (j < N) & (d < D)[:, None], 0.0
        )
        v = tl.load(V + b * vb + kv * vh + i * vn + e * vd, (i < N) & (e < E), 0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        seen = (j < N) & (m >= j) if CAUSAL else j < N
        s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(high, tl.max(s, 1))
        p = tl.exp(s - higher[:, None])
        rescale = tl.exp(high - higher)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        high = higher
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        OUT + b * ob + h * oh + m * om + e * od, acc.to(OUT.dtype.element_ty), (m < M) & (e < E)
    )


@claims(forward_only=True, mended_interpreter=True, numerics="fused")
def flash(query, key, value, is_causal=False, scale=None, enable_gqa=False, block=16):
    query, key, value = (x.resolve_neg() for x in (query, key, value))
    (B, H, M, D), (N, E) = query.shape, value.shape[2:]
    out = torch.empty((B, H, M, E), dtype=query.dtype, device=query.device)
    scale = D**-0.5 if scale is None else scale
    sizes = [max(16, triton.next_power_of_2(size)) for size in (D, E)]
    forward[triton.cdiv(M, block), B * H](
        query, key, value, out, *query.stride(), *key.stride(), *value.stride(), *out.stride(),
        H, H // key.shape[1], M, N, scale, is_causal, D, E, block, block, *sizes,
    )  # fmt: skip
    return out
