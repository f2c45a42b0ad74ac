"""Problem, case and inputs: what attention is asked to compute, without any framework.

A `Problem` is the mathematics, a `Case` a named problem with a dtype and an input recipe, `Inputs`
the values drawn for a case. A case and its id determine each other: `Case.parse(case.id) == case`.

The id's grammar, one token per place:

    sdpa/MASK/HEADS/DTYPE/SIZES[/OPTION...]
    sdpa/causal/gqa4/bf16/b2h8q33k47d64
    sdpa/pad+win4.0/mha/f32/b2h3q17k23d8v12/bias.bhqk/scale-0.2/cap5/onehot/blhd/dense

Options stand in the order bias, scale, softcap, recipe, layout, form, and only where they differ
from none, default, none, normal, bhld and native.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from suite.spec.dtypes import DType, dtype
from suite.spec.masks import Causal, Index, Mask, Padding, Sizes, Window, parse_mask

BIASES = ("none", "qk", "1hqk", "b1qk", "bhqk", "inf", "alibi")
"""Additive biases: finite unit normals of a broadcast rank ("qk" is (Lq, Lk)); "inf": (B, H, Lq, Lk)
with about a third of the entries -inf and no row all -inf; "alibi": (1, H, Lq, Lk), -slope |q - k|
with slope 2^(-8 (h + 1) / H) (Press, Smith, Lewis, ICLR 2022)."""

LAYOUTS = ("bhld", "blhd", "bhdl")
"""Order of the axes in memory: (B, H, L, D), (B, L, H, D), or (B, H, D, L), where the components of a
query, key or value do not lie side by side."""

FORMS = ("native", "dense")
"""How a mask is passed: by the framework's own flags where it has them, or as a boolean array."""

RECIPES = (
    "normal", "large", "ties", "onehot", "integers", "tiny", "offset", "sunk", "overflow"
)  # fmt: skip
"""Names of the input recipes; `suite.spec.recipes` holds what they draw."""

FEATURES = {
    "mask": "boolean masks",
    "causal": "a causal mask",
    "window": "a sliding window",
    "padding": "key lengths per sample",
    "bias": "an additive bias",
    "bias-with-mask": "a bias and a mask together",
    "scale": "an explicit scale",
    "softcap": "softcap",
    "grouped-heads": "fewer key/value heads than query heads",
    "value-size": "values of another size than keys",
    "empty-batch": "a batch of size 0",
    "empty-queries": "no queries (Lq = 0)",
    "inner-stride": "components that do not lie side by side in memory",
    "strides": "operands that may lie anywhere in memory",
    "threads": "a number of threads that can be changed between calls",
    "mask-array": "masks given as arrays",
    "native-causal": "a causal flag of its own",
    "native-window": "a sliding window of its own",
    "other-shapes": "a compiled call with other lengths than its first ones",
    "gradient": "an answer that can be differentiated",
    "gradient-of-bias": "a bias that can be differentiated by",
}
"""What a case may need beyond plain attention. Masks an implementation has no flag for are passed
densely by its adapter, so that only what cannot be passed at all is lacking."""

_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
_OPTIONS = {
    "bias": r"bias\.(" + "|".join(BIASES[1:]) + ")",
    "scale": "scale" + _NUMBER,
    "softcap": "cap" + _NUMBER,
    "recipe": "(" + "|".join(RECIPES[1:]) + ")",
    "layout": "(blhd|bhdl)",
    "form": "(dense)",
}


@dataclass(frozen=True)
class Problem:
    """Scaled dot-product attention, version 1.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), H a multiple of Hkv.
    scores = scale * query key^T, then softcap * tanh(scores / softcap), then + bias, then the mask;
    weights = softmax over keys; output = weights value, (B, H, Lq, Dv).
    scale None means 1 / sqrt(D). A row without any key gives zeros.

    Raises ValueError where the sizes or options make no sense.
    """

    sizes: Sizes
    mask: Mask | None = None
    bias: str = "none"
    scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        s = self.sizes
        if min(s.B, s.H, s.Hkv, s.Lq, s.Lk, s.D, s.Dv) < 0:
            raise ValueError(f"sizes must not be negative, got {s}")
        if s.Hkv < 1 or s.H % s.Hkv:
            raise ValueError(f"H must be a multiple of Hkv, got H={s.H}, Hkv={s.Hkv}")
        if self.bias not in BIASES:
            raise ValueError(f"unknown bias {self.bias!r}; valid: {', '.join(BIASES)}")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap must be positive, got {self.softcap}")


