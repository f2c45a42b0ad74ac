"""How a user's function is called, as far as the names of its parameters do not tell.

Trial calls find a `Binding` (`suite.judge.fitting`), or the claims `axes` and `masks` give it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

HIDING = ("mask", "padding", "window", "causal")
"""The features for which an argument that hides keys may stand."""

ADDING = ("bias", "bias-with-mask")
"""The features for which an argument that is added to the scores may stand."""

MASK_WORDS = ("attn_mask", "causal_mask", "padding_mask")


@dataclass(frozen=True)
class Axes:
    """The axes that a function has.

    - `order`: the order with all axes, "bhld" or "blhd"
    - `lacks_batch`, `lacks_heads`: 1 if the function lacks the axis, because it takes one sample or one
      head, else 0
    - `index`: the index of an array that removes the missing axes
    - `restore`: the index of an output that inserts them again, with size 1
    """

    order: str
    lacks_batch: int = 0
    lacks_heads: int = 0
    index: tuple[Any, ...] = ()
    restore: tuple[Any, ...] = ()


ALL = slice(None)

AXES = {
    "bhld": Axes("bhld"),
    "blhd": Axes("blhd"),
    "bld": Axes("bhld", lacks_heads=1, index=(ALL, 0), restore=(ALL, None)),
    "lhd": Axes("blhd", lacks_batch=1, index=(0,), restore=(None,)),
    "hld": Axes("bhld", lacks_batch=1, index=(0,), restore=(None,)),
    "ld": Axes("bhld", lacks_batch=1, lacks_heads=1, index=(0, 0), restore=(None, None)),
}
"""The axes by the claim `axes` (`suite.spec.claims.AXES`)."""

LAYOUTS = {"HND": ("bhld", "hld"), "NHD": ("blhd", "lhd")}
"""The values of the claim `axes` that fit a layout, by the name that a layout parameter has as
default."""

NAMING = ("tensor_layout", "kv_layout")
"""Parameters for the layout."""


@dataclass(frozen=True)
class Binding:
    """How a function is called, as far as the names of its parameters do not tell. Where a field is "",
    the function is called like the framework's own attention.

    - `axes`: the axes of operands and output, one of `AXES`
    - `output_axes`: "bhld" or "blhd" if the output has another order of heads and rows than operands
    - `masks`: what a parameter for a mask is given, one of `suite.spec.claims.MASKS`
    - `returns`: the second of two returned values: "weights", "lse" or "None"
    - `lse_base`: "2" if the log-sum-exp is a logarithm to the base 2
    - `lse_axes`: "bhl" or "blh" if the log-sum-exp has another order of heads and rows than the output
    - `window`: "last" if a window counts from the last query at the last key
    - `heads`: "shapes" if grouped heads need no parameter, "equal" if they raise an error
    - `causal`: the alignment of the causal flag, for people
    """

    axes: str = ""
    output_axes: str = ""
    masks: str = ""
    returns: str = ""
    lse_base: str = ""
    lse_axes: str = ""
    window: str = ""
    heads: str = ""
    causal: str = ""

    def but(self, **changes: str) -> Binding:
        """Returns the binding with other values of some fields."""
        return replace(self, **changes)


PHRASES: Mapping[str, Callable[[str], str]] = {
    "axes": lambda axes: f"axes ({', '.join(axes.upper())})",
    "output_axes": lambda axes: f"output axes ({', '.join(axes.upper())})",
    "masks": lambda kind: f"masks {kind}",
    "returns": lambda word: f"returns (output, {word})",
    "lse_base": lambda base: f"log-sum-exp to the base {base}",
    "lse_axes": lambda axes: f"log-sum-exp ({', '.join(axes.upper())})",
    "window": lambda side: f"windows count from the {side} key",
    "heads": {"shapes": "grouped heads by their shapes", "equal": "no grouped heads"}.__getitem__,
    "causal": lambda alignment: f"causal {alignment}",
}
"""The words for a field of a binding, as functions of the field's value."""


def described(binding: Binding, names: Mapping[str, str]) -> str:
    """Returns one line that says how a function is called. `names`: the argument of each parameter, by
    the parameter's name."""
    arguments = [f"{name}={word}" for name, word in names.items() if name != word]
    values = {name: getattr(binding, name) for name in PHRASES}
    return ", ".join([*arguments, *(PHRASES[n](value) for n, value in values.items() if value)])
