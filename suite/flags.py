"""Flags: the command-line form of a command's options, declared by the field of each option."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from reprlib import repr as brief
from typing import Any, ClassVar, Self

LARGEST = 10**18
"""The largest number that an option takes; it fits into 64 bits."""


def whole_number(text: str) -> int:
    """Returns the whole number in the text of an option. Raises ArgumentTypeError."""
    return _bounded(int, "a whole number", text)


def number(text: str) -> float:
    """Returns the number in the text of an option. Raises ArgumentTypeError."""
    return _bounded(float, "a number", text)


def non_empty(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a converter like `kind` that raises ArgumentTypeError for "", the value of an unset shell
    variable."""

    @wraps(kind)
    def convert(text: str) -> Any:
        if not text:
            raise argparse.ArgumentTypeError("expected a value, got none; leave the option out")
        return kind(text)

    return convert


def _bounded(kind: Callable[[str], Any], what: str, text: str) -> Any:
    """Returns the number in a text, at most `LARGEST` in magnitude. Raises ArgumentTypeError, whose
    message calls the number `what`."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise argparse.ArgumentTypeError(f"expected {what} of at most 18 digits, got {brief(text)}")
    return value


@dataclass(frozen=True)
class Flag:
    """The command-line form of an option.

    - `many`: the option may be repeated; `kind` converts its text
    - `several`: it also takes several values at once
    - `valid`: all valid texts, if they can be listed. `Options.check` checks them; if `checked`, the
      parser does.
    - `for_rerun`: the option belongs into a command that judges one cell of the run again
    - `for_function`: the option is about a --function
    - `switch`: the option has no value; if its default is True, its name is --no-NAME
    - `short`: another name, as -v
    - `nargs`: for an argument without a name, such as a file: how many values, "1", "*" or "+"
    """

    help: str
    metavar: str | None = None
    default: Any = ""
    many: bool = False
    several: bool = False
    kind: Callable[[str], Any] = str
    switch: bool = False
    valid: tuple[str, ...] = ()
    checked: bool = False
    required: bool = False
    for_rerun: bool = True
    for_function: bool = False
    short: str = ""
    nargs: str = ""

    @property
    def initial(self) -> Any:
        """The value if the option is not given."""
        if self.switch:
            return self.default is True
        return () if self.many or self.nargs in ("*", "+") else self.default

    @property
    def arguments(self) -> dict[str, Any]:
        """The keywords for `add_argument` and for pytest's `addoption`. The help ends with the default,
        unless it mentions the default already."""
        if self.switch and self.initial:
            return {"action": argparse.BooleanOptionalAction, "default": True, "help": self.help}
        if self.switch:
            return {"action": "store_true", "help": self.help}
        common: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        if self.nargs:
            common |= {} if self.nargs == "1" else {"nargs": self.nargs}
            return common | {"type": self.kind}
        common |= {"choices": self.valid} if self.checked else {}
        common |= {"required": True} if self.required else {}
        if self.many:
            several = {"action": "extend", "nargs": "+"} if self.several else {"action": "append"}
            return common | several | {"default": [], "type": non_empty(self.kind)}
        if self.default not in ("", None) and "default" not in self.help:
            number = isinstance(self.default, float)
            common["help"] += (
                f" (default {self.default:g})" if number else f" (default {self.default})"
            )
        # argparse would convert the default "", too: None stands for it.
        return common | {
            "default": None if self.default == "" else self.default,
            "type": non_empty(self.kind),
        }


def option(help: str, *details: Any, **named_details: Any) -> Any:
    """Returns a dataclass field for a class of options. The arguments are the fields of its `Flag`."""
    flag = Flag(help, *details, **named_details)
    return field(default=flag.initial, metadata={"flag": flag})


def flags(options: type[CommandOptions]) -> dict[str, Flag]:
    """Returns the flags of a class of options by name, without those in `fixed`."""
    return {
        dashed(f.name): f.metadata["flag"] for f in fields(options) if f.name not in options.fixed
    }


@dataclass(frozen=True)
class CommandOptions:
    """The options of a command, as plain data. A field's metadata has its flag (`option`, `shared`)."""

    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that keep their defaults: the command has no flag for them."""

    @classmethod
    def from_lookup(cls, lookup: Callable[[str], Any]) -> Self:
        """Returns options whose fields have the values `lookup(name)`. A field has its default if the
        value is None."""
        values: dict[str, Any] = {f.name: lookup(f.name) for f in fields(cls)}
        known: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if v is not None
        }
        return cls(**known)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Returns the options of a parsed command line."""
        return cls.from_lookup(lambda name: getattr(arguments, name, None))

    @classmethod
    def declare(cls, add: Callable[..., Any]) -> None:
        """Declare the flags with `add`, the `add_argument` of a parser."""
        for name, flag in flags(cls).items():
            names = [name] if flag.nargs else [*filter(None, [flag.short]), f"--{name}"]
            add(*names, **flag.arguments)

    def command_line(self, every: bool = False) -> list[str]:
        """Returns the words of a command line for the options that are not initial. Without `every` only
        those that belong into a command that judges one cell again (`Flag.for_rerun`)."""
        repeated, switches, values = [], [], []
        for name, flag in flags(type(self)).items():
            value = self._value(name)
            if flag.nargs or not (flag.for_rerun or every) or value == flag.initial:
                continue
            if flag.many:
                repeated += [f"--{name}={item}" for item in value]
            elif flag.switch:
                switches.append(f"--no-{name}" if flag.initial else f"--{name}")
            else:
                values.append(f"--{name}={value}")
        return repeated + switches + values

    def _value(self, name: str) -> Any:
        """Returns the value of an option by the name of its flag."""
        return getattr(self, name.replace("-", "_"))


def dashed(name: str) -> str:
    """Returns the command-line name of a field."""
    return name.replace("_", "-")
