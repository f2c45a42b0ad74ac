"""The page docs/data/parameters.md: the public parameters of frameworks that no case passes, and why.

    python -m tests.studies.parameters torch jax       writes the parts of these backends anew

A subject is a framework's function, class or cache that implementations call (`SUBJECTS`). Its signature
says which parameters and methods there are. The program calls the implementations with the cases of
a level and on their paths, and notes each parameter that has another value than its default. The reason
why no case passes one of the others stands in `REASONS`.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache, partial, wraps
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FrameType
from typing import Any
from unittest import mock

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.vocabulary import LEVELS
from tests.studies.subjects import REASONS, SUBJECTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "parameters.md"

TEXT = """\
# Parameters

After reading this page you know which public parameters and methods of a framework's attention the suite
passes, and why it leaves out the others.

    python -m tests.studies.parameters torch jax tf

A parameter is passed if a case of the level, or of the check `paths` at `standard`, gives it another
value than its default, in float32. A number that is written out counts, too. A method is passed if it is
called.
"""

CALLS = {"__init__": "", "__call__": ".__call__"}
"""The special methods that are public, by what they add to the name of their class."""

Passed = dict[str, set[str]]
"""The parameters that are passed, by function."""

CALLED = "the call"
"""Stands among the parameters of a function for the call itself."""


def functions(subject: str) -> dict[str, Callable[..., Any]]:
    """The functions of a subject by name: the function itself, or the constructor and public methods that
    the module of the class defines."""
    found = resolve_name(subject)
    if not isinstance(found, type):
        return {subject: found}
    methods: dict[str, Callable[..., Any]] = {}
    for kind in found.__mro__:
        for name, member in vars(kind).items() if kind.__module__ == found.__module__ else ():
            member = getattr(member, "__func__", member)
            if inspect.isfunction(member) and (name[0] != "_" or name in CALLS):
                methods.setdefault(subject + CALLS.get(name, f".{name}"), member)
    return methods


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function's parameters by name. For a function that is not written in Python the
    first line of its documentation is read."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        (shown,) = re.findall(r"\A\w+\((.*?)\) ->", str(function.__doc__).strip(), re.DOTALL)
        signature = inspect.signature(eval(f"lambda {' '.join(shown.split())}: None"))
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    return {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}


@contextmanager
def watched(subjects: Iterable[str], passed: Passed) -> Iterator[None]:
    """Note the names of the parameters that are passed to the functions of subjects."""
    known: dict[CodeType, tuple[str, Mapping[str, Any]]] = {}

    def note(name: str, own: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        passed[name] |= {
            CALLED,
            *(n for n in own.keys() & values.keys() if values[n] is not own[n]),
        }

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in known:
            note(*known[frame.f_code], frame.f_locals)

    with ExitStack() as changes:
        for name, function in (item for s in subjects for item in functions(s).items()):
            passed.setdefault(name, set())
            code = getattr(inspect.unwrap(function), "__code__", None)
            own = defaults(function)
            if code is None:
                changes.enter_context(mock.patch(name, noted(function, partial(note, name, own))))
            else:
                known[code] = name, own
        sys.setprofile(called)
        changes.callback(sys.setprofile, None)
        yield


def noted(function: Callable[..., Any], note: Callable[[Mapping[str, Any]], None]) -> Any:
    """A function without Python code that tells what it is called with."""
    names = [*defaults(function)]

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        note(dict(zip(names, arguments, strict=False)) | named)
        return function(*arguments, **named)

    return call


@cache
def asked_cases(operator: Operator, level: str) -> dict[Case, bool]:
    """The cases of a level in float32 and those of the check `paths` at standard, the smallest first, and
    whether all paths are asked."""
    every = {case: False for check in all_checks().values() for case in check.cases(level)}
    every |= dict.fromkeys(all_checks()["paths"].cases("standard"), True)
    mine = {
        case: paths
        for case, paths in every.items()
        if isinstance(case, Case) and case.operator is operator and case.dtype.name == "f32"
    }
    return dict(sorted(mine.items(), key=lambda item: item[0].sizes.Lq * item[0].sizes.Lk))


def ask(implementation: Implementation, level: str) -> None:
    """Call the implementation with one supported case for every set of needed features, and with its
    paths. Errors are judged elsewhere. JAX' calls are traced, and not compiled."""
    traced = implementation.backend.name == "jax"
    make = resolve_name("jax:eval_shape") if traced else lambda call: call()
    asked = set()
    for case, paths in asked_cases(implementation.operator, level).items():
        options = frozenset(name for name, value in case.options if value)
        needs = frozenset(case.needs), options
        if implementation.unsupported(case) is not None or (needs in asked and not paths):
            continue
        asked.add(needs)
        inputs = draw(case)
        with suppress(Exception):
            make(implementation.prepare(inputs))
            for call in implementation.paths(inputs).values() if paths else ():
                with suppress(Exception):
                    make(call)


