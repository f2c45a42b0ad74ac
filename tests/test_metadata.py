"""What the project says of itself in other formats: the citation file and the badges."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attention_conformance.suite import __version__
from attention_conformance.suite.report.badge import badge_svg
from tests.shown import FOLDERS

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_file_is_valid_and_says_what_the_project_says() -> None:
    """The keys that schema 1.2.0 demands, none that it does not know, and the project's own facts."""
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
