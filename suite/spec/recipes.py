"""Input recipes: the values of cases. For seeds and rounding see `suite.spec.inputs`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, localcontext

import numpy as np

from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.sizes import PairIndex, Sizes, uniform
from attention_conformance.suite.spec.vocabulary import HIDING

Operands = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Query (B, H, Lq, D), key (B, Hkv, Lk, D) and value (B, Hkv, Lk, Dv)."""

TILES = (8, 16, 32, 64, 128)
"""Numbers of keys that kernels take at a time."""

Draw = Callable[[np.random.Generator, Sizes, DType], Operands]


def _normal(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Unit normals. Uniform [0, 1) inputs make attention nearly uniform, which hides a wrong scale."""
    return (
        rng.standard_normal((s.B, s.H, s.Lq, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.D)),
        rng.standard_normal((s.B, s.Hkv, s.Lk, s.Dv)),
    )


def _large(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Queries and keys times four: scores with a standard deviation of 16, weights near one-hot."""
    q, k, v = _normal(rng, s, fmt)
    return 4 * q, 4 * k, v


def _ties(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Keys repeat with period 3, so many scores of a row tie exactly."""
    q, k, v = _normal(rng, s, fmt)
    return q, k[:, :, np.arange(s.Lk) % 3], v


def _onehot(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """value[j] is the unit vector j mod Dv, so the output shows the weights."""
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
    """Values near the smallest normal number of the dtype: some outputs are subnormal."""
    q, k, v = _normal(rng, s, fmt)
    return q, k, v * fmt.smallest_normal


def add_offset(query: np.ndarray, key: np.ndarray, depth: int) -> None:
    """Overwrites the first component of queries (..., Lq, D) and keys (..., Lk, D), so that all scores of
    a row have the same large offset.

    The component is 8 and -8 in turn in queries, and about 32 sqrt(depth), a power of two, in keys. With
    the scale 1 / sqrt(depth) scores are near 256 and -256, beyond the range of exp in float32.
    """
    query[..., 0] = 8.0 * (-1.0) ** np.arange(query.shape[-2])
    key[..., 0] = 2.0 ** np.round(np.log2(32 * np.sqrt(depth)))


def _offset(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Every score of a row has the same large offset (`add_offset`). A softmax must subtract the maximum
    of the row, not of the head. Log-sum-exps of parts of the keys must be kept in float32."""
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        add_offset(q, k, s.D)
    return q, k, v


def score_levels(
    rng: np.random.Generator, query: np.ndarray, key: np.ndarray, depth: int, fmt: DType
) -> tuple[float, float]:
    """Overwrites queries (..., Lq, D) and keys (..., Lk, D). With the scale 1 / sqrt(depth) their scores
    are whole numbers from -2 to 2. Returns the values (query, key) of one further component, which adds
    1024 to every score, or 128 in bfloat16.

    All scores, products and sums are exact in `fmt`. Their log-sum-exp is not exact, and needs float32.
    Raises ValueError if `depth` is no power of 4.
    """
    root, size = math.isqrt(checked_power_of_4(depth)), 128.0 if fmt.name == "bf16" else 1024.0
    is_used = rng.permuted(np.broadcast_to(np.arange(query.shape[-1]), query.shape), axis=-1) < 2
    query[...] = 512 / size * is_used
    key[...] = size * root / 512 * rng.integers(-1, 2, key.shape)
    return 16.0, size * root / 16


def _level(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Large scores that are exact in the dtype (`score_levels`), positive and negative in turn from row
    to row. Values rise with their keys, so that parts of the keys have different answers."""
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        query_level, key_level = score_levels(rng, q[..., 1:], k[..., 1:], s.D, fmt)
        q[..., 0], k[..., 0] = query_level * (-1.0) ** np.arange(s.Lq), key_level
    return q, k, v / 4 + rising(s.Lk)


def checked_power_of_4(depth: int) -> int:
    """Returns `depth`, the size of a query. Raises ValueError if it is no power of 4: then its scale
    1 / sqrt(depth) is no power of two."""
    if depth.bit_count() != 1 or depth.bit_length() % 2 == 0:
        raise ValueError(
            f"scores are whole numbers if a query has 1, 4, 16, ... components, got {depth}"
        )
    return depth


def rising(keys: int) -> np.ndarray:
    """Returns `keys` evenly spaced numbers from -2 to 2, (keys, 1)."""
    return np.linspace(-2.0, 2.0, keys)[:, None]


def _sunk(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Every score is near -2^15, below the finite numbers (-30, -1e4 ...) that kernels use for minus
    infinity.

    The first component of queries is 64, of keys about -512 sqrt(D) (a power of two). float16
    overflows, and stored bfloat16 scores lose all digits.
    """
    q, k, v = _normal(rng, s, fmt)
    if s.D:
        q[..., 0] = 64.0
        k[..., 0] = -(2.0 ** np.round(np.log2(512 * np.sqrt(s.D))))
    return q, k, v


def _overflow(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """query key^T exceeds 65504 before scaling, and is moderate after scaling by 1/16384.

    A float16 implementation that stores the unscaled product overflows (pytorch#119131).
    """
    q, k, v = _normal(rng, s, fmt)
    return 160 * q, 160 * k, v


def _needle(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """A few keys of each row have nearly all its weight, in equal parts. Each key has its own component.

    - Keys are random sign codes, nearly orthogonal for D near 64. Several keys share one code, and a
      query is twice a code. A larger factor would widen the bound of stored 16-bit scores.
    - There are as many codes as rows that share keys, and at least eight keys per code. So every key has
      weight in some row, and a key that counts twice stands out.
    - A value has one component that is not zero. The first Dv keys of a code have different components.

    A dropped, doubled or exchanged key changes a component of its row by a large part of the component,
    even in long rows. The worst-case bound of a sum of many values would hide the change.
    """
    q, _, v = _normal(rng, s, fmt)
    if not s.Hkv:
        return q, np.zeros((s.B, s.Hkv, s.Lk, s.D)), v
    heads, group = np.arange(s.H)[:, None], s.group
    code_count = max(1, min(s.Lq * group, s.Lk // 8))
    codes = np.sign(rng.standard_normal((s.B, s.Hkv, code_count, s.D)))
    rows = np.arange(s.Lq) + s.Lq * (heads % group)  # (H, Lq)
    repetition, code = np.divmod(np.arange(s.Lk), code_count)
    component = (repetition + code) % max(s.Dv, 1)
    value = np.where(np.arange(s.Dv) == component[:, None], v, 0.0)
    return 2 * codes[:, heads // group, rows % code_count], codes[:, :, code], value


def _staircase(rng: np.random.Generator, s: Sizes, fmt: DType) -> Operands:
    """Scores that rise and fall from tile to tile, in rows that lie anywhere in the dtype's range.

    Needs the scale 1 and at least two components. The first component adds a level to every tile of keys.
    The tiles of key head g have `TILES[g % 5]` keys. In sample b the levels follow course b % 4: they
    rise by 3, fall by 3, alternate between 0 and 100, or have a random order. The second component adds
    to the rows, in turn, 0, -102400 and 102400; in float16 60000 in place of 102400.
    """
    q, k, v = _normal(rng, s, fmt)
    if s.D < 2:
        return q, k, v
    row, key = (240.0, 250.0) if fmt.name == "f16" else (320.0, 320.0)
    q[..., 0], q[..., 1] = 1.0, np.array([0.0, -row, row])[np.arange(s.Lq) % 3]
    k[..., 1] = key
    for b, g in np.ndindex(s.B, s.Hkv):
        tile = np.arange(s.Lk) // TILES[g % len(TILES)]
        tiles = np.arange(int(tile.max(initial=0)) + 1)
        order = rng.permutation(len(tiles))
        courses = (3 * tiles, -3 * tiles, 100 * (tiles % 2), 3 * order)
        k[b, g, :, 0] = courses[b % len(courses)][tile]
    return q, k, v


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "large": _large,
    "ties": _ties,
    "onehot": _onehot,
    "integers": _integers,
    "tiny": _tiny,
    "offset": _offset,
    "level": _level,
    "sunk": _sunk,
    "overflow": _overflow,
    "needle": _needle,
    "staircase": _staircase,
}


RECIPES = tuple(DRAWS)
"""Names of the input recipes."""

FIXED_SCALE: Mapping[str, float | None] = {
    **dict.fromkeys(("large", "offset", "level", "sunk", "needle")),
    "overflow": 2.0**-14, "staircase": 1.0,
}  # fmt: skip
"""Recipes that set the size of the scores, with the scale that they need; None is the default scale."""


def recipes_of(names: Iterable[str], fmt: DType) -> list[str]:
    """Returns the recipes of `names` that make sense in a dtype. The scores of "sunk", -32768, need 24
    bits; "overflow" needs float16."""
    left_out = {"sunk"} if fmt.is_half else set()
    left_out |= set() if fmt.name == "f16" else {"overflow"}
    return [name for name in names if name not in left_out]


def exponentials(values: np.ndarray) -> np.ndarray:
    """Returns e^values, float64, correctly rounded. The last bit of `np.exp` depends on the CPU, but
    drawn values must not."""
    with localcontext(prec=40):
        powers = [float(Decimal(value).exp()) for value in values.ravel().tolist()]
    return np.array(powers).reshape(values.shape)


def generator(name: str, seed: int) -> np.random.Generator:
    """Returns the random generator of a name and a seed, the same on every machine."""
    digest = hashlib.sha256(f"{name}#{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def mask_seed_of(seed: int) -> int:
    """Returns the seed of a case's masks, derived from the seed of its values; 0 for 0. Inputs may show
    the mask seed, because nobody can compute the secret seed from it."""
    return int(generator("masks", seed).integers(2**63)) if seed else 0


def alibi_slopes(heads: int) -> np.ndarray:
    """Returns ALiBi slopes (heads,).

    For a power of two n: 2^(-8 i / n), i from 1 to n. For other numbers: the slopes of the power of two
    below, then every second slope, from the first, of the power of two above (get_slopes in the code of
    Press, Smith, Lewis, ICLR 2022).
    """
    below = 2 ** max(heads.bit_length() - 1, 0)
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * below + 1, 2) / below)
    return np.concatenate([slopes, between])[:heads]


def alibi_bias(slopes: np.ndarray, rows: int, keys: int) -> np.ndarray:
    """Returns the ALiBi bias (1, H, rows, keys) for slopes (H,): -slope times the distance of row and
    key. The last row is at the last key."""
    distance = np.abs(np.arange(rows)[:, None] + (keys - rows) - np.arange(keys))
    return -slopes[None, :, None, None] * distance.astype(slopes.dtype)


def draw_bias(
    kind: str, rng: np.random.Generator, sizes: Sizes, seed: int, lowest: float
) -> np.ndarray | None:
    """Returns the additive bias `kind` (see `suite.spec.vocabulary.BIASES`), unrounded; None for "none".

    `lowest` is the lowest finite number of the bias's dtype.
    """
    s = sizes
    if kind == "none":
        return None
    if kind == "alibi":
        slopes = 2.0 ** (-8.0 * (np.arange(s.H) + 1) / max(s.H, 1))
        distance = np.abs(np.arange(s.Lq)[:, None] - np.arange(s.Lk)[None, :])
        return -slopes.reshape(1, -1, 1, 1) * distance
    if kind == "alibikeys":
        return alibi_slopes(s.H).reshape(1, -1, 1, 1) * (np.arange(s.Lk) - (s.Lk - 1))
    if kind == "bits":
        return rng.integers(0, 2, (s.B, s.H, s.Lq, s.Lk)).astype(float)
    if kind in ("ones", "zeros"):
        return np.full((s.Lq, s.Lk), float(kind == "ones"))
    if kind == "qk":
        return rng.standard_normal((s.Lq, s.Lk))
    shapes = {"1hqk": (1, s.H, s.Lq, s.Lk), "b1qk": (s.B, 1, s.Lq, s.Lk)}
    out = rng.standard_normal(shapes.get(kind, (s.B, s.H, s.Lq, s.Lk)))
    if kind == "deep":
        far = 6e4 * (np.arange(s.Lq) % 3 - 1.0)
        return rng.standard_normal((1, s.H, s.Lq, s.Lk)) + far[:, None]
    if kind in HIDING:
        ix = PairIndex.of(s, seed)
        hidden = uniform(seed + 503, ix.b, ix.h, ix.q, ix.k) < 0.35
        anchor = np.floor(uniform(seed + 601, ix.b, ix.h, ix.q) * s.Lk)
        out[hidden & (ix.k != anchor)] = -np.inf if kind == "inf" else lowest
    return out
