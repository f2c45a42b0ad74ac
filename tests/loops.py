"""A second opinion: attention by scalar loops straight from the formula, for tiny shapes.

Shares no code with the definition; a row is Python floats (or mpmath numbers, where `number`,
`exp` and `tanh` are given), so that the definition can be held against 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
    number: Callable[[float], Any] = float,
    exp: Callable[[Any], Any] = math.exp,
    tanh: Callable[[Any], Any] = math.tanh,
    sqrt: Callable[[Any], Any] = math.sqrt,
) -> tuple[list, list]:
    """Output and weights as nested lists [b][h][i][...] of `number`. Rows without keys give zeros.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); mask and bias broadcast to
    (B, H, Lq, Lk), sinks (H,).
    """
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = value.shape[1:]
    if scale is None:
        scale = 1 / sqrt(number(D))
    attend = np.broadcast_to(True if mask is None else mask, (B, H, Lq, Lk))
    added = np.broadcast_to(0.0 if bias is None else bias, (B, H, Lq, Lk))
    outputs: list = []
    all_weights: list = []
    for b in range(B):
        outputs.append([])
        all_weights.append([])
        for h in range(H):
            outputs[b].append([])
            all_weights[b].append([])
            kv = h // (H // Hkv)
            for i in range(Lq):
                scores: dict[int, Any] = {}
                for j in range(Lk):
                    if not attend[b, h, i, j] or added[b, h, i, j] == -math.inf:
                        continue
                    dot = number(0.0)
                    for c in range(D):
                        dot += number(float(query[b, h, i, c])) * number(float(key[b, kv, j, c]))
                    score = number(scale) * dot if isinstance(scale, float) else scale * dot
                    if softcap is not None:
                        score = number(softcap) * tanh(score / number(softcap))
                    scores[j] = score + number(float(added[b, h, i, j]))
                row = [number(0.0)] * Dv
                weights = [number(0.0)] * Lk
                logits = list(scores.values())
                if sinks is not None and sinks[h] > -math.inf:
                    logits.append(number(float(sinks[h])))
                if logits:
                    largest = max(logits)
                    raised = {j: exp(score - largest) for j, score in scores.items()}
                    total = sum((exp(logit - largest) for logit in logits), number(0.0))
                    for j, e in raised.items():
                        weights[j] = e / total
                        for c in range(Dv):
                            row[c] += weights[j] * number(float(value[b, kv, j, c]))
                outputs[b][h].append(row)
                all_weights[b][h].append(weights)
    return outputs, all_weights
