"""The house: who may import whom, read from the imports; what importing loads; what a file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from suite.front import architecture
from suite.front.architecture import PACKAGES, files, graph, imports
from suite.spec.operators import OPERATORS
from tests.wheels import tracked

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {
    "torch", "tensorflow", "jax", "jaxlib", "keras", "flax", "mlx", "onnx", "onnxruntime", "openvino",
}  # fmt: skip
OURS = {*PACKAGES, "tests"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Room:
    """What the modules of a room may import besides each other and the standard library: `ours`, modules
    of the house with all below them, where `backends` stands for its helpers alone; and `others`."""

    ours: tuple[str, ...]
    others: tuple[str, ...] = ()


ROOMS = {
    "suite": Room(()),
    "suite.spec": Room((), ("numpy",)),
    "references": Room(("suite.spec",), ("numpy",)),
    # ml_dtypes has the bfloat16 of NumPy arrays, which runtimes take.
    "backends": Room(("suite.spec",), ("numpy", "ml_dtypes")),
    "backends._numpy": Room(("backends", "suite.spec", "references"), ("numpy",)),
    # ONNX Runtime runs what torch exports.
    "backends._torch": Room(("backends", "suite.spec"), ("numpy", "torch", "onnxruntime")),
    "backends._jax": Room(("backends", "suite.spec"), ("numpy", "jax", "jaxlib", "flax")),
    # TensorFlow's own layers are those of Keras.
    "backends._tensorflow": Room(("backends", "suite.spec", "backends._keras"), ("numpy", "tensorflow")),
    # Keras on an engine uses that engine's package.
    "backends._keras": Room(
        ("backends", "suite.spec", "backends._torch", "backends._jax"), ("numpy", "keras", "torch", "jax")
    ),
    # So do libraries whose arrays are a framework's.
    "backends._transformers": Room(
        ("backends", "suite.spec", "backends._torch"), ("numpy", "transformers")
    ),
    "backends._keras_hub": Room(
        ("backends", "suite.spec", "backends._tensorflow", "backends._keras"),
        ("numpy", "keras", "keras_hub"),
    ),
    "backends._equinox": Room(("backends", "suite.spec", "backends._jax"), ("numpy", "equinox")),
    "backends._mlx": Room(("backends", "suite.spec"), ("numpy", "mlx")),
    "backends._onnx": Room(("backends", "suite.spec"), ("numpy", "onnx", "onnxruntime")),
    "backends._openvino": Room(("backends", "suite.spec"), ("numpy", "openvino")),
    "suite.judge": Room(("references", "suite.spec", "backends.protocol"), ("numpy", "scipy")),
    "suite.checks": Room(("suite", "suite.judge.check")),
    "suite.test_*": Room(
        ("suite.judge", "references", "suite.spec", "backends.protocol", "backends.memory"),
        ("numpy", "scipy"),
    ),
    "suite.records": Room(
        ("suite", "suite.spec.vocabulary"), ("msgspec", "packaging", "pyarrow", "tomli_w")
    ),
    "suite.report": Room(
        ("suite.records", "suite.spec.text", "suite.spec.vocabulary"),
        ("jinja2", "matplotlib", "numpy", "pandas", "pyarrow", "scipy"),
    ),
    "suite.front": Room(
        ("suite", "suite.measure", "suite.search", "suite.sweep", "suite.vectors",
         "suite.report", "suite.checks", "suite.judge", "suite.records", "suite.spec", "backends",
         "attention_conformance.impostors"), ("argcomplete", "matplotlib", "numpy", "pytest"),
    ),
    "suite.measure": Room(
        ("suite.front", "suite.checks", "suite.judge", "suite.records", "suite.spec", "backends"),
        ("numpy", "packaging", "scipy"),
    ),
    "suite.search": Room(
        ("suite.front", "suite.checks", "suite.judge", "suite.records", "suite.spec", "backends"),
        ("hypothesis", "numpy")),
    # What lies in files is judged as a backend whose arrays are NumPy's.
    "suite.vectors": Room(
        ("suite", "suite.front", "suite.checks", "suite.judge", "suite.records", "suite.report",
         "suite.spec", "references", "backends", "backends._numpy"),
        ("ml_dtypes", "msgspec", "numpy", "safetensors"),
    ),
    # Runs of the front and searches as tasks; Ray inside functions alone.
    "suite.sweep": Room(
        (
            "suite.front", "suite.measure.releases", "suite.search", "suite.report",
            "suite.checks", "suite.judge", "suite.records", "suite.spec", "backends",
        ),
        ("msgspec", "numpy", "ray"),
    ),
    "suite.benchmarks": Room(("suite.measure",)),
    "suite.plugin": Room(("suite.front.plugin",)),
    "suite.__main__": Room(("suite.front.commands",)),
    "attention_conformance.impostors": Room(()),
    "attention_conformance": Room(
        ("attention_conformance.impostors", "backends", "references", "suite.checks", "suite.front",
         "suite.judge", "suite.records", "suite.report", "suite.spec"), ("numpy", "pandas", "pytest"),
    ),
}  # fmt: skip
"""Every room by its name, which its modules begin with; docs/architecture.md draws them."""

LONG: dict[str, str] = {}
"""Files of more than 400 lines, each with the reason why it is one thing."""


def room_of(name: str) -> Room:
    """The room of a module: the one with the longest name that its own begins with."""
    name = "suite.test_*" if name.startswith("suite.test_") else name
    return ROOMS[max((room for room in ROOMS if within(name, room)), key=len)]


def within(module: str, *packages: str) -> bool:
    """Whether a module is one of `packages`, or below one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def may(room: Room, module: str) -> bool:
    """Whether the modules of a room may import this one of the house."""
    if room_of(module) is room:
        return True
    if module in ("suite", "backends"):
        return module in room.ours
    helper = within(module, "backends") and not module.startswith("backends._")
    ours = [name for name in room.ours if name not in ("suite", "backends")]
    return (helper and "backends" in room.ours) or within(module, *ours)


