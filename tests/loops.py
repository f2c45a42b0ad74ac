"""A second opinion: attention by scalar loops straight from the formula, for tiny shapes, in 50 digits.

Shares no code with the definition: a row is numbers of mpmath.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Any = None, bias: Any = None,
    scale: Any = None, softcap: Any = None, sinks: Any = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The output (B, H, Lq, Dv) and the log-sum-exp (B, H, Lq), rounded to extended precision. Rows
    without keys give zeros and -inf.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); mask and bias broadcast to
    (B, H, Lq, Lk), sinks (H,).
    """
    (B, H, Lq, D), (Hkv, Lk, Dv) = query.shape, value.shape[1:]
    attend = np.broadcast_to(True if mask is None else mask, (B, H, Lq, Lk))
    added = np.broadcast_to(0.0 if bias is None else bias, (B, H, Lq, Lk))
    output, lse = np.zeros((B, H, Lq, Dv), np.longdouble), np.zeros((B, H, Lq), np.longdouble)
    with mpmath.workdps(50):
        scale = 1 / mpmath.sqrt(D) if scale is None else mpmath.mpf(float(scale))
        for b, h, i in np.ndindex(B, H, Lq):
            kv = h // (H // Hkv)
            scores: dict[int, Any] = {}
            for j in range(Lk):
                if not attend[b, h, i, j] or added[b, h, i, j] == -math.inf:
                    continue
                score = scale * mpmath.fdot(query[b, h, i].tolist(), key[b, kv, j].tolist())
                if softcap is not None:
                    score = softcap * mpmath.tanh(score / softcap)
                scores[j] = score + float(added[b, h, i, j])
            powers = {j: mpmath.exp(score) for j, score in scores.items()}
            total = sum(powers.values(), mpmath.mpf(0))
            if sinks is not None:
                total += mpmath.exp(float(sinks[h]))
            lse[b, h, i] = rounded(mpmath.log(total)) if total else -math.inf
            for c in range(Dv) if powers else ():
                values = [float(value[b, kv, j, c]) for j in powers]
                output[b, h, i, c] = rounded(mpmath.fdot(powers.values(), values) / total)
    return output, lse


def rounded(x: Any) -> np.longdouble:
    """A number of mpmath in extended precision."""
    return np.longdouble(mpmath.nstr(x, 30))
