"""Findings: every reproduction shows what it says, in the framework alone, and the page holds them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from attention_conformance.backends import registry
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.expectations import ExpectationError
from attention_conformance.suite.records.findings import (
    SEVERITIES,
    STATES,
    Finding,
    load_findings,
    manifests,
    page,
)
from attention_conformance.suite.records.machine import cpu_is
from tests.records_by_hand import cell, run

ROOT = Path(__file__).resolve().parents[1]
FOUND = {backend: findings for backend, (findings, _) in manifests().items()}


def holds(finding: Finding) -> bool:
    """Whether the installed versions, and the CPU, are those that the finding speaks of."""
    if not cpu_is(finding.cpu):
        return False
    for text in finding.versions:
        requirement = Requirement(text)
        try:
            installed = version(requirement.name).split("+")[0]
        except PackageNotFoundError:
            if requirement.name != "tensorflow":
                return False
            installed = version("tensorflow-cpu").split("+")[0]
        if not requirement.specifier.contains(installed, prereleases=True):
            return False
    return True


@pytest.mark.parametrize("backend", FOUND)
def test_reproductions_hold(backend: str) -> None:
    """All of a backend's scripts in one process, each in a namespace of its own, and with lines that can
    be read, as Triton reads those of kernels."""
    modules = registry.modules(backend) or ("keras", "tensorflow")
    if not all(importlib.util.find_spec(m) for m in modules):
        pytest.skip(f"needs {', '.join(modules)}")
    mine = [f for f in FOUND[backend] if not f.crashes and holds(f)]
    assert mine or not FOUND[backend]
    texts = {f.name: f.reproduction for f in mine}
    program = f"import linecache\nfor name, text in {texts!r}.items():\n" + (
        "    linecache.cache[name] = len(text), None, text.splitlines(True), name\n"
        "    exec(compile(text, name, 'exec'), {}); print('#', name)\n"
    )
    # Workers are given one thread; a script is to find what a person finds who runs it.
    free = {n: v for n, v in os.environ.items() if not ("NUM_" in n and "THREADS" in n)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=free)
    shown = [line[2:] for line in done.stdout.splitlines() if line.startswith("# ")]
    assert shown == [f.name for f in mine], done.stderr[-2000:]


def test_reproductions_do_not_know_the_suite() -> None:
    for findings in FOUND.values():
        for finding in findings:
            for line in finding.reproduction.splitlines():
                assert not line.startswith(("import suite", "from suite", "from backends"))
            assert finding.crashes or "assert" in finding.reproduction


def test_the_page_names_every_finding_and_counts_its_cells() -> None:
    contents = manifests()
    entry = next(e for e in contents["torch"][1] if e.finding == "rank-3-key")
    known = cell("bad/key-rank-3/f32", status="known", check="bad_problem", kind=entry.kind)
    text = page(contents, [run(known)])
    for findings in FOUND.values():
        for finding in findings:
            assert finding.title in text
    assert "torch:sdpa (1 cell)" in text


def test_findings_are_counted_by_severity_and_state() -> None:
    rows = [line.strip("| ").split(" | ") for line in page(manifests(), []).splitlines()
            if line.startswith("| ")]  # fmt: skip
    states, counts = rows[0][1:], {row[0].partition(":")[0]: row[1:] for row in rows[2:]}
    assert (tuple(counts), tuple(states)) == (tuple(SEVERITIES), (*STATES, "all"))
    for severity, numbers in counts.items():
        mine = [f.state for findings in FOUND.values() for f in findings if f.severity == severity]
        assert numbers == [*(str(mine.count(state)) for state in STATES), str(len(mine))]
    assert sum(int(numbers[-1]) for numbers in counts.values()) == sum(map(len, FOUND.values()))


def test_the_page_of_this_checkout_is_made_from_its_manifests() -> None:
    """Apart from what runs add: cells, and versions."""
    written = (ROOT / "FINDINGS.md").read_text(encoding="utf-8")
    made = page(manifests(), [])
    lines = {line for line in made.splitlines() if not line.startswith("- Seen in: ")}
    assert lines - {*written.splitlines()} == set()


def test_findings_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "torch.toml"
    whole = (
        '[[finding]]\nname = "x"\ntitle = "t"\nseverity = "wrong"\ntext = "t"\nissue = "https://x.y"\n'
        'versions = ["torch>=2"]\nreproduction = "r"\n'
    )
    states = {"": "not looked up", 'upstream = "fixed"\n': "fixed"}
    for line, state in states.items():
        path.write_text(whole + line)
        assert [finding.state for finding in load_findings(path)] == [state]
    none = whole.replace("https://x.y", "none found: by design")
    path.write_text(none)
    assert [finding.state for finding in load_findings(path)] == ["by design"]
    path.write_text(none + 'upstream = "open"\n')
    with pytest.raises(ExpectationError, match="a report that was not found has no state"):
        load_findings(path)
    path.write_text(whole.replace("wrong", "dreadful"))
    with pytest.raises(ExpectationError, match="Invalid enum value 'dreadful'"):
        load_findings(path)
    path.write_text('[[finding]]\nname = "x"\n')
    with pytest.raises(ExpectationError, match=r"finding 1: .*missing required field `title`"):
        load_findings(path)
    path.write_text(
        '[[expect]]\nimplementation = ["a"]\ncheck = ["*"]\ncase = ["*"]\nkind = "raised"\n'
        'message = "m"\ncause = "c"\nissue = "none found"\nversions = ["torch>=2"]\nfinding = "y"\n'
    )
    with pytest.raises(ExpectationError, match="cites unknown finding 'y'"):
        manifests(tmp_path)


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings"]) == 0
    assert capsys.readouterr().out.startswith("# Findings")
