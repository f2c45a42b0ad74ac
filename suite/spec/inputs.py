"""Inputs: the values of a case, and how they are drawn.

The id of the case and a seed start the generator. Values are rounded to the case's dtype immediately,
so the reference and every framework get the same numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case, Widths, features
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.masks import Mask
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.recipes import draw_bias, generator, mask_seed_of
from attention_conformance.suite.spec.sizes import PairIndex, Sizes

_CASE_FIELDS = ("mask", "form", "axis_order", "recipe", "dtype")


@dataclass(frozen=True, eq=False)
class Inputs:
    """The values of a case or a variation of it: float64 arrays that are exact in the case's dtype.

    - `arrays`: the operator's arrays (see `Operator.axes`), and "bias" (optional), which broadcasts to
      (B, H, Lq, Lk).
    - Mask: `case.mask`, or if None, `mask_array` (boolean, broadcasts to (B, H, Lq, Lk), True attends).
      Both are None without a mask.
    - `sizes`: the sizes of the arrays.
    - `seed`, `dropout_seed`: seeds of symbolic masks and of dropout.
    """

    case: Case
    arrays: Mapping[str, np.ndarray]
    sizes: Sizes
    mask_array: np.ndarray | None = None
    seed: int = 0
    dropout_seed: int = 0

    def replace(self, **changes: Any) -> Inputs:
        """Returns a variation with changes by name: arrays (None removes one), `mask`, `mask_array`,
        `form`, `axis_order`, `recipe`, `dtype`, options, sizes or seeds.

        Sizes follow the arrays unless given. A new `dtype` must hold the values. Raises ValueError for
        any other name.
        """
        case, arrays = self.case, dict(self.arrays)
        option_names = {option.name for option in case.operator.options} - {"bias", *case.axes}
        own_changes = {
            f.name: changes[f.name] for f in dataclasses.fields(self) if f.name in changes
        }
        case_changes = {name: changes[name] for name in _CASE_FIELDS if name in changes}
        option_changes = {name: changes[name] for name in option_names if name in changes}
        for name in changes.keys() - {*own_changes, *case_changes, *option_changes}:
            if name not in (*case.axes, "bias"):
                raise ValueError(f"{case.operator} has no array or option {name!r}")
            if changes[name] is None:
                arrays.pop(name, None)
            else:
                arrays[name] = changes[name]
        if case_changes:
            case = dataclasses.replace(case, **case_changes)
        if option_changes:
            case = case.with_options(**option_changes)
        sizes = own_changes.pop("sizes", None) or _sizes(case, arrays)
        changed = {"case": case, "arrays": arrays, **own_changes, "sizes": sizes}
        return dataclasses.replace(self, **changed)

    @property
    def operator(self) -> Operator:
        return self.case.operator

    @property
    def dtype(self) -> DType:
        return self.case.dtype

    @property
    def mask(self) -> Mask | None:
        return self.case.mask

    @property
    def form(self) -> str:
        return self.case.form

    @property
    def axis_order(self) -> str:
        return self.case.axis_order

    @property
    def query(self) -> np.ndarray:
        return self.arrays["query"]

    @property
    def key(self) -> np.ndarray:
        return self.arrays["key"]

    @property
    def value(self) -> np.ndarray:
        return self.arrays["value"]

    @property
    def bias(self) -> np.ndarray | None:
        return self.arrays.get("bias")

    def feature(self, name: str) -> Any:
        """Returns the array or option value of a feature of `suite.spec.features`, or None."""
        return FEATURES[name].value(self.case, self.arrays)

    @property
    def features(self) -> dict[str, Any]:
        """The values of the features (`suite.spec.features`) that the inputs use, by name."""
        values = {name: self.feature(name) for name in FEATURES}
        return {n: value for n, value in values.items() if value is not None and value is not False}

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of operands (`ArrayKinds.operands`) that the inputs have; if none, of all arrays."""
        named = self.operator.array_kinds.operands
        return tuple(name for name in named if name in self.arrays) or tuple(self.arrays)

    @property
    def key_operands(self) -> tuple[str, ...]:
        """The names of operands with an axis of keys: key and value, or latents and rotary keys."""
        return tuple(name for name in self.operands if "k" in self.axes(name))

    @property
    def depth(self) -> int:
        """The number of components of a product of query and key: D, plus E for separate rotary parts."""
        return self.sizes.D + self.letters.get("e", 0)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The learned parameters of a layer by canonical name (see `suite.spec.operators.layers`);
        empty for other operators."""
        return {name: self.arrays[name] for name in self.operator.learned(self.arrays)}

    @property
    def scale(self) -> float | None:
        return self.case.option("scale")

    @property
    def self_attention(self) -> bool:
        """True if query, key and value are one tensor."""
        return bool(self.case.option("self_attention"))

    @property
    def squeezed(self) -> bool:
        """True if an axis is left out (see `Operator.squeezed_axis`)."""
        return bool(self.case.option("squeezed"))

    @property
    def returned(self) -> str:
        """The weights that are returned beside the output: "none", "average" or "head"."""
        return self.case.option("returned") or "none"

    @property
    def training(self) -> bool:
        return bool(self.case.option("training"))

    @property
    def rate(self) -> float:
        """The dropout rate."""
        return self.case.option("rate") or 0.0

    @property
    def epsilon(self) -> float:
        """The number that a norm adds to the variance."""
        return float(self.case.option("epsilon"))

    @property
    def effective_scale(self) -> float:
        """The scale as a number: the option `scale`, or 1 / sqrt(`depth`), or 1 if `depth` is 0."""
        if self.scale is not None:
            return self.scale
        return 1.0 / math.sqrt(self.depth) if self.depth else 1.0

    @property
    def default_scale(self) -> float | None:
        """The default scale as a number; None if the case has a scale of its own."""
        return self.effective_scale if self.scale is None else None

    @cached_property
    def letters(self) -> dict[str, int]:
        """The size of each axis, by letter."""
        return self.case.letters | _letters(self.case, self.arrays)

    @property
    def widths(self) -> Widths:
        """Features of query, key, value and output of a layer."""
        n = self.letters
        return Widths(n["x"], n["y"], n["z"], n[self.operator.outputs(self.case)["output"][-1]])

    def axes(self, name: str) -> str:
        """Returns the axis letters of the array `name`."""
        if name == "bias":
            return "bhqk"[4 - self.arrays[name].ndim :]
        return self.case.axes[name]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the returned outputs."""
        return tuple(self.operator.outputs(self.case))

    def output_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the output `name`, without the axis that the option `squeezed` leaves
        out."""
        axes, left_out = self.operator.outputs(self.case)[name], self.operator.squeezed_axis
        return tuple(self.letters[x] for x in axes if not (self.squeezed and x == left_out))

    def output_dtype(self, name: str) -> DType:
        """Returns the dtype of the output `name`."""
        return self.case.dtype_of(name)

    def full_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the output `name` with all its axes."""
        return tuple(self.letters[x] for x in self.operator.outputs(self.case)[name])

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that an implementation needs for these inputs, as in `Case.needs`."""
        widths = self.widths if self.operator.is_layer else None
        return features(self.case, self.arrays, self.sizes, widths, self.mask_array is not None)

    @property
    def allowed(self) -> Callable[[slice], np.ndarray] | None:
        """A function from a slice of query rows to the boolean mask of the block, broadcastable to (B,
        H, rows, Lk). None if all pairs attend."""
        array, mask, sizes, seed = self.mask_array, self.mask, self.sizes, self.seed
        if array is not None:
            full = array.reshape((1,) * (4 - array.ndim) + array.shape)
            return lambda rows: full[:, :, rows] if full.shape[2] != 1 else full
        if mask is not None:
            return lambda rows: mask.allowed(PairIndex.of(sizes, seed, rows))
        return None

    @cached_property
    def dense_mask(self) -> np.ndarray | None:
        """The mask as a boolean array of its natural rank, or None."""
        if self.mask_array is not None:
            return self.mask_array
        return self.mask.dense(self.sizes, self.seed) if self.mask else None

    @cached_property
    def attends(self) -> np.ndarray:
        """The attending pairs, boolean (B, H, Lq, Lk): neither the mask, nor a bias of -inf, nor the
        packing (`Packing.attends`) hides them."""
        s, packing = self.sizes, self.operator.packing
        out = np.ones((s.B, s.H, s.Lq, s.Lk), bool)
        if packing is not None and packing.attends is not None:
            out &= packing.attends(self.case)[:, None]
        if self.dense_mask is not None:
            out &= self.dense_mask
        if self.bias is not None:
            out &= ~np.isneginf(self.bias)
        return out

    @cached_property
    def fully_masked_rows(self) -> np.ndarray:
        """The rows without any key, boolean (B, H, Lq). In packings (`Packing.attends`) these are
        padding. Rows of heads with a finite score of a sink do not count: their output is exactly 0."""
        rows: np.ndarray = ~np.asarray(self.attends.any(-1))
        if self.operator.packing is not None:
            return rows & (self.operator.packing.attends is not None)
        for name, value in self.features.items():
            if FEATURES[name].reduction.to == "key":
                rows = rows & ~np.isfinite(value)[:, None]
        return rows if self.operator.has_keys else np.zeros_like(rows)

    @property
    def has_empty_rows(self) -> bool:
        """True if some row is fully masked."""
        return bool(self.fully_masked_rows.any())

    def rows_along(self, rows: np.ndarray, axes: str) -> np.ndarray:
        """Returns the elements of an array with the axes `axes` that belong to at least one of the
        `rows`, boolean (B, H, Lq). The result is boolean, with size 1 along axes that rows do not
        have."""
        s = self.sizes
        if "g" in axes:
            rows = np.asarray(rows.reshape(s.B, s.Hkv, s.group, s.Lq).any(2))
        dropped_axes = tuple(
            n for n, letters in enumerate(("b", "hg", "q")) if not {*letters} & {*axes}
        )
        elements = np.asarray(rows.any(dropped_axes, keepdims=True))
        axis_of = {"b": 0, "h": 1, "g": 1, "q": 2}
        row_axes = [axis_of[letter] for letter in axes if letter in axis_of]
        elements = elements.transpose(*row_axes, *(n for n in range(3) if n not in row_axes))
        shape = iter(elements.shape[: len(row_axes)])
        return elements.reshape([next(shape) if letter in axis_of else 1 for letter in axes])

    @cached_property
    def digest(self) -> bytes:
        """A digest of all values, options and settings, equal for equal inputs."""
        h = hashlib.blake2b(digest_size=16)
        case = self.case
        problem = (case.operator.name, case.dtype.name, case.mask_token, case.options, case.form)
        h.update(repr((*problem, self.sizes, self.seed, self.dropout_seed)).encode())
        for name, array in (*self.arrays.items(), ("mask", self.mask_array)):
            if array is not None:
                h.update(f"{name}{array.shape}{array.dtype}".encode() + array.tobytes())
        return h.digest()

    def with_dense(self, **changes: Any) -> Inputs:
        """Returns a variation with the mask as a dense array and with `changes` as in `replace`."""
        return self.replace(
            **{"mask_array": self.dense_mask, "mask": None, "form": "dense", **changes}
        )

    def select(self, axis: str, order: Sequence[int] | np.ndarray | slice, *axes: str) -> Inputs:
        """Returns a variation with only the indices `order` along `axis` and the further `axes`
        (letters).

        Applies to every array and the mask; broadcast axes (size 1) stay. Samples of an operator with a
        packing are selected by `Packing.choose`.
        """
        if axis == "b" and self.operator.packing is not None:
            assert not isinstance(order, slice), (
                "packed samples are selected by numbers, not by a slice"
            )
            return self.operator.packing.choose(self, order)
        letters, sizes = (axis, *axes), self.letters
        arrays = {}
        for name, array in self.arrays.items():
            for position, letter in enumerate(self.axes(name)):
                if letter in letters and array.shape[position] == sizes[letter]:
                    array = array[(slice(None),) * position + (order,)]
            arrays[name] = array
        mask = self.dense_mask
        if mask is not None:
            for position, letter in enumerate("bhqk"[4 - mask.ndim :]):
                if letter in letters and mask.shape[position] == sizes[letter] != 1:
                    mask = mask[(slice(None),) * position + (order,)]
        return self.with_dense(mask_array=mask, **arrays)


def _letters(case: Case, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Returns the size of each axis by letter, from the first array that has the axis."""
    sizes: dict[str, int] = {}
    for name, axes in case.axes.items():
        shape = arrays[name].shape if name in arrays else ()
        if len(shape) == len(axes):
            sizes = dict(zip(axes, shape, strict=True)) | sizes
    return sizes


