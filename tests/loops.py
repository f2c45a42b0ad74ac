"""A second opinion: attention by scalar loops straight from the formula, for tiny shapes, in 50 digits.

Shares no code with the definition: a row is numbers of mpmath.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: Any = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> list:
    """The output as nested lists [b][h][i][v]. Rows without keys give zeros.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); mask and bias broadcast to
    (B, H, Lq, Lk), sinks (H,).
    """
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = value.shape[1:]
    number: Any = mpmath.mpf
    scale = 1 / mpmath.sqrt(D) if scale is None else number(scale)
    attend = np.broadcast_to(True if mask is None else mask, (B, H, Lq, Lk))
    added = np.broadcast_to(0.0 if bias is None else bias, (B, H, Lq, Lk))
    outputs: list = []
    for b in range(B):
        outputs.append([])
        for h in range(H):
            outputs[b].append([])
            kv = h // (H // Hkv)
            for i in range(Lq):
                scores: dict[int, Any] = {}
                for j in range(Lk):
                    if not attend[b, h, i, j] or added[b, h, i, j] == -math.inf:
                        continue
                    dot = number(0.0)
                    for c in range(D):
                        dot += number(float(query[b, h, i, c])) * number(float(key[b, kv, j, c]))
                    score = scale * dot
                    if softcap is not None:
                        score = softcap * mpmath.tanh(score / softcap)
                    scores[j] = score + number(float(added[b, h, i, j]))
                row = [number(0.0)] * Dv
                logits = list(scores.values())
                if sinks is not None and sinks[h] > -math.inf:
                    logits.append(number(float(sinks[h])))
                if logits:
                    largest = max(logits)
                    total = sum((mpmath.exp(logit - largest) for logit in logits), number(0.0))
                    for j, score in scores.items():
                        weight = mpmath.exp(score - largest) / total
                        for c in range(Dv):
                            row[c] += weight * number(float(value[b, kv, j, c]))
                outputs[b][h].append(row)
    return outputs