@pytest.mark.parametrize("name", files())
def test_arrows(name: str) -> None:
    room, modules = room_of(name), imports(files()[name])
    ours = {module for module in modules if module.split(".")[0] in OURS}
    tops = {module.split(".")[0] for module in modules - ours}
    assert "tests" not in {module.split(".")[0] for module in ours}, "nothing imports tests"
    assert not {module for module in ours if not may(room, module)}
    assert not tops - set(sys.stdlib_module_names) - {*room.others}


def test_the_house_has_these_arrows() -> None:
    """spec <- references, backends <- judge <- front, checks, measure, search; records <- report."""
    forbidden = {
        "suite.spec": ("references", "backends", "suite.judge", "suite.records", "suite.front"),
        "references": ("backends", "suite.judge", "suite.records", "suite.front"),
        "backends": ("suite.judge", "suite.records", "suite.front", "suite.measure"),
        "suite.judge": ("suite.front", "suite.measure", "suite.search", "suite.report"),
        "suite.records": ("suite.report", "suite.judge", "suite.front", "backends", "references"),
        "suite.report": ("suite.judge", "suite.front", "backends", "references"),
    }
    for name, modules in graph().items():
        for room, others in forbidden.items():
            if within(name, room):
                assert not {module for module in modules if within(module, *others)}, name


def test_no_module_and_no_room_imports_itself_in_a_circle() -> None:
    TopologicalSorter(graph()).prepare()
    TopologicalSorter(architecture.rooms()).prepare()


def test_imports_are_read_from_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b\nfrom suite.spec import masks, nothing\n"
        "if TYPE_CHECKING:\n    import types_alone\n"
        "def f():\n    from c import d\n    importlib.import_module('e.f')\n"
    )
    assert imports(path) == {"a.b", "suite.spec.masks", "suite.spec", "c", "e.f"}
    path.write_text("from . import sibling\n")
    with pytest.raises(ValueError, match="a relative import"):
        imports(path)


def test_what_is_imported_exists() -> None:
    """Inside functions, too, where nothing fails before they are called."""
    for name, path in files().items():
        ours = {module for module in imports(path) if module.split(".")[0] in PACKAGES}
        assert not ours - files().keys(), name


def bound(body: list[ast.stmt]) -> set[str]:
    """The names that statements of a module bind, those inside its conditions, too."""
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            names |= bound([statement for part in parts for statement in part])
        else:
            stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            names |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
    return names


