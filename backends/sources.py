"""Calls as text: what a prepared call does, in its framework's own words, for scripts of their own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suite.spec.vocabulary import OPERANDS


@dataclass(frozen=True)
class Dialect:
    """How a script makes arrays, reads and differentiates in a framework: templates for `str.format`.

    `imports`: lines. `array`: the array of the NumPy float64 `values` in `dtype` (long name; `carrier`
    is the NumPy type that holds it); `plain`: the same for booleans and integers, or for values that
    keep their type. `transpose`: `array` with its axes in `order`, a tuple. `values`: those of `array`,
    float64. `gradients`: lines that run `source` (or `indented`, the same four spaces further in) and
    set `output` and `gradients`, those by `names` for `cotangent`. `compiled`: by compiler, the
    expression of `function` compiled, empty where it is called as it is; one that has no words is left
    out.
    """

    imports: str
    array: str
    plain: str
    values: str
    gradients: str
    transpose: str = "{array}.transpose{order}"
    compiled: Mapping[str, str] = field(default_factory=dict)


def call_source(function: str, arguments: Iterable[str], *more: str) -> str:
    """`output = function(query, key, value, scale=scale)` for arguments of these names."""
    named = [f"{name}={name}" for name in arguments if name not in OPERANDS]
    return f"output = {function}({', '.join([*OPERANDS, *named, *more])})"


def compiled_source(source: str, compiled: str, arrays: Iterable[str]) -> str:
    """The text of a call (see `PreparedCall`) with the call compiled, as a function of the arguments
    called `arrays`; `compiled` is one of a `Dialect`, and where it is empty the text is as it was."""
    if not compiled or not source:
        return source
    names = ", ".join(arrays)
    # The call stands last: a function that is written out before it may name its own output so.
    *_, call = re.finditer(r"^( *output = )(.*)$", source, flags=re.MULTILINE)
    through = compiled.format(function=f"lambda {names}: {call[2]}")
    return f"{source[: call.start()]}{call[1]}{through}({names}){source[call.end() :]}"


def import_source(function: Any, name: str) -> str:
    """Lines that bind `name` to a user's function, from its file or module; empty where it has none."""
    home = sys.modules.get(getattr(function, "__module__", ""))
    if home is None or getattr(home, name, None) is not function or not name.isidentifier():
        return ""
    if home.__name__.startswith("_judged_"):
        return f"import runpy\n{name} = runpy.run_path({str(home.__file__)!r})[{name!r}]"
    return f"from {home.__name__} import {name}"


def function_source(function: Any, name: str, arguments: Iterable[str]) -> str:
    """The call of a user's function; empty where it cannot be imported again."""
    lines = import_source(function, name)
    return f"{lines}\n{call_source(name, arguments)}" if lines else ""
