"""The house: who may import whom, read from the imports themselves; and what importing loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from suite.spec.layers import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"torch", "tensorflow", "jax", "jaxlib", "keras", "flax"}
OURS = {"suite", "backends", "references", "tests"}
ADAPTERS = {
    "_torch": {"torch"},
    "_torch_layers": {"torch"},
    "_tensorflow": {"tensorflow"},
    "_jax": {"jax", "jaxlib"},
    "_flax": {"flax", "jax"},
    "_keras": {
        "keras",
        "jax",
        "torch",
    },  # its engines differentiate; JAX must be told to keep float64
    "_keras_ops": {"keras"},
    "_keras_layers": {"keras"},
    "_numpy": set(),
}

PARTS = {
    "_torch": ["backends._torch_layers"],
    "_tensorflow": ["backends._keras_ops", "backends._keras_layers"],
    "_keras": ["backends._keras_ops", "backends._keras_layers"],
    "_jax": ["backends._flax"],
}
"""Files that an adapter is divided into; two adapters share those of Keras."""


def sources() -> list[Path]:
    return [p for top in ("suite", "backends", "references") for p in (ROOT / top).rglob("*.py")]


def imports(path: Path) -> set[str]:
    """Modules a file imports at run time, dotted; imports for type checking only are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


def room(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", sources(), ids=room)
def test_arrows(path: Path) -> None:
    name = room(path)
    found = imports(path)
    tops = {module.split(".")[0] for module in found}
    ours = {module for module in found if module.split(".")[0] in OURS}

    assert "tests" not in tops, "nothing imports tests"
    if within(name, "suite.spec"):
        assert all(within(m, "suite.spec", "suite") for m in ours), ours
        assert not any(within(m, "suite.judge", "suite.plan", "suite.report") for m in ours)
        assert tops - OURS - set(sys.stdlib_module_names) <= {"numpy"}
    elif within(name, "references"):
        assert all(within(m, "references", "suite.spec") for m in ours), ours
        assert tops - OURS - set(sys.stdlib_module_names) <= {"numpy"}
    elif within(name, "suite.judge"):
        assert all(within(m, "suite.judge", "suite.spec", "references") for m in ours), ours
        assert "pytest" not in tops
    elif within(name, "suite.records"):
        assert all(
            within(m, "suite.records", "suite.spec.vocabulary") or m == "suite" for m in ours
        )
        assert tops - OURS - set(sys.stdlib_module_names) <= {"msgspec", "packaging", "tomli_w"}
    elif within(name, "suite.report"):
        assert all(
            within(m, "suite.report", "suite.records", "suite.spec.vocabulary") for m in ours
        )
        others = {"jinja2", "matplotlib", "numpy", "pandas"}
        assert tops - OURS - set(sys.stdlib_module_names) <= others
    elif within(name, "suite.measure"):
        rooms = ("suite.measure", "suite.judge", "suite.records", "suite.spec", "backends")
        ends = ("suite", "suite.checks", "suite.plan")
        assert all(within(m, *rooms, *ends[1:]) or m in ends for m in ours), ours
        assert "pytest" not in tops
    elif within(name, "suite.benchmarks"):
        assert all(within(m, "suite.measure") for m in ours), ours
    elif within(name, "backends") and path.stem in ADAPTERS:
        parts = (
            "base",
            "clocks",
            "layers",
            "differentiation",
            "compilation",
            "compilers",
            "sources",
        )
        shared = [*(f"backends.{part}" for part in parts), "suite.spec"]
        allowed = [*shared, *PARTS.get(path.stem, ())]
        if path.stem == "_numpy":
            allowed.append("references")
        assert all(within(m, *allowed) or m == "backends" for m in ours), ours
    if path.stem in ADAPTERS:
        assert tops & FRAMEWORKS <= ADAPTERS[path.stem]
    else:
        assert not tops & FRAMEWORKS, "only an adapter imports its framework"


def test_reports_ask_columns_and_name_no_operator() -> None:
    for path in (ROOT / "suite" / "report").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not said & {"sdpa", "elect", "bad", *OPERATORS}, path
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {"extract", "extractall", "contains", "fullmatch", "match", "findall"}


def test_adapters_are_not_named_like_frameworks() -> None:
    assert not {p.stem for p in (ROOT / "backends").glob("*.py")} & FRAMEWORKS


@pytest.mark.parametrize(
    "modules",
    [
        "suite, suite.spec.catalogue, references.sdpa, references.loops, references.online",
        "suite.report, suite.report.commands, suite.report.tables, suite.report.render",
        "suite.records.cells, suite.records.speed, suite.records.findings, suite.records.machine",
        "suite.judge.oracle, suite.checks, suite.plan",
        "backends, backends.base, backends.registry",
        "suite.measure.run, suite.measure.gate, suite.measure.command, suite.measure.benchmark",
        "suite.benchmarks.bench_torch, suite.benchmarks.bench_jax, suite.benchmarks.bench_tensorflow",
    ],
)
def test_importing_loads_no_framework(modules: str) -> None:
    program = f"import sys, {modules}; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert not {name.split(".")[0] for name in out.split()} & FRAMEWORKS


def test_every_package_is_listed_and_has_an_init() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    present = {room(p.parent / "x").rpartition(".")[0] for p in sources()}
    assert listed == present
    for package in listed:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file()


def test_tolerances_live_in_one_module() -> None:
    """No rtol or atol outside the module that owns tolerance."""
    for path in sources():
        names = {
            node.arg if isinstance(node, (ast.keyword, ast.arg)) else node.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.keyword, ast.arg, ast.Name))
        }
        assert not names & {"rtol", "atol", "allclose", "isclose"}, path
