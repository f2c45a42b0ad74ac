"""Names: a class's says which class it is, wherever it is met."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from suite.front.architecture import files

SAME: dict[str, str] = {
    "Question": "a question of elections, and the JSON object that it is in an index of vectors, whose "
    "schema calls it so",
}
"""Names that two classes share, each with the reason."""


def compared(name: str) -> bool:
    """Whether the classes of a module are compared with those of others: packages of frameworks spell
    the same thing, each in its framework, and asv calls benchmarks by the names of their classes."""
    in_a_framework = name.startswith("backends.") and name.count(".") > 1
    return not in_a_framework and not name.startswith("suite.benchmarks.")


def classes(path: Path) -> list[str]:
    """The names of the classes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for module, path in files().items():
        for name in classes(path) if compared(module) else ():
            homes[name].append(module)
    assert len(homes) > 200, "classes are found"
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert shared.keys() == SAME.keys(), shared
