"""asv's benchmarks: each names what exists, each yields a number, and their history goes on."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.protocol import UsageError
from attention_conformance.suite.measure import benchmark
from attention_conformance.suite.report.frames import asv_results

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = {
    name: importlib.import_module(f"attention_conformance.suite.benchmarks.{name}")
    for name in ("bench_torch", "bench_jax", "bench_tensorflow")
}
CASE = "sdpa/causal/mha/f32/b2h3q5k5d8"


def groups(module: Any) -> list[type]:
    """The classes of benchmarks of a module; asv passes over names with an underscore in front."""
    return [g for name, g in inspect.getmembers(module, inspect.isclass) if name[0] != "_"]


def methods(group: type) -> list[str]:
    """The names by which asv knows benchmarks."""
    return [name for name in dir(group) if name.startswith(("time_", "track_", "peakmem_"))]


def every_parameter(group: Any) -> list[list[str]]:
    """A list for every parameter; where there is one alone, asv takes the list of its values."""
    return group.params if isinstance(group.params[0], list) else [group.params]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks are looked up in this process, whose CPUs stay as they are."""
    monkeypatch.setattr(benchmark, "pin", lambda threads: None)
    benchmark.load_cell_calls.cache_clear()
    yield
    benchmark.load_cell_calls.cache_clear()


def test_no_module_of_benchmarks_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "suite" / "benchmarks").glob("bench_*.py")} == {
        *BENCHMARKS
    }


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("name", "framework"), [(n, n.removeprefix("bench_")) for n in BENCHMARKS])
def test_every_parameter_of_a_benchmark_resolves(name: str, framework: str) -> None:
    pytest.importorskip(framework)
    asked = [group for group in groups(BENCHMARKS[name]) if issubclass(group, benchmark.Benchmark)]
    assert len(asked) == 8
    for group in asked:
        for case, implementation in itertools.product(*group.params):
            call = benchmark.find_call(group.backend, case, implementation, group.direction)
            assert (call.case.id, call.implementation.name) == (case, implementation)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("backend", "case", "implementation", "error", "said"),
    [
        ("numpi", CASE, "definition", UsageError, "unknown backend 'numpi'; valid: numpy, torch"),
        (
            "numpy", CASE, "definition@jut", UsageError,
            "unknown implementation 'definition@jut' of sdpa in numpy; valid: definition",
        ),
        (
            "numpy", "additive/none/mha/f32/b2h1q3k5d4v6/e7.8.6.6", "definition", UsageError,
            "unknown implementation 'definition' of additive in numpy; valid: none",
        ),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_fails_a_benchmark(
    backend: str, case: str, implementation: str, error: type[Exception], said: str
) -> None:
    """And is no NotImplementedError, which asv takes for "no value"."""
    with pytest.raises(error, match=said) as raised:
        benchmark.find_call(backend, case, implementation, "forward")
    assert not isinstance(raised.value, NotImplementedError)


@pytest.mark.usefixtures("here")
def test_a_case_that_is_declared_unsupported_has_no_value() -> None:
    with pytest.raises(NotImplementedError, match="differentiates nothing"):
        benchmark.find_call("numpy", CASE, "definition", "backward")


def test_asv_counts_the_cells_of_every_framework_apart() -> None:
    """asv runs what is set up once for all benchmarks whose `setup_cache` stands at one place."""
    files = {inspect.getsourcefile(m.Conformance.setup_cache) for m in BENCHMARKS.values()}
    assert len(files) == len(BENCHMARKS)


def test_the_history_of_asv_goes_on() -> None:
    """asv finds results again by names, parameters and versions: none of them may change unnoticed."""
    every: dict[str, Any] = {}
    for name, module in BENCHMARKS.items():
        for group in groups(module):
            for text in methods(group):
                unit = getattr(getattr(group, text), "unit", "")
                identity = (group.param_names, group.params, group.version, unit)  # type: ignore[attr-defined]
                every[f"{name}.{group.__name__}.{text}"] = identity
    assert len(every) == 47
    assert every["bench_torch.Forward.time_forward"][1][1] == ["sdpa", "eager"]
    text = json.dumps(every, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "15cda0837d617c49"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "framework"), [(n, n.removeprefix("bench_")) for n in BENCHMARKS])
def test_every_benchmark_yields_a_number(
    name: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asv run --quick` of all that a framework has: nothing failed, and nothing is without a value."""
    pytest.importorskip(framework)
    util = pytest.importorskip("asv.util")
    # asv keeps what it knows of the machine in the home folder.
    monkeypatch.setenv("HOME", str(tmp_path))
    # It hands this one on as PYTHONPATH: an environment may hold another checkout.
    monkeypatch.setenv("ASV_PYTHONPATH", str(ROOT))
    places = {"repo": ROOT, "benchmark_dir": ROOT / "suite" / "benchmarks"} | {
        f"{kind}_dir": tmp_path / kind for kind in ("env", "results", "html")
    }
    configuration = util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    path = tmp_path / "asv.conf.json"
    path.write_text(json.dumps(configuration | {n: str(place) for n, place in places.items()}))

    def asv(*words: str) -> None:
        done = subprocess.run(["asv", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    asv("machine", "--yes")
    asv(
        "run", "--quick", "-E", "existing:same", "--set-commit-hash", head.stdout.strip(),
        "--bench", name, "--show-stderr",
    )  # fmt: skip
    results = asv_results(tmp_path / "results")
    parameters = {
        (f"{name}.{group.__name__}.{text}", ", ".join(chosen))
        for group in groups(BENCHMARKS[name])
        for text in methods(group)
        for chosen in itertools.product(*every_parameter(group))
    }
    assert {*zip(results["benchmark"], results["parameters"], strict=True)} == parameters
    assert not results["value"].isna().any(), results[results["value"].isna()]
