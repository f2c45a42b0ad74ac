"""The house as its imports show it: which module imports which, and a picture of its rooms.

python -m suite architecture > docs/architecture.svg
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from suite.records.machine import ROOT

PACKAGES = ("suite", "backends", "references", "attention_conformance")
"""The import packages of the house."""

Graph = Mapping[str, Collection[str]]
"""Names of modules or rooms, with those that each imports."""

ROOMS = {
    "suite.__main__": "suite.__main__",
    "suite.front.commands": "suite.__main__",
    "suite.plugin": "suite.front",
    "suite.checks": "suite.test_*",
    "attention_conformance.impostors": "impostors",
}
"""Modules that belong to another room than the package they lie in."""

MISSING = (
    "the picture is drawn by matplotlib, which is not installed: "
    'pip install "attention-conformance[plots]", or pip install matplotlib'
)


@lru_cache(maxsize=1)
def files() -> Mapping[str, Path]:
    """The files of all modules of the house, by dotted name."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {module(path): path for path in paths}


def module(path: Path) -> str:
    """The dotted name of the module in a file; a package is called what its folder is."""
    *folders, name = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(folders if name == "__init__" else [*folders, name])


def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports as it runs, dotted: at its top, inside functions, and by
    `import_module("...")`. What is imported for type checkers alone is left out.

    `from a import b` is "a.b" where that is a module of the house, else "a". Raises ValueError for a
    relative import.
    """
    modules: set[str] = set()
    for node in _at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{path}:{node.lineno}: a relative import; name the whole module")
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                modules.add(whole if whole in files() else node.module)
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            modules |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    return frozenset(modules)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below this one but what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)):
            yield child
            yield from _at_run_time(child)


@lru_cache(maxsize=1)
def graph() -> Graph:
    """The modules of the house that each of them imports."""
    return {name: imports(path) & files().keys() - {name} for name, path in files().items()}


def room(name: str) -> str:
    """The room of a module: the package below `suite` or `backends` that it lies in, else the package
    of the house."""
    if name in ROOMS or name.startswith("suite.test_"):
        return ROOMS.get(name, "suite.test_*")
    inner = ".".join(name.split(".")[:2])
    is_package = inner in files() and files()[inner].name == "__init__.py"
    return inner if is_package else inner.partition(".")[0]


def rooms() -> Graph:
    """The rooms that each room imports, without those that it imports through another one.

    Raises graphlib.CycleError where rooms import each other in a circle.
    """
    whole: dict[str, set[str]] = {}
    for name, others in graph().items():
        whole.setdefault(room(name), set()).update(map(room, others))
    # `suite` itself holds its version alone.
    direct = {name: others - {name, "suite"} for name, others in whole.items() if name != "suite"}
    beyond: dict[str, set[str]] = {}
    for name in TopologicalSorter(direct).static_order():
        beyond[name] = set().union(*(direct[o] | beyond[o] for o in direct[name]))
    return {name: others - beyond[name] for name, others in direct.items()}


def picture() -> str:
    """The rooms as SVG, with an arrow from each room to those that it imports.

    An arrow has the id "ROOM -> ROOM", so that the picture can be held against the imports. Raises
    ImportError without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path as Line
    except ImportError as error:
        raise ImportError(MISSING) from error
    house = rooms()
    chains, places = _laid_out(house)
    height = max(y for _, y in places.values())
    figure = Figure(figsize=(11, 0.95 * (height + 1)), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    for (upper, lower), chain in chains.items():
        points = [np.array(places[node]) for node in chain]
        points[0][1] -= 0.18
        points[-1][1] += 0.18
        vertices, codes = [points[0]], [Line.MOVETO]
        for start, end in itertools.pairwise(points):
            bend = (start[1] + end[1]) / 2
            vertices += [np.array([start[0], bend]), np.array([end[0], bend]), end]
            codes += [Line.CURVE4] * 3
        arrow = FancyArrowPatch(path=Line(vertices, codes), arrowstyle="-|>", mutation_scale=9)
        arrow.set(gid=f"{upper}--{lower}", color="0.45", linewidth=0.9)
        axes.add_patch(arrow)
    for name in house:
        box = {"boxstyle": "round,pad=0.45", "facecolor": _colour(name), "edgecolor": "0.3"}
        axes.text(*places[name], name, ha="center", va="center", fontsize=9, bbox=box)
    across = [x for x, _ in places.values()]
    axes.set(xlim=(min(across) - 0.7, max(across) + 0.7), ylim=(-0.5, height + 0.5))
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "architecture", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def _colour(name: str) -> str:
    return {"suite": "#e8eef7", "backends": "#f7ede0", "references": "#e9f4e6"}.get(
        name.partition(".")[0], "white"
    )


Node = str | tuple[str, str, int]
"""A room, or where the arrow between two rooms passes a row."""


def _laid_out(
    house: Graph,
) -> tuple[dict[tuple[str, str], list[Node]], dict[Node, tuple[float, float]]]:
    """The nodes that every arrow passes, and where they lie: each room a row above all that it imports,
    each row in the order of what its nodes are linked with (Sugiyama, Tagawa, Toda, 1981)."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(house).static_order():
        level[name] = 1 + max((level[other] for other in house[name]), default=-1)
    chains: dict[tuple[str, str], list[Node]] = {}
    rows: list[list[Node]] = [[] for _ in range(max(level.values()) + 1)]
    linked: dict[Node, list[Node]] = {name: [] for name in sorted(house)}
    for name in sorted(house):
        rows[level[name]].append(name)
        for other in sorted(house[name]):
            between = [(name, other, y) for y in range(level[name] - 1, level[other], -1)]
            for node in between:
                rows[node[2]].append(node)
            chain = chains[name, other] = [name, *between, other]
            for one, next_one in itertools.pairwise(chain):
                linked.setdefault(one, []).append(next_one)
                linked.setdefault(next_one, []).append(one)
    x: dict[Node, float] = {}
    for row in rows:
        x |= _spread(row, dict.fromkeys(row, 0.0))
    for _ in range(24):
        for row in (*rows, *reversed(rows)):
            wanted = {n: float(np.mean([x[o] for o in linked[n]] or [x[n]])) for n in row}
            x |= _spread(sorted(row, key=lambda n: wanted[n]), wanted)
    return chains, {node: (x[node], float(y)) for y, row in enumerate(rows) for node in row}


def _spread(row: list[Node], wanted: Mapping[Node, float]) -> dict[Node, float]:
    """Places for the nodes of a row, in this order, as near to the wanted ones as their widths allow."""
    room_for = [1.15 if isinstance(node, str) else 0.5 for node in row]
    edges = np.cumsum([0.0, *((a + b) / 2 for a, b in itertools.pairwise(room_for))])
    shift = float(np.mean([wanted[n] - e for n, e in zip(row, edges, strict=True)])) if row else 0
    return {node: float(edge) + shift for node, edge in zip(row, edges, strict=True)}


def add_architecture_parser(commands: Any) -> None:
    """Add `architecture` to the subparsers of `argparse`; sets `run`."""
    parser = commands.add_parser(
        "architecture", help="a picture of the house, drawn from its imports, as SVG"
    )
    parser.set_defaults(run=_architecture)


def _architecture(arguments: argparse.Namespace) -> int:
    try:
        print(picture(), end="")
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
