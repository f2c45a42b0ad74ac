"""The house: `suite.spec` alone tells operators apart, by their names or by several facts at once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from suite.front import architecture
from suite.front.architecture import files
from suite.spec import operators
from suite.spec.operator import Operator
from suite.spec.operators import OPERATORS
from tests.test_house import within


def named(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file in which something hangs on an operator's name, or on which operator it is:
    comparisons, cases of `match`, keys, and lists of several names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def names(*nodes: ast.AST | None) -> set[str]:
        """The operators that some expressions name."""
        mentions = set()
        for node in nodes:
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                mentions |= names(*node.elts)
            elif isinstance(node, ast.Dict):
                mentions |= names(*node.keys)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                mentions |= {node.value} & OPERATORS.keys()
            elif isinstance(node, ast.Name):
                mentions |= {constants.get(node.id, node.id)} & {*OPERATORS, *CONSTANTS}
            elif isinstance(node, ast.Attribute):
                mentions |= {node.attr} & CONSTANTS
        return mentions

    for node in ast.walk(tree):
        hits: set[str] = set()
        if isinstance(node, ast.Compare):
            hits = names(node.left, *node.comparators)
        elif isinstance(node, ast.MatchValue):
            hits = names(node.value)
        elif isinstance(node, ast.Dict):
            hits = names(*node.keys)
        elif isinstance(node, ast.Subscript):
            hits = names(node.slice) if "annotation" not in ast.dump(node) else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = ("get", "pop", "setdefault", "startswith", "endswith", "removeprefix", "count")
            hits = names(*node.args) if node.func.attr in asks else set()
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            hits = names(node)
            hits = hits if len(hits) > 1 else set()
        for name in sorted(hits):
            yield getattr(node, "lineno", 0), name


CONSTANTS = {
    name
    for path in Path(operators.__file__).parent.glob("*.py")
    for name, value in vars(sys.modules[architecture.module(path)]).items()
    if isinstance(value, Operator)
}
"""What the operators are called in Python: SDPA, MULTI_HEAD, ..."""

KNOWS_NAMES = {
    "suite.records.schema1": "cells of the first schema kept the names of checks that layers had then",
}
"""Modules outside `suite.spec` that compare an operator's name, with the reason."""


def test_nothing_hangs_on_the_name_of_an_operator() -> None:
    """An operator is a thing that everything else asks: `suite.spec` alone knows which ones there are."""
    hits = {
        f"{name}:{line} {operator}"
        for name, path in files().items()
        if not within(name, "suite.spec") and name not in KNOWS_NAMES
        for line, operator in named(path)
    }
    assert not hits
    in_spec = {
        f"{name}:{line} {operator}"
        for name, path in files().items()
        if within(name, "suite.spec") and not within(name, "suite.spec.operators")
        for line, operator in named(path)
    }
    assert not in_spec
    assert all(list(named(files()[name])) for name in KNOWS_NAMES), "an entry that is not needed"


def combined(path: Path) -> Iterator[int]:
    """The lines of a file in which several facts of an operator, true or false each, are put together: of
    few operators, such a condition is a comparison of names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BoolOp):
            facts = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} & FACTS
            if len(facts) > 1:
                yield node.lineno


FACTS = {
    "takes_masks", *(field.name for field in fields(Operator) if field.type in (bool, "bool")),
}  # fmt: skip
"""What is true or false of an operator."""


def test_no_operator_is_told_by_a_combination_of_facts(tmp_path: Path) -> None:
    """What is true of one operator alone is a fact with a name (`suite.spec.operator`)."""
    assert not [name for name, path in files().items() if list(combined(path))]
    path = tmp_path / "module.py"
    for line in (
        "x = o.takes_masks and not o.is_layer",
        "x = case.operator.is_layer or o.has_keys",
        "x = o.is_layer and (y or not o.has_keys)",
    ):
        path.write_text(line)
        assert list(combined(path)), line
    path.write_text("x = o.is_layer and o.probe")
    assert not list(combined(path))


def test_names_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    for line in (
        "x = operator == 'sdpa'",
        "x = operator in ('dot', 'other')",
        "x = operator in {'dot': 1}",
        "x = operator is MULTI_HEAD",
        "x = case.operator is not spec.MULTI_HEAD",
        "x = {'layer-norm': 1}",
        "x = {SDPA: 1}",
        "x = OPERATORS['sdpa']",
        "x = TABLE.get('sdpa')",
        "x = name.startswith('masked')",
        "x = ['sdpa', 'multi-head']",
        "match x:\n    case 'sdpa':\n        pass",
        "DEFAULT = 'sdpa'\nx = operator == DEFAULT",
    ):
        path.write_text(line)
        assert list(named(path)), line
    for line in ("operator = SDPA", "name = 'sdpa'", "x = ['sdpa', 'eager']", "x = op(kind='dot')"):
        path.write_text(line)
        assert not list(named(path)), line
