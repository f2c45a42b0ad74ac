"""Input recipes: the values a case is asked with.

Values are drawn from a generator seeded by the case id and `--seed`, then rounded to the case's
dtype before anybody sees them, so that the reference and every framework get the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from decimal import Decimal, localcontext

import numpy as np

from suite.spec.dtypes import DType
from suite.spec.sizes import PairIndex, Sizes, uniform
from suite.spec.vocabulary import HIDING

Operands = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Query (B, H, Lq, D), key (B, Hkv, Lk, D) and value (B, Hkv, Lk, Dv)."""

Draw = Callable[[np.random.Generator, Sizes, DType], Operands]


def _normal(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Unit normals. With uniform [0, 1) inputs attention is nearly uniform and hides a wrong scale."""
    return (
        rng.standard_normal((s.B, s.H, s.Lq, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.Dv)),
    )


def _large(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Queries and keys four times as large: scores with a spread of 16, weights near one-hot."""
    q, k, v = _normal(rng, s, fmt)
    return 4 * q, 4 * k, v


def _ties(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Keys repeat with period 3, so that many scores of a row tie exactly."""
    q, k, v = _normal(rng, s, fmt)
    return q, k[:, :, np.arange(s.Lk) % 3], v


def _onehot(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """value[j] is the unit vector j mod Dv: the output reads the weights."""
    q, k, _ = _normal(rng, s, fmt)
    v = np.zeros((s.B, s.Hkv, s.Lk, s.Dv))
    if s.Dv:
        v[..., np.arange(s.Lk), np.arange(s.Lk) % s.Dv] = 1.0
    return q, k, v


def _integers(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Integers from -2 to 2: the products query key^T are exact in every dtype."""
    q, k, v = (np.rint(np.clip(x, -2, 2)) for x in _normal(rng, s, fmt))
    return q, k, v


def _tiny(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Values around the smallest normal number of the dtype: outputs partly subnormal."""
    q, k, v = _normal(rng, s, fmt)
    return q, k, v * fmt.smallest_normal


def _offset(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
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


def _sunk(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Every score around -2^15: below the -30, -1e4 and the like that stand in for minus infinity.

    The first component of a query is 64, of a key about -512 sqrt(D) (a power of two). Beyond the
    range of float16, and in bfloat16 stored scores would lose all their digits.
    """
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        q[..., 0] = 64.0
        k[..., 0] = -(2.0 ** np.round(np.log2(512 * np.sqrt(s.D))))
    return q, k, v


def _overflow(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """query key^T beyond 65504 before the scale is applied, moderate after it.

    In float16 an implementation that stores the unscaled product overflows (pytorch#119131). Meant
    for an explicit scale of 1/16384.
    """
    q, k, v = _normal(rng, s, fmt)
    return 160 * q, 160 * k, v


def _needle(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Few keys of each row hold nearly all its weight, in equal parts: the row reads them out.

    Keys are codes of random signs, nearly orthogonal where D is 64 or so, each code in turn for several
    keys; a query is four times a code. Every key is read by some row: there are as many codes as rows
    that share keys, and two keys of a code at least. A key that is dropped, counted twice or exchanged
    moves rows by its share, however long they are, where the error of a worst-case sum would hide it.
    """
    q, _, v = _normal(rng, s, fmt)
    if not s.Hkv:
        return q, np.zeros((s.B, s.Hkv, s.Lk, s.D)), v
    heads, group = np.arange(s.H)[:, None], s.group
    count = max(1, min(s.Lq * group, (s.Lk + 1) // 2))
    codes = np.sign(rng.standard_normal((s.B, s.Hkv, count, s.D)))
    rows = np.arange(s.Lq) + s.Lq * (heads % group)  # (H, Lq)
    return 4 * codes[:, heads // group, rows % count], codes[:, :, np.arange(s.Lk) % count], v


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
    "needle": _needle,
}


RECIPES = tuple(DRAWS)
"""Names of the input recipes."""

FIXED_SCALE = ("large", "offset", "sunk", "needle")
"""Recipes that set the size of the scores: they keep the default scale."""

OVERFLOW_SCALE = 2.0**-14
"""The scale that the recipe "overflow" is meant for."""


def recipes_of(names: Iterable[str], fmt: DType) -> list[str]:
    """Those of the recipes that mean something in a dtype: scores of -32768 need 24 bits, and what
    overflows before it is scaled overflows in float16 alone."""
    left_out = {"sunk"} if fmt.is_half else set()
    left_out |= set() if fmt.name == "f16" else {"overflow"}
    return [name for name in names if name not in left_out]


def exponentials(values: np.ndarray) -> np.ndarray:
    """e^x of float64, correctly rounded: the last bit of `np.exp` hangs on what vectors the CPU has, and
    what is drawn must not."""
    with localcontext(prec=40):
        powers = [float(Decimal(value).exp()) for value in values.ravel().tolist()]
    return np.array(powers).reshape(values.shape)


def generator(name: str, seed: int) -> np.random.Generator:
    """The generator that belongs to a name and a seed, the same on every machine."""
    digest = hashlib.sha256(f"{name}#{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def alibi_slopes(heads: int) -> np.ndarray:
    """ALiBi's slopes (heads,). Of a power of two n they are 2^(-8 i / n), i from 1 to n. Of any other
    number they are those of the greatest power of two below it, and every other one, from the first, of
    the power of two above (the code of Press, Smith, Lewis, ICLR 2022, function get_slopes).
    """
    below = 2 ** max(heads.bit_length() - 1, 0)
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * below + 1, 2) / below)
    return np.concatenate([slopes, between])[:heads]


def alibi_bias(slopes: np.ndarray, rows: int, keys: int) -> np.ndarray:
    """-slope times the distance of a row and a key, (1, H, rows, keys), of slopes (H,); the last row
    stands at the last key."""
    distance = np.abs(np.arange(rows)[:, None] + (keys - rows) - np.arange(keys))
    return -slopes[None, :, None, None] * distance.astype(slopes.dtype)


def draw_bias(
    kind: str, rng: np.random.Generator, sizes: Sizes, seed: int, lowest: float
) -> np.ndarray | None:
    """The additive bias called `kind` (see `suite.spec.vocabulary.BIASES`), unrounded; None for "none".
    `lowest` is the lowest finite number of its dtype."""
    s = sizes
    if kind == "none":
        return None
    if kind == "alibi":
        slopes = 2.0 ** (-8.0 * (np.arange(s.H) + 1) / max(s.H, 1))
        distance = np.abs(np.arange(s.Lq)[:, None] - np.arange(s.Lk)[None, :])
        return -slopes.reshape(1, -1, 1, 1) * distance
    if kind == "alibikeys":
        return alibi_slopes(s.H).reshape(1, -1, 1, 1) * (np.arange(s.Lk) - (s.Lk - 1))
    if kind == "qk":
        return rng.standard_normal((s.Lq, s.Lk))
    shapes = {"1hqk": (1, s.H, s.Lq, s.Lk), "b1qk": (s.B, 1, s.Lq, s.Lk)}
    out = rng.standard_normal(shapes.get(kind, (s.B, s.H, s.Lq, s.Lk)))
    if kind in HIDING:
        ix = PairIndex.of(s, seed)
        hidden = uniform(seed + 503, ix.b, ix.h, ix.q, ix.k) < 0.35
        anchor = np.floor(uniform(seed + 601, ix.b, ix.h, ix.q) * s.Lk)
        out[hidden & (ix.k != anchor)] = -np.inf if kind == "inf" else lowest
    return out