@dataclass(frozen=True)
class Case:
    """A problem with a dtype, an input recipe, a memory layout and the form masks are passed in."""

    problem: Problem
    dtype: DType
    recipe: str = "normal"
    layout: str = "bhld"
    form: str = "native"

    kind = "value"
    operator = "sdpa"

    def __post_init__(self) -> None:
        for what, got, valid in (
            ("recipe", self.recipe, RECIPES),
            ("layout", self.layout, LAYOUTS),
            ("form", self.form, FORMS),
        ):
            if got not in valid:
                raise ValueError(f"unknown {what} {got!r}; valid: {', '.join(valid)}")

    @cached_property
    def id(self) -> str:
        """The stable name of the case."""
        p, s = self.problem, self.problem.sizes
        parts = ["sdpa", self.mask_token, s.heads, self.dtype.name, s.token]
        if p.bias != "none":
            parts.append(f"bias.{p.bias}")
        if p.scale is not None:
            parts.append(f"scale{p.scale!r}")
        if p.softcap is not None:
            parts.append(f"cap{p.softcap!r}")
        if self.recipe != "normal":
            parts.append(self.recipe)
        if self.layout != "bhld":
            parts.append(self.layout)
        if self.form != "native":
            parts.append(self.form)
        return "/".join(parts)

    @property
    def mask_token(self) -> str:
        return self.problem.mask.token if self.problem.mask else "none"

    @property
    def group(self) -> str:
        """The row of the conformance table the case is counted in."""
        if self.problem.softcap is not None:
            return "softcap"
        if self.problem.bias != "none":
            return "bias"
        return re.match(r"[a-z]+", self.mask_token)[0]  # type: ignore[index]

    @property
    def needs(self) -> tuple[str, ...]:
        """The features an implementation must have to be asked this case (see `FEATURES`)."""
        p = self.problem
        masks = [] if p.mask is None else _mask_features(p.mask, self.form)
        return _features(p.sizes, masks, p.bias != "none", p.scale, p.softcap, self.layout)

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case whose id is `text`. Raises ValueError naming the part that is wrong."""
        parts = text.split("/")
        if len(parts) < 5 or parts[0] != "sdpa":
            raise ValueError(f"not a case id: {text!r}; expected sdpa/MASK/HEADS/DTYPE/SIZES[/...]")
        _, mask, heads, dt, sizes, *options = parts
        shape = parse_sizes(heads, sizes, text)
        values = parse_options(options, _OPTIONS, text)
        problem = Problem(
            shape,
            parse_mask(mask),
            values.get("bias", "none"),
            float(values["scale"]) if "scale" in values else None,
            float(values["softcap"]) if "softcap" in values else None,
        )
        case = cls(
            problem,
            dtype(dt),
            values.get("recipe", "normal"),
            values.get("layout", "bhld"),
            values.get("form", "native"),
        )
        if case.id != text:
            raise ValueError(f"not a canonical case id: {text!r}; expected {case.id!r}")
        return case

    def describe(self) -> str:
        """The case in a few lines for people."""
        p, s = self.problem, self.problem.sizes
        dense = p.mask.dense(s).shape if p.mask else None
        lines = [
            self.id,
            f"  query   ({s.B}, {s.H}, {s.Lq}, {s.D})  {self.dtype.long_name}, laid out {self.layout}",
            f"  key     ({s.B}, {s.Hkv}, {s.Lk}, {s.D})",
            f"  value   ({s.B}, {s.Hkv}, {s.Lk}, {s.Dv})",
            f"  mask    {self.mask_token}"
            + (f", dense form {dense}, {self.form}" if dense else ""),
            f"  bias    {p.bias}",
            f"  scale   {'1/sqrt(D)' if p.scale is None else p.scale}",
            f"  softcap {'none' if p.softcap is None else p.softcap}",
            f"  recipe  {self.recipe}",
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.id


def parse_sizes(heads: str, sizes: str, text: str) -> Sizes:
    """The sizes that the tokens "gqa4" and "b1h8q33k47d64v48" of the id `text` stand for.

    Raises ValueError naming the token that is wrong.
    """
    found = re.fullmatch(r"b(\d+)h(\d+)q(\d+)k(\d+)d(\d+)(?:v(\d+))?", sizes)
    if not found:
        raise ValueError(f"bad sizes {sizes!r} in {text!r}; expected b1h8q33k47d64[v48]")
    B, H, Lq, Lk, D = (int(n) for n in found.groups()[:5])
    group = re.fullmatch(r"mha|mqa|gqa(\d+)", heads)
    if not group:
        raise ValueError(f"bad heads {heads!r} in {text!r}; expected mha, mqa or gqaN")
    size = int(group[1] or 0)
    if size and H % size:
        raise ValueError(f"{H} heads are not a multiple of {size} in {text!r}")
    Hkv = H if heads == "mha" else 1 if heads == "mqa" else H // size
    return Sizes(B, H, Hkv, Lq, Lk, D, int(found[6] or D))


def parse_options(options: Sequence[str], patterns: Mapping[str, str], text: str) -> dict[str, str]:
    """The option tokens of the id `text` by name: the first group of the pattern each one matches.

    Raises ValueError naming the option that matches none.
    """
    values: dict[str, str] = {}
    for option in options:
        for name, pattern in patterns.items():
            match = re.fullmatch(pattern, option)
            if match:
                values[name] = match[1]
                break
        else:
            raise ValueError(f"unknown option {option!r} in {text!r}")
    return values


class MaskedInputs:
    """What the mask and the bias of drawn inputs say; shared by `Inputs` and the inputs of layers."""

    sizes: Any
    seed: int
    mask: Mask | None
    mask_array: np.ndarray | None
    bias: np.ndarray | None

    @cached_property
    def dense_mask(self) -> np.ndarray | None:
        """The mask as a boolean array of its natural rank; None where there is no mask."""
        if self.mask_array is not None:
            return self.mask_array
        return self.mask.dense(self.sizes, self.seed) if self.mask else None

    @cached_property
    def attends(self) -> np.ndarray:
        """Boolean (B, H, Lq, Lk): the mask and the bias's -inf entries together."""
        s = self.sizes
        out = np.ones((s.B, s.H, s.Lq, s.Lk), bool)
        if self.dense_mask is not None:
            out &= self.dense_mask
        if self.bias is not None:
            out &= ~np.isneginf(self.bias)
        return out

    @property
    def has_empty_rows(self) -> bool:
        return bool((~self.attends.any(-1)).any())

    def with_dense(self, **changes: Any) -> Self:
        """A variation whose mask is the dense array, so that axes may be permuted freely."""
        given = {"mask_array": self.dense_mask, **changes}
        return replace(self, mask=None, form="dense", **given)  # type: ignore[type-var]

    def mask_in_order(self, axis: int, order: np.ndarray) -> np.ndarray | None:
        """The dense mask with one of its axes (-4 samples, -3 heads, -1 keys) in another order.

        An axis that the mask does not have, or has with size 1, is the same in every order.
        """
        mask = self.dense_mask
        if mask is None or mask.ndim < -axis or mask.shape[axis] == 1:
            return mask
        return np.take(mask, order, axis)


