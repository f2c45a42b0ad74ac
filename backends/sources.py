"""The source text of prepared calls, for scripts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from attention_conformance.suite.spec.vocabulary import OPERANDS


@dataclass(frozen=True)
class Dialect:
    """Templates for `str.format` of a framework's code in scripts.

    - `imports`: import lines
    - `array`: makes an array of the NumPy float64 `values` in `dtype` (long name; `carrier` is the NumPy
      type that holds it)
    - `plain`: makes an array of booleans, integers, or other `values` that keep their type
    - `transpose`: permutes the axes of `array` by the tuple `order`
    - `values`: reads `array` as float64
    - `gradients`: lines that run `source` (or `indented`, the same indented by four spaces) and set
      `output` and `gradients` by `names` for `cotangent`
    - `compiled`: by compiler, the expression that compiles `function`; "" calls it directly. Compilers
      that scripts do not support are left out
    """

    imports: str
    array: str
    plain: str
    values: str
    gradients: str
    transpose: str = "{array}.transpose{order}"
    compiled: Mapping[str, str] = field(default_factory=dict)


def call_source(function: str, arguments: Iterable[str], *more: str) -> str:
    """The text `output = function(query, key, value, scale=scale)` for the names of arguments."""
    named = [f"{name}={name}" for name in arguments if name not in OPERANDS]
    return f"output = {function}({', '.join([*OPERANDS, *named, *more])})"


def compiled_source(source: str, compiled: str, arrays: Iterable[str]) -> str:
    """The source of a call, compiled as a function of the arguments `arrays`. `compiled` is a template of
    `Dialect.compiled`; if it is "", the source is unchanged."""
    if not compiled or not source:
        return source
    names = ", ".join(arrays)
    # The last assignment is the call: a function defined before it may also have an `output`.
    *_, call = re.finditer(r"^( *output = )(.*)$", source, flags=re.MULTILINE)
    through = compiled.format(function=f"lambda {names}: {call[2]}")
    return f"{source[: call.start()]}{call[1]}{through}({names}){source[call.end() :]}"


JUDGED = "_judged_"
"""The beginning of the names of modules that are made of users' files."""


def home_of(path: Path) -> tuple[Path, str]:
    """The folder that a Python file's neighbours are imported from, and the name of the package that the
    file belongs to; "" for none."""
    folder, names = path.resolve().parent, []
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(names))


def import_source(function: Any, name: str) -> str:
    """Lines that import a user's function as `name`; "" if the function cannot be imported."""
    home = sys.modules.get(getattr(function, "__module__", ""))
    if home is None or getattr(home, name, None) is not function or not name.isidentifier():
        return ""
    if home.__name__.rpartition(".")[2].startswith(JUDGED):
        return _run_source(str(home.__file__), name)
    return f"from {home.__name__} import {name}"


@lru_cache(maxsize=64)
def _run_source(file: str, name: str) -> str:
    """Lines that run a user's file and take `name` from it."""
    path = Path(file).resolve()
    folder, package = home_of(path)
    run = f"path({str(path)!r})" if not package else f"module({f'{package}.{path.stem}'!r})"
    return (
        f"import runpy\nimport sys\nsys.path.insert(0, {str(folder)!r})\n"
        f"{name} = runpy.run_{run}[{name!r}]"
    )


def function_source(function: Any, name: str, arguments: Iterable[str]) -> str:
    """The source of a call of a user's function; "" if the function cannot be imported."""
    lines = import_source(function, name)
    return f"{lines}\n{call_source(name, arguments)}" if lines else ""
