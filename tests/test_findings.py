"""Findings: every script shows the deviation in the framework alone, and the pages hold them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement

from attention_conformance.backends import registry
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.expectations import ExpectationError
from attention_conformance.suite.records.findings import (
    SCRIPTS,
    SEVERITIES,
    Finding,
    installed_version,
    load_findings,
    manifests,
    pages,
    report,
    reports,
    run_script,
)
from attention_conformance.suite.records.machine import cpu_has_flags

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "findings"
FOUND = {backend: findings for backend, (findings, _) in manifests().items()}


def holds(finding: Finding) -> bool:
    """Whether the installed versions are those that the finding speaks of."""
    for text in finding.versions:
        requirement = Requirement(text)
        installed = installed_version(requirement.name).split("+")[0]
        if not installed or not requirement.specifier.contains(installed, prereleases=True):
            return False
    return True


def shows(finding: Finding) -> bool:
    """Whether a script that may end its process does so, or shows the deviation, or does not apply.
    Memory that is written beyond its end does not end every run."""
    outputs = (run_script(finding) for _ in range(3))
    return any(deviates or text.endswith("not applicable here") for text, deviates in outputs)


@pytest.mark.seldom
@pytest.mark.parametrize("backend", FOUND)
def test_reproductions_hold(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a backend's scripts run in one process, each in its own namespace, and those that may end
    their process in processes of their own. Triton reads the lines of kernels."""
    modules = registry.modules(backend) or ("keras", "tensorflow")
    if not all(importlib.util.find_spec(m) for m in modules):
        pytest.skip(f"needs {', '.join(modules)}")
    held = [f for f in FOUND[backend] if holds(f)]
    mine = [f for f in held if not f.crashes]
    assert mine or not FOUND[backend]
    texts = {f.name: f.reproduction for f in mine}
    program = (
        "import contextlib, io, linecache\n"
        f"for name, text in {texts!r}.items():\n"
        "    linecache.cache[name] = len(text), None, text.splitlines(True), name\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as shown:\n"
        "        exec(compile(text, name, 'exec'), {})\n"
        "    print('#', name, [line.split(' ')[0] for line in shown.getvalue().splitlines()])\n"
    )
    # Workers are given one thread; a script is to find what a person finds who runs it.
    for name in [name for name in os.environ if "NUM_" in name and "THREADS" in name]:
        monkeypatch.delenv(name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    shown = [line for line in done.stdout.splitlines() if line.startswith("# ")]
    wanted = [
        f"# {f.name} {['expected', 'got', 'DEVIATES' if cpu_has_flags(f.cpu) else 'not']}"
        for f in mine
    ]
    assert shown == wanted, done.stderr[-2000:]
    whole = [f.name for f in held if f.crashes and not shows(f)]
    assert not whole, f"no deviation any more: {whole}"


def test_scripts_are_those_of_findings_and_do_not_know_the_suite() -> None:
    findings = {finding.name: finding for listed in FOUND.values() for finding in listed}
    assert sorted(findings) == sorted(path.stem for path in SCRIPTS.iterdir())
    for finding in findings.values():
        assert not re.search(
            r"^(import|from) (attention_conf|suite|backends)", finding.reproduction
        )
        verdicts = {"DEVIATES", "fixed"} - ({"DEVIATES"} if finding.crashes else set())
        if finding.cpu or finding.device:
            verdicts.add("not applicable here")
        assert all(f'"{verdict}"' in finding.reproduction for verdict in verdicts), finding.name


def test_the_index_links_every_finding_once_and_the_gravest_first() -> None:
    index = pages(manifests())["index"]
    front, _, rest = index.partition("## By design")
    assert index.splitlines()[0] == "# Findings"
    findings = {f.name: f for listed in FOUND.values() for f in listed}
    for f in findings.values():
        link, place = f"[{f.name}]({f.owner}.md#{f.name})", rest if f.asks_nothing else front
        assert index.count(link) == place.count(link) == 1
    for part in (front, rest):
        rows = [findings[name] for name in re.findall(r"^\| \[([^]]+)\]", part, re.MULTILINE)]
        severities = [list(SEVERITIES).index(f.severity) for f in rows]
        assert severities == sorted(severities)
        for severity in SEVERITIES:
            fixed = [f.state == "fixed" for f in rows if f.severity == severity]
            assert fixed == sorted(fixed)


def test_the_pages_of_this_checkout_are_made_from_its_manifests() -> None:
    written = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert written == pages(manifests()), "run `python -m suite findings --output=docs/findings`"


def test_a_report_has_the_script_and_what_it_prints(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("attention_conformance.suite.records.findings.SCRIPTS", tmp_path)
    finding = next(f for f in FOUND["torch"] if f.name == "rank-3-key")
    for verdict, lines in {"DEVIATES": ["expected 1", "got 2", "DEVIATES"], "fixed": []}.items():
        script = f'print("expected 1")\nprint("got 2")\nprint("{verdict}")'
        (tmp_path / f"{finding.name}.py").write_text(script)
        text = report(finding)
        assert [line for line in text.splitlines() if line in lines] == lines
        assert (script in text, finding.title in text) == (bool(lines), bool(lines))
    assert re.match(r"No report of rank-3-key: no deviation with torch \S+ on this machine\.", text)
    missing = replace(finding, versions=("torch>=2", "no-such-framework>=1"))
    assert report(missing) == "No report of rank-3-key: no-such-framework is not installed.\n"


def test_a_real_finding_is_reported_with_the_installed_version() -> None:
    finding = next(f for f in FOUND["torch"] if f.name == "flash-causal-scale")
    text = report(finding)
    assert f"Versions: torch {version('torch')}\n" in text
    assert [line for line in text.splitlines() if line in ("DEVIATES", "fixed")] == ["DEVIATES"]
    assert all(part in text for part in (finding.title, finding.hits, finding.workaround))


def test_findings_without_a_known_report_are_reported(monkeypatch: Any) -> None:
    monkeypatch.setattr("attention_conformance.suite.records.findings.report", lambda f: f.title)
    wrong = next(f for f in FOUND["torch"] if f.name == "flash-causal-scale")
    link, narrow = "https://x.y", replace(wrong, name="narrow", severity="imprecise")
    others = [
        replace(wrong, name="looked", issue=link, upstream="open"),
        replace(wrong, name="unlooked", issue=link),
    ]
    assert [*reports({"torch": ([wrong, narrow, *others], [])})] == [wrong.name, "unlooked"]


def test_findings_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "torch.toml"
    whole = (
        '[[finding]]\nname = "x"\ntitle = "t"\nseverity = "wrong"\ntext = "t"\nissue = "https://x.y"\n'
        'versions = ["torch>=2"]\nhits = "h"\nworkaround = "none known"\n'
    )
    states = {"": "not looked up", 'upstream = "fixed"\n': "fixed"}
    for line, state in states.items():
        path.write_text(whole + line)
        assert [finding.state for finding in load_findings(path)] == [state]
    for field in ('hits = "h"\n', 'workaround = "none known"\n'):
        path.write_text(whole.replace(field, ""))
        with pytest.raises(
            ExpectationError, match="'wrong' needs `hits`, who is hit, and `workaround`"
        ):
            load_findings(path)
        path.write_text(whole.replace(field, "").replace("wrong", "refused"))
        assert load_findings(path)
    none = whole.replace("https://x.y", "none found: by design").replace('hits = "h"\n', "")
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


def test_the_command_prints_the_pages_or_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["findings"]) == 0
    assert capsys.readouterr().out == "\n".join(pages(manifests()).values())
    assert main(["findings", f"--output={tmp_path / 'new'}"]) == 0
    assert {path.stem for path in (tmp_path / "new").iterdir()} == set(pages(manifests()))
