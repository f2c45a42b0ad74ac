"""The house: what importing loads, how its files are kept, and what the project says of itself in other
formats, the citation file and the badges. `lint-imports` holds who imports whom."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attention_conformance.backends.protocol import Backend, Declared
from attention_conformance.suite import __version__
from attention_conformance.suite.report.badge import badge_svg
from attention_conformance.suite.spec.features.feature import Feature
from attention_conformance.suite.spec.operator import Operator
from tests.processes import ROOT, python
from tests.shown import FOLDERS

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = SETTINGS["project"], SETTINGS["tool"]
FRAMEWORKS = {
    "torch", "tensorflow", "jax", "jaxlib", "keras", "flax", "mlx", "onnx", "onnxruntime", "openvino",
    "triton",
}  # fmt: skip


def test_a_run_without_failures_imports_no_fault_and_no_pandas() -> None:
    """A run of one implementation; with --pdb it judges in the process that is started here."""
    options = [
        "--backend=numpy",
        "--implementation=definition",
        "--level=smoke",
        "-k",
        "causal",
        "-p",
        "no:cacheprovider",
        "--pdb",
    ]
    late = ["attention_conformance.suite.deviations.kernels", "pandas"]
    program = (
        f"import sys, pytest; code = pytest.main(['suite/test_values.py', *{options}]); "
        f"sys.exit(int(code) or bool({set(late)} & sys.modules.keys()))"
    )
    python("-c", program, check=True)


def test_adapters_are_not_named_like_frameworks() -> None:
    assert not {path.stem for path in (ROOT / "backends").glob("*")} & FRAMEWORKS


def test_every_package_goes_into_the_wheel() -> None:
    said = TOOLS["setuptools"]["packages"]
    inits = [path for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")]
    inside = (path.parent.relative_to(ROOT).parts for path in inits)
    names = (".".join(parts) for parts in inside)
    package = "attention_conformance"
    assert sorted(said) == sorted(n if n == package else f"{package}.{n}" for n in names)


def test_files_are_short() -> None:
    paths = [path for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*.py")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert not {str(path): number for path, number in lines.items() if number > 400}


def test_pages_are_short() -> None:
    """A page is read in one sitting; pages of `docs/data` and `docs/findings` are looked up."""
    docs = ROOT / "docs"
    pages = [*docs.glob("*.md"), *(docs / "operators").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    most = dict.fromkeys(pages, 250) | {ROOT / "README.md": 80}
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in most}
    assert not {str(path): number for path, number in lines.items() if number > most[path]}


def test_what_others_build_on_is_small() -> None:
    """A newcomer reads a type of the protocol at once."""
    needed = {*vars(Backend), *Backend.__annotations__, *Backend.__abstractmethods__}
    assert len({name for name in needed if not name.startswith("_")}) <= 18
    assert len(fields(Declared)) <= 14
    assert len(fields(Operator)) <= 20
    assert len(fields(Feature)) <= 14


def test_the_citation_file_is_valid_and_says_what_the_project_says() -> None:
    """The keys that schema 1.2.0 demands, none that it does not know, and the project's own facts."""
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    required = {"authors", "cff-version", "message", "title"}
    optional = {"abstract", "date-released", "keywords", "license", "type", "version"}
    assert required <= cited.keys() <= required | optional
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert (cited["version"], cited["license"]) == (__version__, PROJECT["license"])
    (author,) = cited["authors"]
    assert author.keys() == {"name"}, "an entity, no person"
    assert author["name"].lower() in (ROOT / "LICENSE").read_text(encoding="utf-8").lower()
    assert len(set(cited["keywords"])) == len(cited["keywords"])
    assert all(isinstance(cited[key], str) for key in ("abstract", "message", "title", "version"))


def test_badges_are_true_and_made_by_the_template() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = dict(re.findall(r"!\[([^]]*)\]\((docs/badges/[^)]*)\)", readme))
    versions = [
        text.rpartition(" ")[2]
        for text in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
    ]
    texts = {f"Python {', '.join(versions)}", f"Licence {PROJECT['license']}"}
    assert badges.keys() == texts
    for text, path in badges.items():
        drawn = badge_svg(*text.split(" ", 1))
        assert (ROOT / path).read_text(encoding="utf-8") == drawn


ELSEWHERE = {"docs", "equinox", "executorch", "export", "keras-hub", "onnx", "transformers"}
"""Extras that jobs of their own install; where they are missing, tests skip."""


def imported(path: Path) -> set[str]:
    """The modules that a file imports, or skips its tests without, by their first names."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
            modules |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return {name.partition(".")[0] for name in modules}


def named(texts: Iterable[str]) -> set[str]:
    """The distributions that requirements name, those of the project's own extras included."""
    distributions = set()
    for requirement in map(Requirement, texts):
        distributions.add(canonicalize_name(requirement.name))
        for extra in requirement.extras if requirement.name == PROJECT["name"] else ():
            distributions |= named(PROJECT["optional-dependencies"][extra])
    return distributions


def undeclared(paths: Iterable[Path], declared: set[str]) -> set[str]:
    """The distributions that files import and `declared` does not name."""
    modules = set().union(*map(imported, paths)) - set(sys.stdlib_module_names)
    installed = packages_distributions()
    names = {canonicalize_name(name) for module in modules for name in installed.get(module, ())}
    return names - declared - {PROJECT["name"]}


def test_what_the_tests_need_comes_with_their_extras() -> None:
    """Else they would skip where the changes are judged, and nobody would see it."""
    extras = PROJECT["optional-dependencies"]
    ours = named([*PROJECT["dependencies"], *extras["all"], *extras["test"]])
    assert "asv" in ours, "README's full install brings what README's commands call"
    elsewhere = named(text for name in ELSEWHERE for text in extras[name])
    assert not undeclared((ROOT / "tests").glob("*.py"), ours | elsewhere)


def test_what_the_suite_imports_is_declared() -> None:
    extras = PROJECT["optional-dependencies"].values()
    names = named([*PROJECT["dependencies"], *(text for extra in extras for text in extra)])
    # TensorFlow comes as tensorflow-cpu, jaxlib with jax.
    names |= {"tensorflow", "jaxlib"}
    paths = [path for package in FOLDERS for path in (ROOT / package).rglob("*.py")]
    assert not undeclared(paths, names)
