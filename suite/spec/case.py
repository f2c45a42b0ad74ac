"""Cases: problems with a dtype and an input recipe, each with one stable id.

A case and its id determine each other: `Case.parse(case.id) == case`. Grammar of ids, one token per
place:

    OPERATOR/MASK/HEADS/DTYPE/SIZES[/WIDTHS][/OPTION...]
    sdpa/causal/gqa4/bf16/b2h8q33k47d64
    sdpa/pad+win4.0/mha/f32/b2h3q17k23d8v12/bias.bhqk/scale-0.2/cap5.0/onehot/blhd/dense
    multi-head/causal+pad/mha/f32/b2h3q7k9d4/e12.10.14.12/bias.qk/nobias/self/average

- WIDTHS are the features of query, key, value and output of a layer. The SIZES of a layer are those of
  its attention: d is the size of a projected query (the units of additive attention), v the size of a
  projected value.
- OPTIONS follow the operator's order, then recipe, axis order and form. Default values are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from attention_conformance.suite.spec.dtypes import CODES, DType, dtype
from attention_conformance.suite.spec.ids import PLACES
from attention_conformance.suite.spec.masks import Mask, parse_mask, part_features
from attention_conformance.suite.spec.operator import LETTERS, Axes, Operator, Option, choice
from attention_conformance.suite.spec.recipes import RECIPES, checked_power_of_4
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import AXIS_ORDERS, FORMS, VARIED_FORMS

_COMMON_OPTIONS = (
    choice("recipe", RECIPES),
    choice("axis_order", AXIS_ORDERS),
    choice("form", FORMS),
)


@dataclass(frozen=True)
class Widths:
    """Features of query, key, value and output of a layer."""

    query: int
    key: int
    value: int
    output: int

    @property
    def token(self) -> str:
        """The widths in a case id."""
        return f"e{self.query}.{self.key}.{self.value}.{self.output}"


@dataclass(frozen=True)
class Case:
    """One problem of one operator, with a dtype and an input recipe.

    - `options`: (name, value) of each option whose value is not the default, in the operator's order.
    - `form`: how the mask is passed; "raw" (unchanged) for malformed problems only.
    - `axis_order`: memory layout of the operands.
    - `recipe`: how values are drawn.

    Raises ValueError if the operator cannot have this case.
    """

    operator: Operator
    sizes: Sizes
    dtype: DType
    mask: Mask | None = None
    widths: Widths | None = None
    options: tuple[tuple[str, Any], ...] = ()
    recipe: str = "normal"
    axis_order: str = "bhld"
    form: str = "native"

    def __post_init__(self) -> None:
        for name, value in self.options:
            _check_option(self.operator, name, value)
        if self.operator.is_layer != (self.widths is not None):
            raise ValueError(f"{self.operator}: only layers have widths")
        for field, value, valid_values in (
            ("recipe", self.recipe, self.operator.recipes),
            ("axis order", self.axis_order, self.operator.array_kinds.axis_orders),
            ("form", self.form, (*FORMS, *VARIED_FORMS)),
        ):
            if value not in valid_values:
                raise ValueError(
                    f"{self.operator} has no {field} {value!r}; valid: {', '.join(valid_values)}"
                )
        s = self.sizes
        if min(s.B, s.H, s.Hkv, s.Lq, s.Lk, s.D, s.Dv) < 0:
            raise ValueError(f"sizes must not be negative, got {s}")
        if s.H if not s.Hkv else s.H % s.Hkv:
            raise ValueError(f"H must be a multiple of Hkv, got H={s.H}, Hkv={s.Hkv}")
        for tie in self.ties:
            sizes = {LETTERS[x]: self.letters[x] for x in tie if x != "1"}
            if len(set(sizes.values()) | ({1} if "1" in tie else set())) > 1:
                text = ", ".join(f"{name}: {size}" for name, size in sizes.items())
                size = "the size 1" if "1" in tie else "one size"
                raise ValueError(f"{self.operator}: this case needs {size}, got {text}")
        squeezed_axis = self.operator.squeezed_axis
        if (
            self.option("squeezed")
            and self.option("self_attention")
            and squeezed_axis not in self.axes["key"]
        ):
            raise ValueError(
                f"{self.operator}: with one tensor as query, key and value, keep {LETTERS[squeezed_axis]}"
            )
        self.operator.validate(self)
        if self.recipe == "level":
            checked_power_of_4(self.sizes.D + self.letters.get("e", 0))

    @classmethod
    def of(
        cls, operator: Operator, sizes: Sizes, dtype: DType, mask: Mask | None = None,
        widths: Widths | None = None, **options: Any,
    ) -> Case:  # fmt: skip
        """Returns the case with these options, recipe, axis order and form, by name. Raises ValueError
        for an unknown option."""
        fields = {n: options.pop(n) for n in ("recipe", "axis_order", "form") if n in options}
        return cls(operator, sizes, dtype, mask, widths, _non_default(operator, options), **fields)

    def with_options(self, **options: Any) -> Case:
        """Returns the case with other values of some options. Raises ValueError for an unknown option."""
        return replace(self, options=_non_default(self.operator, dict(self.options) | options))

    def without(self, features: Collection[str]) -> Case:
        """Returns a simpler case that needs fewer of the `features`.

        Without "grouped-heads" it has as many key heads as query heads, without "value-size" values of
        the keys' size. An option gets its default value if the case then needs fewer of the features.
        """
        equal_heads, equal_sizes = (name in features for name in ("grouped-heads", "value-size"))
        sizes = replace(
            self.sizes,
            Hkv=self.sizes.H if equal_heads else self.sizes.Hkv,
            Dv=self.sizes.D if equal_sizes else self.sizes.Dv,
        )
        case = self if self.operator.is_layer else replace(self, sizes=sizes)
        defaults = {option.name: option.default for option in self.operator.options}
        for name, _ in self.options:
            try:
                simpler = case.with_options(**{name: defaults[name]})
            except ValueError:  # some options, such as packed segments, have no valid default
                continue
            if set(case.needs) & {*features} > set(simpler.needs) & {*features}:
                case = simpler
        return case

    def option(self, name: str) -> Any:
        """Returns the value of an option, or None if the operator has no such option."""
        return self._values.get(name)

    @cached_property
    def _values(self) -> dict[str, Any]:
        """The value of every option of the operator, by name."""
        return {o.name: o.default for o in self.operator.options} | dict(self.options)

    @property
    def ties(self) -> tuple[str, ...]:
        """Axes of equal size in this case (see `Operator.all_ties`)."""
        return self.operator.all_ties(self._values)

    @cached_property
    def id(self) -> str:
        """The stable name of the case."""
        s = self.sizes
        parts = [self.operator.name, self.mask_token, s.heads, self.dtype.name, s.token]
        parts += [self.widths.token] if self.widths else []
        for option in self.operator.options:
            value = self.option(option.name)
            if value != option.default:
                parts.append(option.write(value))
        for option in _COMMON_OPTIONS:
            value = getattr(self, option.name)
            if value != option.default:
                parts.append(option.write(value))
        return "/".join(parts)

    @property
    def mask_token(self) -> str:
        """The mask in the id."""
        return self.mask.token if self.mask else "none"

    @cached_property
    def axes(self) -> Axes:
        """Axis letters of each array, by array name."""
        return self.operator.axes(self)

    @cached_property
    def letters(self) -> dict[str, int]:
        """The size of each axis, by letter."""
        sizes, w = self.sizes.letters, self.widths
        if w is not None:
            sizes |= zip("xyzo", (w.query, w.key, w.value, w.output), strict=True)
        return {**sizes, **self.operator.array_kinds.letters(self)}

    def dtype_of(self, name: str) -> DType:
        """Returns the dtype of the array or output `name` in a call."""
        kinds = self.operator.array_kinds
        if name in kinds.codes:
            return CODES[self.option("codes")]
        return self.dtype.widened if name in kinds.wide else self.dtype

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the case by name: sizes from B to Dv, widths, heads, mask, options, recipe, axis
        order and form. Values are numbers, texts, booleans, or None for an option without a value."""
        widths = {} if self.widths is None else vars(self.widths)
        return {
            **vars(self.sizes),
            **{f"{name}_width": width for name, width in widths.items()},
            "heads": self.sizes.heads,
            "mask": self.mask_token,
            **{option.name: self._fact(option) for option in self.operator.options},
            **{option.name: getattr(self, option.name) for option in _COMMON_OPTIONS},
        }

    def _fact(self, option: Option) -> Any:
        """Returns the value of an option; for a tuple its token in the id."""
        value = self.option(option.name)
        return option.write(value) if isinstance(value, tuple) else value

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The features that an implementation needs for this case (see `FEATURES`)."""
        names = {*self.axes, *(["bias"] if (self.option("bias") or "none") != "none" else [])}
        return features(self, names, self.sizes, self.widths)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Returns the case with the id `text`. Raises ValueError that names the wrong part."""
        case = cls.read(text)
        if case.id != text:
            raise ValueError(f"not a canonical case id: {text!r}; expected {case.id!r}")
        return case

    @classmethod
    def read(cls, text: str) -> Case:
        """Returns the case with the id `text`, whose options may have any order. Raises ValueError for a
        text that is no id."""
        from attention_conformance.suite.spec.operators import (
            OPERATORS,  # operators import this module
        )

        name, *parts = text.split("/")
        operator = OPERATORS.get(name)
        if operator is None:
            raise ValueError(
                f"unknown operator {name!r} in {text!r}; valid: {', '.join(OPERATORS)}"
            )
        places = PLACES[1:] if operator.is_layer else PLACES[1:-1]
        if len(parts) < len(places):
            raise ValueError(f"not a case id: {text!r}; expected {name}/{'/'.join(places)}[/...]")
        mask, heads, dt, sizes = parts[:4]
        widths = parse_widths(parts[4], text) if operator.is_layer else None
        values: dict[str, Any] = {}
        for token in parts[len(places) :]:
            option, value = _parse_option(operator, token)
            values[option.name] = value
        return cls.of(
            operator, parse_sizes(heads, sizes), dtype(dt), parse_mask(mask), widths, **values
        )

    def describe(self) -> str:
        """Returns a description of the case in a few lines."""
        sizes = self.letters
        dense = self.mask.dense(self.sizes).shape if self.mask else None
        lines = [self.id, f"  {self.operator.text}", f"  dtype   {self.dtype.long_name}"]
        for name, axes in self.axes.items():
            shape = ", ".join(str(sizes[letter]) for letter in axes)
            lines.append(f"  {name:15} ({shape})  {axes}")
        for name, axes in self.operator.outputs(self).items():
            shape = ", ".join(str(sizes[letter]) for letter in axes)
            lines.append(f"  returns {name:7} ({shape})  {axes}")
        lines.append(
            f"  mask    {self.mask_token}" + (f", dense form {dense}, {self.form}" if dense else "")
        )
        for option in self.operator.options:
            lines.append(f"  {option.name:7} {self.option(option.name)}")
        lines += [f"  recipe  {self.recipe}", f"  memory  {self.axis_order}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.id


def _non_default(operator: Operator, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Returns (name, value) of the options that differ from their defaults, in the operator's order.
    Raises ValueError for an unknown option."""
    defaults = {option.name: option.default for option in operator.options}
    if unknown_names := sorted(set(values) - set(defaults)):
        raise ValueError(
            f"{operator} has no option {unknown_names[0]!r}; valid: {', '.join(defaults) or 'none'}"
        )
    return tuple((n, values[n]) for n in defaults if n in values and values[n] != defaults[n])


def features(
    case: Case,
    arrays: Collection[str],
    sizes: Sizes,
    widths: Widths | None,
    mask_array: bool = False,
) -> tuple[str, ...]:
    """Returns the words of the features that a call needs. The call is for a case or a variation of it:
    `arrays` (names), `sizes` and `widths` are those of the call. `mask_array`: True if its mask is an
    array.
    """
    names = ["mask"] if mask_array else []
    if case.mask is not None:
        names += part_features(case.mask, case.form)
        if len(case.mask.parts) > 1 and case.operator.is_default:
            names.append("mask")
    needed = {"bias": "bias" in arrays, "bias-with-mask": "bias" in arrays and bool(names)}
    needed |= case.operator.needs(case, arrays, sizes, widths)
    return tuple(dict.fromkeys([*names, *(name for name, need in needed.items() if need)]))


@cache  # thousands of ids share a few hundred tokens
def parse_sizes(heads: str, sizes: str) -> Sizes:
    """Returns the sizes in the tokens "gqa4" (`heads`) and "b1h8q33k47d64v48" (`sizes`) of an id.

    Raises ValueError that names the wrong token.
    """
    match = re.fullmatch(r"b(\d+)h(\d+)q(\d+)k(\d+)d(\d+)(?:v(\d+))?", sizes)
    if not match:
        raise ValueError(f"bad sizes {sizes!r}; expected b1h8q33k47d64[v48]")
    B, H, Lq, Lk, D = (int(n) for n in match.groups()[:5])
    group = re.fullmatch(r"mha|mqa|gqa(\d+)", heads)
    if not group or group[1] == "0":
        raise ValueError(f"bad heads {heads!r}; expected mha, mqa or gqaN")
    size = int(group[1] or 0)
    if size and H % size:
        raise ValueError(f"{H} heads are not a multiple of {size}: {heads}/{sizes}")
    Hkv = H if heads == "mha" else 1 if heads == "mqa" else H // size
    return Sizes(B, H, Hkv, Lq, Lk, D, int(match[6] or D))


def parse_widths(token: str, text: str) -> Widths:
    """Returns the widths in the token "e12.10.14.12" of the id `text`. Raises ValueError for another
    token."""
    match = re.fullmatch(r"e(\d+)\.(\d+)\.(\d+)\.(\d+)", token)
    if not match:
        raise ValueError(f"bad widths {token!r} in {text!r}; expected e12.10.14.12")
    return Widths(*map(int, match.groups()))


@cache  # thousands of ids share a few hundred tokens
def _parse_option(operator: Operator, token: str) -> tuple[Option, Any]:
    """Returns the option that has this token in an id, and its value. It is an option of the operator or
    one that all cases have. Raises ValueError for an unknown token or a value beyond the option's
    limits."""
    for option in (*operator.options, *_COMMON_OPTIONS):
        if match := re.fullmatch(option.pattern, token):
            value = option.read(match[1])
            if option.limits and not option.limits[0] <= value <= option.limits[1]:
                least, most = option.limits
                raise ValueError(
                    f"{option.name} must be between {least:g} and {most:g}, got {token!r}"
                )
            return option, value
    raise ValueError(f"unknown option {token!r} of {operator}")


@lru_cache(maxsize=None, typed=True)  # True is no number
def _check_option(operator: Operator, name: str, value: Any) -> None:
    """Raises ValueError if an operator has no option `name`, or the option cannot have this value."""
    option = operator.option(name)
    if option is None:
        valid = ", ".join(option.name for option in operator.options)
        raise ValueError(f"{operator} has no option {name!r}; valid: {valid or 'none'}")
    match = re.fullmatch(option.pattern, option.write(value))
    if match is None or option.read(match[1]) != value:
        raise ValueError(f"{operator} has no {name} {value!r}; expected {option.pattern}")
