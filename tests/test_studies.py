"""Studies: their pages and tables are what the cases, the records and the parameters say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from attention_conformance.backends import registry
from tests.rows import cell, run
from tests.studies.pairs import PAGE as PAIRS
from tests.studies.pairs import page as page_of_pairs
from tests.studies.together import page

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_written_from_the_cases() -> None:
    assert PAIRS.read_text(encoding="utf-8") == page_of_pairs(), (
        "run `python -m tests.studies.pairs`"
    )


PARAMETERS = (ROOT / "docs" / "data" / "parameters.md").read_text(encoding="utf-8")


def named(part: str) -> dict[str, set[str]]:
    """The parameters that a part of the page names, passed or with a reason, by function; "" among them
    stands for a function that is not called, with a reason."""
    passed, _, left_out = part.partition("| function | parameter |")
    rows = re.findall(r"^\| `(.+?)` \| .+? \| (.*?) \|$", passed, re.MULTILINE)
    every = {name: {*parameters.split(", ")} - {""} for name, parameters in rows}
    for name, parameters in re.findall(r"^\| `(.+?)` \| (.*?) \|", left_out, re.MULTILINE):
        every.setdefault(name, set()).update(parameters.split(", "))
    return every


def functions(name: str) -> dict[str, Callable[..., Any]]:
    """A function by its name. Of a class: the constructor, and the public methods of its module."""
    found = resolve_name(name)
    if not isinstance(found, type):
        return {name: found}
    shown = {"__init__": name, "__call__": f"{name}.__call__"}
    methods: dict[str, Callable[..., Any]] = {}
    for kind in found.__mro__:
        for own, member in vars(kind).items() if kind.__module__ == found.__module__ else ():
            member = getattr(member, "__func__", member)
            if inspect.isfunction(member) and (own[0] != "_" or own in shown):
                methods.setdefault(shown.get(own, f"{name}.{own}"), member)
    return methods


def parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function. For a function that is not written in Python the first line of its
    documentation is read."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        (shown,) = re.findall(r"\A\w+\((.*?)\) ->", str(function.__doc__).strip(), re.DOTALL)
        signature = inspect.signature(eval(f"lambda {' '.join(shown.split())}: None"))
    given = (p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)
    return [p.name for p in given if p.name not in ("self", "cls")]


PARTS = {text.partition("\n")[0]: text for text in PARAMETERS.split("\n## ")[1:]}


@pytest.mark.parametrize("backend", PARTS)
def test_each_parameter_of_a_framework_is_on_the_page(backend: str) -> None:
    if backend not in registry.installed():
        pytest.skip(f"needs {', '.join(registry.modules(backend))}")
    page, left = named(PARTS[backend]), []
    every = {n: f for name in page for n, f in functions(name).items()}
    for name, function in every.items():
        known = page.get(name, set())
        left += [name] if name not in page else []
        left += [f"{name}({p})" for p in parameters(function) if not known & {p, ""}]
    assert not left, (
        "expected each parameter in docs/data/parameters.md; pass it in a row of the adapter and name it "
        f"among those that are passed, or say why no case passes it: {', '.join(left)}"
    )


CASE = "paged/none/mha/f32/b1h1q1k{}d8"
WINDOW, SCALE = ("window",), ("scale",)


def test_a_pair_has_a_row_only_where_its_entry_does_not_follow(tmp_path: Path) -> None:
    cells = [
        cell(
            CASE.format(n), implementation, status, operator="paged", features=features, seconds=0.5
        )
        for implementation, statuses in {
            "torch:one": ("pass", "pass", "pass", "pass"),
            "torch:two": ("pass", "pass", "pass", "pass"),
            "torch:three": ("pass", "pass", "known", "unsupported"),
        }.items()
        for n, status, features in zip(
            range(1, 5),
            statuses,
            (WINDOW, SCALE, (*WINDOW, *SCALE), (*WINDOW, "softcap")),
            strict=True,
        )
    ]
    cells.append(cell(operator="packed", features=WINDOW, status="unsupported"))
    text = page([run(*cells).save(tmp_path / "records.jsonl")])
    lines = text.splitlines()
    assert '    pytest suite --backend=torch -k "packed/ or paged/" --results=torch.jsonl' in lines
    counted = lines[lines.index("## Cells by status") :]
    assert "| packed | torch:sdpa | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in counted
    assert "| paged | torch:three | 4 | 2 | 0 | 1 | 1 | 0 | 0 |" in counted
    assert lines[lines.index("## Paged") + 2 :] == [
        "| features | torch:one, torch:two | torch:three |",
        "| --- | --- | --- |",
        "| scale | right | wrong (1 of 2) |",
        "| scale + window | right | wrong (1 of 1) |",
        "| softcap | right | refused |",
        "| window | right | wrong (1 of 2) |",
    ]
