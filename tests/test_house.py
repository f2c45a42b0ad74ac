"""The house: what importing loads, and how its files are kept. `lint-imports` holds who imports whom."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from attention_conformance.backends.protocol import Backend, Declared
from attention_conformance.suite.spec.features.feature import Feature
from attention_conformance.suite.spec.operator import Operator
from tests.conftest import of_other_turns
from tests.processes import python
from tests.shown import FOLDERS

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {
    "torch", "tensorflow", "jax", "jaxlib", "keras", "flax", "mlx", "onnx", "onnxruntime", "openvino",
    "triton",
}  # fmt: skip


MODULES = """
suite.spec.catalogue, references.sdpa, references.encoder, references.tape,
suite.report.commands, suite.report.frames, suite.report.render,
suite.records.cells, suite.records.speed, suite.records.findings, suite.records.machine,
suite.judge.oracle, suite.checks, suite.run.plan, suite.commands, suite.plugin, suite.deviations.kernels,
backends.protocol, backends.registry, backends.textbook,
suite.measure.run, suite.measure.gate, suite.measure.command, suite.measure.benchmark,
suite.search.command, suite.run.script, suite.vectors.export, suite.vectors.judge, suite.sweep,
suite.benchmarks.bench_torch, suite.benchmarks.bench_jax, suite.benchmarks.bench_tensorflow
"""


def test_importing_loads_no_framework() -> None:
    names = [f"attention_conformance.{name.strip()}" for name in MODULES.split(",")]
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    out = python("-c", program, check=True).stdout
    assert not {name.split(".")[0] for name in out.split()} & FRAMEWORKS


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
    with (ROOT / "pyproject.toml").open("rb") as file:
        said = tomllib.load(file)["tool"]["setuptools"]["packages"]
    inits = [path for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")]
    inside = (path.parent.relative_to(ROOT).parts for path in inits)
    names = (".".join(parts) for parts in inside)
    package = "attention_conformance"
    assert sorted(said) == sorted(n if n == package else f"{package}.{n}" for n in names)


def test_a_turn_runs_a_third_of_the_tests_marked_seldom() -> None:
    class Item:
        def __init__(self, number: int) -> None:
            self.number = number

        def get_closest_marker(self, name: str) -> bool:
            return name == "seldom" and self.number % 2 == 1

    def run(turn: int) -> set[int]:
        items: Any = [Item(number) for number in range(12)]
        left = of_other_turns(items, turn)
        assert len(left) == 4
        return {item.number for item in items if item not in left}

    runs = [run(turn) for turn in (6, 7, 8)]
    assert set.intersection(*runs) == {0, 2, 4, 6, 8, 10}
    assert set.union(*runs) == {*range(12)}


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
    names = {name for name in {*dir(Backend), *Backend.__annotations__} if not name.startswith("_")}
    assert len(names) <= 25
    assert len(fields(Declared)) <= 14
    assert len(fields(Operator)) <= 20
    assert len(fields(Feature)) <= 14
