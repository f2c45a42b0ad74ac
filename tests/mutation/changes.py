"""Changes: everything that can be changed, one thing at a time, in the text of some functions.

The text around a change stays where it is, line by line: frameworks read some of their sources again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

COMPARISONS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "is": "is not",
    "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
ARITHMETIC = {
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "&": "|", "|": "&",
}  # fmt: skip

KINDS = (
    "comparison", "arithmetic", "and-or", "number", "truth", "sign", "condition", "keyword",
    "assignment",
)  # fmt: skip
"""What is changed: an operator, a constant, the sign or truth of an operand, a condition that is turned
around, a keyword argument that is dropped, an assignment that is left out."""


@dataclass(frozen=True)
class Change:
    """One change: characters `start` to `end` of a module's text become `new`."""

    module: str
    function: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The text with the change. Raises ValueError where it is not the text that was read."""
        if text[self.start : self.end] != self.old:
            raise ValueError(f"{self.module} is not the file that the change was made for")
        return text[: self.start] + self.new + text[self.end :]


def changes(text: str, module: str, names: tuple[str, ...]) -> list[Change]:
    """Every change of the functions called `names` (see `Target`), in the order of the text."""
    places = _Places(text)
    candidates = [
        Change(module, name, text.count("\n", 0, start) + 1, kind, start, end, text[start:end], new)
        for name, function in _functions(ast.parse(text))
        if any(fnmatchcase(name, pattern) for pattern in names)
        for node in _inside(function)
        for kind, start, end, new in _changes_of(node, places)
    ]
    return sorted(
        dict.fromkeys(candidates), key=lambda change: (change.start, change.end, change.new)
    )


class _Places:
    """Where the nodes of a text begin and end, in characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [f"{line}\n" for line in text.split("\n")]
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(
            node.end_lineno, node.end_col_offset
        )

    def _at(self, line: int, offset: int) -> int:
        before = self._lines[line - 1].encode()[:offset].decode()
        return self._starts[line - 1] + len(before)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes, but for signatures without a body."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            inner = [(node.name, node)]
        elif isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef))
            inner = [(f"{node.name}.{method.name}", method) for method in methods]
        else:
            continue
        for name, function in inner:
            if not any("overload" in ast.unparse(d) for d in function.decorator_list):
                yield name, function


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """All that computes inside a node: no annotations, no texts for people, nothing that raises."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_for_people(child):
                continue
            yield child
            yield from _inside(child)


def _is_for_people(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return True
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    is_warning = isinstance(call, ast.Call) and "warn" in ast.unparse(call.func)
    return isinstance(call, ast.Constant) or is_warning


def _changes_of(node: ast.AST, places: _Places) -> Iterator[tuple[str, int, int, str]]:
    """(kind, start, end, new text) of every change of this one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], COMPARISONS, "comparison", places)
    elif isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, ARITHMETIC, "arithmetic", places)
    elif isinstance(node, ast.BoolOp):
        turned = {"and": "or", "or": "and"}
        yield from _between(node.values[0], node.values[1], turned, "and-or", places)
    elif isinstance(node, ast.Constant):
        yield from _constant(node, places)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        start, _ = places.of(node)
        yield "sign", start, start + (1 if isinstance(node.op, ast.USub) else len("not")), ""
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        start, end = places.of(node.test)
        yield "condition", start, end, f"(not ({places.text[start:end]}))"
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield _without(node, places)
    elif isinstance(node, ast.Assign | ast.AugAssign):
        start, end = places.of(node)
        yield "assignment", start, end, "pass" + "\n" * places.text.count("\n", start, end)


def _between(
    left: ast.expr, right: ast.expr, table: dict[str, str], kind: str, places: _Places
) -> Iterator[tuple[str, int, int, str]]:
    start, end = places.of(left)[1], places.of(right)[0]
    words = sorted(table, key=len, reverse=True)
    match = re.search("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" if word[0].isalpha()
                               else re.escape(word) for word in words),
                      places.text[start:end])  # fmt: skip
    if match:
        at = start + match.start()
        yield kind, at, at + len(match[0]), table[match[0]]


def _constant(node: ast.Constant, places: _Places) -> Iterator[tuple[str, int, int, str]]:
    start, end = places.of(node)
    value = node.value
    if isinstance(value, bool):
        yield "truth", start, end, str(not value)
    elif isinstance(value, int):
        yield "number", start, end, str(value + 1)
    elif isinstance(value, float):
        yield "number", start, end, repr(value + 1.0 if abs(value) < 1e3 else value / 2)


def _without(node: ast.keyword, places: _Places) -> tuple[str, int, int, str]:
    """A keyword argument and the comma beside it."""
    start, end = places.of(node)
    after = re.compile(r"\s*,").match(places.text, end)
    if after:
        end = after.end()
    else:
        before = re.search(r",\s*$", places.text[:start])
        start = before.start() if before else start
    return "keyword", start, end, "\n" * places.text.count("\n", start, end)