@dataclass(frozen=True, eq=False)
class Inputs(MaskedInputs):
    """The values of a case, or of a variation of it, as float64 arrays exact in `dtype`.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); `mask` symbolic, or None with
    `mask_array` a boolean array that broadcasts to (B, H, Lq, Lk), or both None; `bias` broadcasts
    likewise. `scale` None means the default.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    dtype: DType
    mask: Mask | None = None
    mask_array: np.ndarray | None = None
    bias: np.ndarray | None = None
    scale: float | None = None
    softcap: float | None = None
    layout: str = "bhld"
    form: str = "native"
    seed: int = 0
    bias_kind: str = "none"
    recipe: str = field(default="normal")

    @cached_property
    def sizes(self) -> Sizes:
        B, H, Lq, D = self.query.shape
        _, Hkv, Lk, Dv = self.value.shape
        return Sizes(B, H, Hkv, Lq, Lk, D, Dv)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features an implementation must have to be asked these inputs, as `Case.needs`."""
        masks = ["mask"] if self.mask_array is not None else []
        if self.mask is not None:
            masks += _mask_features(self.mask, self.form)
        added = self.bias is not None
        return _features(self.sizes, masks, added, self.scale, self.softcap, self.layout)

    @property
    def effective_scale(self) -> float:
        """The scale as a number: 1 / sqrt(D) where none is given; 1 where D is 0."""
        if self.scale is not None:
            return self.scale
        return 1.0 / math.sqrt(self.sizes.D) if self.sizes.D else 1.0

    @property
    def allowed(self) -> Callable[[slice], np.ndarray] | None:
        """Block of query rows -> boolean, broadcastable to (B, H, rows, Lk); None: all attend."""
        array, mask, sizes, seed = self.mask_array, self.mask, self.sizes, self.seed
        if array is not None:
            full = array.reshape((1,) * (4 - array.ndim) + array.shape)
            return lambda rows: full[:, :, rows] if full.shape[2] != 1 else full
        if mask is not None:
            return lambda rows: mask.allowed(Index.of(sizes, seed, rows))
        return None


def _features(
    sizes: Sizes,
    masks: list[str],
    bias: bool,
    scale: float | None,
    softcap: float | None,
    layout: str,
) -> tuple[str, ...]:
    asked = {
        "bias": bias,
        "bias-with-mask": bias and bool(masks),
        "scale": scale is not None,
        "softcap": softcap is not None,
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
        "empty-batch": sizes.B == 0,
        "empty-queries": sizes.Lq == 0,
        "inner-stride": layout == "bhdl",
    }
    return tuple(dict.fromkeys([*masks, *(name for name, needed in asked.items() if needed)]))


def _mask_features(mask: Mask, form: str) -> list[str]:
    """The features a mask needs in the form it is passed in, a mask array where it has several parts."""
    found = part_features(mask, form)
    return [*found, "mask"] if len(mask.parts) > 1 else found


def part_features(mask: Mask, form: str) -> list[str]:
    """The features that the parts of a mask need, each for itself, in the form they are passed in."""
    return [_mask_feature(m) if form == "native" else "mask" for m in mask.parts]


def _mask_feature(mask: Mask) -> str:
    if isinstance(mask, Causal) and not mask.bottom_right:
        return "causal"
    if isinstance(mask, Window):
        return "window"
    if isinstance(mask, Padding) and not mask.left:
        return "padding"
    return "mask"
