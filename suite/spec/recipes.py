"""Input recipes: the values a case is asked with.

Values are drawn from a generator seeded by the case id and `--seed`, then rounded to the case's
dtype before anybody sees them, so that the reference and every framework get the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from suite.spec.dtypes import DType, round_to
from suite.spec.masks import Index, Sizes, uniform
from suite.spec.problem import Case, Inputs

Draw = Callable[[np.random.Generator, Sizes, DType], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _normal(
    rng: np.random.Generator, s: Sizes, fmt: DType
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit normals. With uniform [0, 1) inputs attention is nearly uniform and hides a wrong scale."""
    return (
        rng.standard_normal((s.B, s.H, s.Lq, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.Dv)),
    )


def _large(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Queries and keys four times as large: scores with a spread of 16, weights near one-hot."""
    q, k, v = _normal(rng, s, fmt)
    return 4 * q, 4 * k, v


def _ties(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Keys repeat with period 3, so that many scores of a row tie exactly."""
    q, k, v = _normal(rng, s, fmt)
    return q, k[:, :, np.arange(s.Lk) % 3], v


def _onehot(rng, s, fmt):  # type: ignore[no-untyped-def]
    """value[j] is the unit vector j mod Dv: the output reads the weights."""
    q, k, _ = _normal(rng, s, fmt)
    v = np.zeros((s.B, s.Hkv, s.Lk, s.Dv))
    if s.Dv:
        v[..., np.arange(s.Lk), np.arange(s.Lk) % s.Dv] = 1.0
    return q, k, v


def _integers(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Integers from -2 to 2: the products query key^T are exact in every dtype."""
    return tuple(np.rint(np.clip(x, -2, 2)) for x in _normal(rng, s, fmt))


def _tiny(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Values around the smallest normal number of the dtype: outputs partly subnormal."""
    q, k, v = _normal(rng, s, fmt)
    return q, k, v * fmt.smallest_normal


def _offset(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Every score of a row moved by the same large amount: a softmax must subtract the row's own
    maximum, not a head's.

    The first component of a query is 8 and -8 in turn, of a key about 32 sqrt(D) (a power of two),
    so that default-scaled scores sit around 256 and -256, beyond the range of exp in float32.
    """
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        q[..., 0] = 8.0 * (-1.0) ** np.arange(s.Lq)
        k[..., 0] = 2.0 ** np.round(np.log2(32 * np.sqrt(s.D)))
    return q, k, v


def _sunk(rng, s, fmt):  # type: ignore[no-untyped-def]
    """Every score around -2^15: below the -30, -1e4 and the like that stand in for minus infinity.

    The first component of a query is 64, of a key about -512 sqrt(D) (a power of two). Beyond the
    range of float16, and in bfloat16 stored scores would lose all their digits.
    """
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        q[..., 0] = 64.0
        k[..., 0] = -(2.0 ** np.round(np.log2(512 * np.sqrt(s.D))))
    return q, k, v


def _overflow(rng, s, fmt):  # type: ignore[no-untyped-def]
    """query key^T beyond 65504 before the scale is applied, moderate after it.

    In float16 an implementation that stores the unscaled product overflows (pytorch#119131). Meant
    for an explicit scale of 1/16384.
    """
    q, k, v = _normal(rng, s, fmt)
    return 160 * q, 160 * k, v


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "large": _large,
    "ties": _ties,
    "onehot": _onehot,
    "integers": _integers,
    "tiny": _tiny,
    "offset": _offset,
    "sunk": _sunk,
    "overflow": _overflow,
}


def generator(name: str, seed: int) -> np.random.Generator:
    """The generator that belongs to a name and a seed, the same on every machine."""
    digest = hashlib.sha256(f"{name}#{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def draw_bias(kind: str, rng: np.random.Generator, sizes: Sizes, seed: int) -> np.ndarray | None:
    """The additive bias called `kind` (see `suite.spec.problem.BIASES`), unrounded; None for "none"."""
    s = sizes
    if kind == "none":
        return None
    if kind == "alibi":
        slopes = 2.0 ** (-8.0 * (np.arange(s.H) + 1) / max(s.H, 1))
        distance = np.abs(np.arange(s.Lq)[:, None] - np.arange(s.Lk)[None, :])
        return -slopes.reshape(1, -1, 1, 1) * distance
    if kind == "qk":
        return rng.standard_normal((s.Lq, s.Lk))
    shapes = {"1hqk": (1, s.H, s.Lq, s.Lk), "b1qk": (s.B, 1, s.Lq, s.Lk)}
    out = rng.standard_normal(shapes.get(kind, (s.B, s.H, s.Lq, s.Lk)))
    if kind == "inf":
        ix = Index.of(s, seed)
        hidden = uniform(seed + 503, ix.b, ix.h, ix.q, ix.k) < 0.35
        anchor = np.floor(uniform(seed + 601, ix.b, ix.h, ix.q) * s.Lk)
        out[hidden & (ix.k != anchor)] = -np.inf
    return out


def draw_cotangent(case: Case, seed: int = 0) -> np.ndarray:
    """What a case's output is differentiated with: unit normals (B, H, Lq, Dv) in the case's dtype."""
    s = case.problem.sizes
    shape = (s.B, s.H, s.Lq, s.Dv)
    return round_to(generator(f"{case.id}/cotangent", seed).standard_normal(shape), case.dtype)


def draw_tangents(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Along what a case's query, key and value move: unit normals of their shapes, in its dtype."""
    rng = generator(f"{case.id}/tangents", seed)
    q, k, v = (round_to(x, case.dtype) for x in _normal(rng, case.problem.sizes, case.dtype))
    return q, k, v


def draw(case: Case, seed: int = 0) -> Inputs:
    """The inputs of a case: the same bytes for the same id and seed, on every machine."""
    rng = generator(case.id, seed)
    p = case.problem
    q, k, v = DRAWS[case.recipe](rng, p.sizes, case.dtype)
    bias = draw_bias(p.bias, rng, p.sizes, seed)
    return Inputs(
        query=round_to(q, case.dtype),
        key=round_to(k, case.dtype),
        value=round_to(v, case.dtype),
        dtype=case.dtype,
        mask=p.mask,
        bias=None if bias is None else round_to(bias, case.dtype),
        scale=p.scale,
        softcap=p.softcap,
        layout=case.layout,
        form=case.form,
        seed=seed,
        bias_kind=p.bias,
        recipe=case.recipe,
    )
