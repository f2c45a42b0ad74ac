"""A second opinion: attention by scalar loops straight from the formula, for tiny shapes.

Shares no code with the definition; a row is Python floats (or mpmath numbers, where `number`,
`exp` and `tanh` are given), so that the definition can be held against 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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


def multi_head(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    epsilon: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Multi-head attention head by head: output (B, Lq, Eo) and weights (B, H, Lq, Lk), float64.

    Shapes as in `references.multi_head`. `epsilon` is that of the norms of queries and keys, where
    there are gains.
    """
    H, Hkv = parameters["query_kernel"].shape[1], parameters["key_kernel"].shape[1]

    def projected(x: np.ndarray, name: str, head: int) -> np.ndarray:
        kernel, offset = parameters[f"{name}_kernel"][:, head], parameters.get(f"{name}_bias")
        y = np.zeros((*x.shape[:2], kernel.shape[1]))
        for b, t, j in np.ndindex(*y.shape):
            y[b, t, j] = math.fsum(float(x[b, t, i] * kernel[i, j]) for i in range(len(kernel)))
            y[b, t, j] += 0.0 if offset is None else offset[head, j]
        gain = parameters.get(f"{name}_gain")
        if gain is None:
            return y
        for b, t in np.ndindex(*y.shape[:2]):
            row, size = y[b, t], len(y[b, t])
            mean = math.fsum(row) / size
            variance = math.fsum((x - mean) ** 2 for x in row) / size
            y[b, t] = [(x - mean) / math.sqrt(variance + epsilon) for x in row] * gain
        return y

    q = np.stack([projected(query, "query", h) for h in range(H)], 1)
    k = np.stack([projected(key, "key", h) for h in range(Hkv)], 1)
    v = np.stack([projected(value, "value", h) for h in range(Hkv)], 1)
    heads, weights = (np.array(x) for x in attention(q, k, v, mask=mask, bias=bias))
    if "output_kernel" not in parameters:
        return np.concatenate(list(heads.transpose(1, 0, 2, 3)), -1), weights
    kernel = parameters["output_kernel"]
    out = sum(heads[:, h] @ kernel[h] for h in range(H))
    return out + parameters.get("output_bias", 0.0), weights


def scored(
    value: np.ndarray, score: Callable[[int, int, int], float], lengths: tuple[int, int, int],
    mask: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Attention by any `score(b, i, j)` of `lengths` B, Lq, Lk over values (B, Lk, Ev): (B, Lq, Ev).

    Rows without keys give zeros.
    """
    B, Lq, Lk = lengths
    out = np.zeros((B, Lq, value.shape[-1]))
    attend = np.broadcast_to(True if mask is None else mask, (B, 1, Lq, Lk))
    for b in range(B):
        for i in range(Lq):
            scores = {j: score(b, i, j) for j in range(Lk) if attend[b, 0, i, j]}
            largest = max(scores.values(), default=0.0)
            raised = {j: math.exp(s - largest) for j, s in scores.items()}
            for j, e in raised.items():
                out[b, i] += e / math.fsum(raised.values()) * value[b, j]
    return out