def _sizes(case: Case, arrays: Mapping[str, np.ndarray]) -> Sizes:
    n = case.letters | _letters(case, arrays)
    return Sizes(*(n[letter] for letter in "bhgqkdv"))


@lru_cache(maxsize=8)
def draw(case: Case, seed: int = 0) -> Inputs:
    """Returns the inputs of a case: the same bytes for the same id and seed, on every machine.

    The arrays are read-only, because implementations share them.
    """
    rng, mask_seed = generator(case.id, seed), mask_seed_of(seed)
    arrays = case.operator.draw(case, rng, mask_seed)
    lowest = -float(case.dtype_of("bias").max)
    bias = draw_bias(case.option("bias") or "none", rng, case.sizes, mask_seed, lowest)
    if bias is not None:
        arrays["bias"] = bias
    integers = case.operator.array_kinds.integers
    rounded = {n: x if n in integers else round_to(x, case.dtype_of(n)) for n, x in arrays.items()}
    for array in rounded.values():
        array.flags.writeable = False
    return Inputs(case, rounded, case.sizes, seed=mask_seed)


def draw_cotangent(case: Case, seed: int = 0, name: str = "") -> np.ndarray:
    """Returns a cotangent of a case's output `output`: unit normals in its shape and the case's dtype.

    `name` seeds the generator; default: the case's id with "/cotangent".
    """
    shape = tuple(case.letters[letter] for letter in case.operator.outputs(case)["output"])
    rng = generator(name or f"{case.id}/cotangent", seed)
    return round_to(rng.standard_normal(shape), case.dtype)


def draw_tangents(case: Case, names: Sequence[str], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns tangents of the arrays `names`: unit normals in the arrays' shapes and dtypes."""
    rng = generator(f"{case.id}/tangents", seed)
    sizes, axes = case.letters, case.axes
    return {
        name: round_to(
            rng.standard_normal(tuple(sizes[x] for x in axes[name])), case.dtype_of(name)
        )
        for name in names
    }