def lacking(path: Path) -> set[str]:
    """The names in `__all__` of a module that it does not have. One with `__getattr__` has what that
    knows: the strings in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    listed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            strings = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
            listed |= {value for value in strings if isinstance(value, str)}
    lazy = "__getattr__" in bound(tree.body)
    said = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)} if lazy else set()
    modules = {p.stem for p in path.parent.glob("*.py")} if path.name == "__init__.py" else set()
    return listed - bound(tree.body) - said - modules


def test_what_is_listed_as_public_exists(tmp_path: Path) -> None:
    assert not {name: names for name, path in files().items() if (names := lacking(path))}
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b as c\nif c:\n    def f(): ...\nx: int = 1\n__all__ = ['c', 'f', 'gone', 'x']\n"
    )
    assert lacking(path) == {"gone"}


def test_only_a_backends_own_package_imports_a_framework() -> None:
    for name, path in files().items():
        tops = {module.split(".")[0] for module in imports(path)} & FRAMEWORKS
        assert not tops or name.startswith("backends._"), name


def test_what_is_imported_is_declared() -> None:
    declared = " ".join(
        [
            *PROJECT["project"]["dependencies"],
            *(x for extra in PROJECT["project"]["optional-dependencies"].values() for x in extra),
        ]
    )
    names = set(re.findall(r"[A-Za-z_][A-Za-z0-9_-]*", declared)) | {"tensorflow", "jaxlib"}
    names |= {name.replace("-", "_") for name in names}
    tops = {module.split(".")[0] for path in files().values() for module in imports(path)}
    assert tops - set(sys.stdlib_module_names) - OURS <= names


def test_files_are_short() -> None:
    places = [ROOT / "tests", *(ROOT / package for package in PACKAGES)]
    long = {
        str(path.relative_to(ROOT)): lines
        for place in places
        for path in place.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long.keys() == LONG.keys(), long


def test_types_are_ignored_in_few_places() -> None:
    """mypy reports what is ignored for nothing, so that the number falls by itself."""
    assert PROJECT["tool"]["mypy"]["warn_unused_ignores"]
    ignored = [path.read_text(encoding="utf-8").count("type: ignore") for path in files().values()]
    assert sum(ignored) <= 30


def test_reports_ask_columns_and_name_no_operator() -> None:
    for path in (ROOT / "suite" / "report").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not said & {"elect", "bad", *OPERATORS}, path
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {"extract", "extractall", "contains", "fullmatch", "match", "findall"}


def test_adapters_are_not_named_like_frameworks() -> None:
    assert not {path.stem for path in (ROOT / "backends").glob("*")} & FRAMEWORKS


@pytest.mark.parametrize(
    "modules",
    [
        "suite, suite.spec.catalogue, references.sdpa, references.loops, references.online",
        "suite.report, suite.report.commands, suite.report.tables, suite.report.render",
        "suite.records.cells, suite.records.speed, suite.records.findings, suite.records.machine",
        "suite.judge.oracle, suite.checks, suite.front.plan, suite.front.commands, suite.plugin",
        "backends, backends.protocol, backends.registry, backends.textbook",
        "suite.measure.run, suite.measure.gate, suite.measure.command, suite.measure.benchmark",
        "suite.search.command, suite.search.script, suite.vectors.export, suite.vectors.judge",
        "suite.sweep.command, suite.sweep.run, suite.sweep.cluster, suite.sweep.alone",
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
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert listed == {architecture.module(path.parent / "x.py")[:-2] for path in files().values()}
    for package in listed:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file()


def test_every_file_is_packed() -> None:
    """A manifest, lock or template that stays behind is missed only by those who install a wheel."""
    packed = PROJECT["tool"]["setuptools"]["package-data"]
    for path in map(ROOT.joinpath, tracked(*PACKAGES)):
        if path.suffix != ".py":
            package = next(p for p in path.parents if (p / "__init__.py").is_file())
            name = architecture.module(package / "x.py")[:-2]
            patterns = [*packed.get(name, ()), *packed.get("*", ())]
            assert any(path.relative_to(package).match(pattern) for pattern in patterns), path


def test_tolerances_live_in_one_module() -> None:
    """No rtol or atol outside the module that owns tolerance."""
    for path in files().values():
        names = {
            node.arg if isinstance(node, ast.keyword | ast.arg) else node.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.keyword | ast.arg | ast.Name)
        }
        assert not names & {"rtol", "atol", "allclose", "isclose"}, path
