"""A backend of NumPy's arrays that judges users' functions, and functions that are judged in the suite's
process and in a child."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import NumpyEngine, rounded_to
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.masks import FLAGGED
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.user.function import UserFunction


class Arrays(NumpyEngine):
    """NumPy with a native signature."""

    name = "arrays"
    native = ""

    def implementations(self) -> list[Implementation]:
        return []

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, Kernel("attend", "attend", FLAGGED))


def backend(device: str) -> Arrays:
    return Arrays(device)


def drawn() -> float:
    """A number of the process's generator."""
    return float(np.random.random())


def attend(query, key, value, is_causal=False, mask=None, bias=None, scale=None):  # type: ignore[no-untyped-def]
    """Attention of `Rounded` arrays (B, L, H, D), in float64 and rounded once."""
    q, k, v = (x.values.swapaxes(1, 2) for x in (query, key, value))
    if k.shape[1] != q.shape[1]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    with np.errstate(all="ignore"):
        scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if bias is None else scores + bias.values
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        if mask is not None:
            scores = np.where(mask.values, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        out = weights @ v / weights.sum(-1, keepdims=True)
    return rounded_to(out.swapaxes(1, 2), query.fmt)


def attend_wrongly(query, key, value, is_causal=False, mask=None, bias=None, scale=None):  # type: ignore[no-untyped-def]
    """Wrong in five ways, by the number of queries or keys."""
    if key.shape[1] == 23:
        mask = None
    if query.shape[1] == 5:
        raise ValueError("five \udc80")
    out = attend(query, key, value, is_causal, mask, bias, scale)
    if query.shape[1] == 17:
        query.values[..., :1] = 0
    if query.shape[1] == 7:
        np.seterr(over="raise")
    return out.values if query.shape[1] == 11 else out


def attend_too_much(query, key, value, is_causal=False, mask=None, bias=None, scale=None):  # type: ignore[no-untyped-def]
    """One percent too large."""
    out = attend(query, key, value, is_causal, mask, bias, scale)
    return rounded_to(out.values * 1.01, out.fmt)


def ends(query, key, value):  # type: ignore[no-untyped-def]
    """Right, and ends or holds its process for some numbers of queries."""
    if query.shape[1] == 17:
        os._exit(0)
    if query.shape[1] == 9:
        time.sleep(60)
    return attend(query, key, value)


def is_killed(query, key, value):  # type: ignore[no-untyped-def]
    """Right, and kills its process as the system does that runs out of memory."""
    if query.shape[1] == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    return attend(query, key, value)
