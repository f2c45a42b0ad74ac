"""What is drawn: Hypothesis strategies over the dataclasses of the spec.

Every case drawn can be judged by the checks as it stands: its id parses back, and the combinations
that mean nothing (see `suite.spec.catalogue.compatible`) are left out. First alternatives are the
simplest, so that a failure shrinks to few small sizes, no mask, no option.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from suite.spec.dtypes import DTYPES, DType
from suite.spec.masks import (
    And,
    Boolean,
    Causal,
    Mask,
    Or,
    Padding,
    Prefix,
    Segments,
    Sizes,
    Window,
)
from suite.spec.problem import BIASES, LAYOUTS, RECIPES, Case, Problem, part_features

PAIRS = 16_384
"""The most pairs B x H x Lq x Lk of a case: the oracles of one take some ten milliseconds."""

EVERY_DTYPE = tuple(DTYPES[name] for name in ("f32", "bf16", "f16", "f64"))

TAILS = (31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129)
FAR = (129, 255, 256, 257, 511, 512, 513, 600, 767, 1025)

HEAD_SIZES = (10, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 80, 96, 128)
GROUPS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8)
SCALES = (0.3, 0.0, -0.2, 2.5, 1.0, 0.125)
SOFTCAPS = (2.0, 0.5, 5.0, 30.0)

FIXED_SCALE = ("large", "offset", "sunk")
"""Recipes that set the size of the scores keep the default scale."""


def rarely(common: st.SearchStrategy, rare: st.SearchStrategy, one_in: int) -> st.SearchStrategy:
    """`rare` once in `one_in` draws, otherwise `common`, to which it shrinks."""
    return st.integers(1, one_in).flatmap(lambda n: rare if n == one_in else common)


def lengths() -> st.SearchStrategy[int]:
    """Numbers of queries or keys, 1 at least."""
    near = st.one_of(st.integers(1, 9), st.integers(1, 40), st.sampled_from(TAILS))
    return rarely(near, st.sampled_from(FAR), 8)


@st.composite
def sizes(draw: st.DrawFn, pairs: int = PAIRS) -> Sizes:
    """Sizes of at most `pairs` pairs. Batches and numbers of queries may be 0; keys there are always:
    what becomes of none is an election, and none of the values' matter."""
    Lq, Lk = draw(lengths()), draw(lengths())
    if draw(st.integers(1, 4)) == 4:
        Lq = Lk
    B = draw(rarely(st.integers(1, 4), st.sampled_from((0, 5, 9)), 12))
    groups, Hkv = draw(st.sampled_from(GROUPS)), draw(st.integers(1, 4))
    D = draw(st.one_of(st.integers(1, 9), st.sampled_from(HEAD_SIZES)))
    Dv = draw(rarely(st.just(D), st.integers(1, 20), 5))
    Lq = draw(rarely(st.just(Lq), st.just(0), 30))

    def beyond() -> bool:
        return B * groups * Hkv * Lq * Lk > pairs

    if beyond():
        B, groups = min(B, 2), min(groups, 4)
    if beyond():
        Hkv, groups = min(Hkv, 2), min(groups, 2)
    if beyond():
        B = min(B, 1)
    if beyond():
        Lq = max(1, pairs // (B * groups * Hkv * Lk))
    return Sizes(B, groups * Hkv, Hkv, Lq, Lk, D, Dv)


def atoms(reach: int) -> st.SearchStrategy[Mask]:
    """Masks of one part; windows and prefixes reach as far as `reach`."""
    side = st.one_of(st.integers(0, 4), st.integers(0, max(reach, 1)), st.none())
    return st.one_of(
        st.just(Causal()),
        st.just(Causal(bottom_right=True)),
        st.builds(Padding, st.booleans(), st.booleans()),
        st.builds(Boolean, st.sampled_from(Boolean.AXES), st.booleans()),
        st.builds(Window, side, side),
        st.builds(Prefix, st.integers(0, max(reach, 1))),
        st.builds(Segments, st.integers(1, 5)),
    )


@st.composite
def masks(draw: st.DrawFn, reach: int) -> Mask | None:
    """No mask, an atom, alternatives, or a conjunction of up to three of these."""
    if draw(st.integers(0, 4)) == 0:
        return None
    count = draw(rarely(st.just(1), st.integers(2, 3), 3))
    parts: list[Mask] = []
    for _ in range(count):
        one, other = draw(atoms(reach)), draw(rarely(st.none(), atoms(reach), 6))
        parts.append(one if other in (None, one) else Or((one, other)))
    parts = list(dict.fromkeys(parts))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: Sequence[DType] = EVERY_DTYPE,
    pool: Sequence[Sizes] = (),
    pairs: int = PAIRS,
) -> Case:
    """A case in one of `dtypes`, of the sizes in `pool` where there are any."""
    shape = draw(st.sampled_from(list(pool)) if pool else sizes(pairs))
    fmt = draw(st.sampled_from(list(dtypes)))
    recipe = draw(rarely(st.just("normal"), st.sampled_from(recipes(fmt)), 3))
    mask = draw(masks(max(shape.Lq, shape.Lk)))
    # Beside a mask, -inf in a bias may empty a row that then belongs to two elections.
    biases = [b for b in BIASES if b != "inf" or mask is None]
    bias = draw(rarely(st.just("none"), st.sampled_from(biases), 3))
    softcap = draw(rarely(st.none(), st.sampled_from(SOFTCAPS), 6))
    scale = None
    if recipe == "overflow":
        scale = 2.0**-14
    elif recipe not in FIXED_SCALE:
        numbers = st.one_of(st.sampled_from(SCALES), st.integers(-300, 300).map(lambda n: n / 100))
        scale = draw(rarely(st.none(), numbers, 5))
    layout = draw(rarely(st.just(LAYOUTS[0]), st.sampled_from(LAYOUTS), 3))
    form = "native"
    if mask is not None:
        flags = set(part_features(mask, "native")) - {"mask"}
        form = draw(st.sampled_from(("native", "dense"))) if flags else "dense"
    return Case(Problem(shape, mask, bias, scale, softcap), fmt, recipe, layout, form)


def recipes(fmt: DType) -> list[str]:
    """The recipes that mean something in a dtype: scores of -32768 need 24 bits, and what overflows
    before it is scaled overflows in float16 alone."""
    left = {"sunk"} if fmt.is_half else set()
    left |= set() if fmt.name == "f16" else {"overflow"}
    return [name for name in RECIPES if name not in left]