def passed_by(backend: str, level: str) -> Passed:
    """The parameters that implementations of a backend pass to the functions of their subjects."""
    passed: Passed = {}
    for one in registry.implementations(registry.load(backend)):
        if subjects := of_implementation(backend, one.name):
            print(one.name, file=sys.stderr)
            with watched(subjects, passed):
                ask(one, level)
    return passed


def of_implementation(backend: str, name: str) -> list[str]:
    """The subjects of an implementation."""
    return [s for s, names in SUBJECTS[backend].items() if any(fnmatchcase(name, n) for n in names)]


def reason(function: str, parameter: str = "") -> str:
    """The reason why no case passes a parameter or calls a function; "" if there is none."""
    name = f"{function}:{parameter}" if parameter else function
    return next((why for pattern, why in REASONS.items() if fnmatchcase(name, pattern)), "")


def unpassed(function: str, names: Iterable[str], passed: set[str]) -> list[str]:
    """The parameters that are not passed; [""] for a function that is not called."""
    return [n for n in names if n not in passed] if CALLED in passed else [""]


def part(backend: str, passed: Passed, level: str) -> str:
    """The part of the page about a backend."""
    lines = [
        f"## {backend}",
        "",
        f"With the cases of `{level}`.",
        "",
        "| function | implementations | passed |",
        "| --- | --- | --- |",
    ]
    why = ["", "| function | parameter | why no case passes it |", "| --- | --- | --- |"]
    for subject, implementations in SUBJECTS[backend].items():
        for name, function in functions(subject).items():
            own = defaults(function)
            shown = [n for n in own if n in passed[name]]
            if CALLED in passed[name]:
                lines.append(f"| `{name}` | {', '.join(implementations)} | {', '.join(shown)} |")
            reasons: dict[str, list[str]] = {}
            for left in unpassed(name, own, passed[name]):
                reasons.setdefault(reason(name, left), []).append(left)
            why += [f"| `{name}` | {', '.join(left)} | {text} |" for text, left in reasons.items()]
    return "\n".join([*lines, *why, ""])


def parts(page: str) -> dict[str, str]:
    """The parts of a page by backend."""
    return {text.partition("\n")[0]: f"## {text}" for text in page.split("\n## ")[1:]}


def recorded(page: str) -> dict[str, set[str]]:
    """The parameters that a page says are passed, by function."""
    tables = "".join(text.partition("| function | parameter |")[0] for text in parts(page).values())
    rows = re.findall(r"^\| `(.+?)` \| .+? \| (.*?) \|$", tables, re.MULTILINE)
    return {name: {CALLED, *shown.split(", ")} for name, shown in rows}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.parameters")
    parser.add_argument("backends", nargs="+", choices=SUBJECTS, metavar="BACKEND")
    parser.add_argument("--level", choices=LEVELS, default="standard")
    given = parser.parse_args(words)
    limit_threads(1)
    now = {b: part(b, passed_by(b, given.level), given.level) for b in given.backends}
    now = parts(PAGE.read_text(encoding="utf-8")) | now
    ordered = [now[backend].strip() for backend in SUBJECTS if backend in now]
    PAGE.write_text("\n\n".join([TEXT.strip(), *ordered]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
