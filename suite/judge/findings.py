"""The page of findings: what the suite found in released software, from the manifests and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suite.judge.expectations import (
    MANIFESTS,
    Expectation,
    ExpectationError,
    Finding,
    load,
    load_findings,
)
from suite.judge.records import CellRecord, Run

HEAD = """# Findings

What the suite found in released software. Each finding was reproduced without the suite: the script
below it runs in the framework alone, and its assertions hold while the deviation is there. The page is
made from the manifests in `backends/expectations` and from records:

    python -m suite findings RESULTS... > FINDINGS.md
"""


def manifests(folder: Path = MANIFESTS) -> dict[str, tuple[list[Finding], list[Expectation]]]:
    """Findings and entries by manifest: a backend's, or "keras" for what Keras does on every engine.

    Raises ExpectationError for a finding that is cited and not there, and for one name given twice.
    """
    paths = sorted(folder.glob("*.toml"))
    found = {path.stem: (load_findings(path), load(path)) for path in paths}
    names = [f.name for findings, _ in found.values() for f in findings]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ExpectationError(f"two findings are called {sorted(twice)[0]!r}")
    for _, entries in found.values():
        for entry in entries:
            if entry.finding and entry.finding not in names:
                raise ExpectationError(f"{entry.source}: cites unknown finding {entry.finding!r}")
    return found


def page(
    found: Mapping[str, tuple[Sequence[Finding], Sequence[Expectation]]], runs: Iterable[Run]
) -> str:
    """The page in Markdown: a section a finding, with the cells of `runs` that fail because of it."""
    runs = list(runs)
    versions: dict[str, str] = {}
    for run in runs:
        versions |= run.header.versions
    cells = [cell for run in runs for cell in run.cells if cell.status == "known"]
    lines = [HEAD]
    if versions:
        listed = ", ".join(f"{name} {text}" for name, text in sorted(versions.items()))
        lines.append(f"Records of {listed}.\n")
    counted = 0
    for backend, (findings, entries) in found.items():
        if findings:
            lines.append(f"## {backend}\n")
        for finding in findings:
            counted += 1
            cited = {
                name: [e for e in entries if e.finding == finding.name]
                for name, (_, entries) in found.items()
            }
            lines.append(_section(counted, finding, cited, _hit(cells, cited)))
    return "\n".join(lines)


def _hit(cells: Iterable[CellRecord], cited: Mapping[str, Sequence[Expectation]]) -> dict[str, int]:
    """How many known cells each implementation has that one of the entries speaks of."""
    counts: dict[str, int] = {}
    for cell in cells:
        entries = cited.get(cell.backend, ())
        if any(e.matches(cell.implementation, cell.check, cell.case) for e in entries):
            name = f"{cell.backend}:{cell.implementation}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _section(
    number: int,
    finding: Finding,
    cited: Mapping[str, Sequence[Expectation]],
    counts: Mapping[str, int],
) -> str:
    where = finding.seen
    entries = [(backend, e) for backend, listed in cited.items() for e in listed]
    if entries:
        checks = dict.fromkeys(c for _, e in entries for c in e.check)
        cases = dict.fromkeys(c for _, e in entries for c in e.case)
        of = ", ".join(f"{n} ({count} cells)" for n, count in counts.items())
        names = dict.fromkeys(f"{backend}:{n}" for backend, e in entries for n in e.implementation)
        checked = "every check" if "*" in checks else f"check {', '.join(checks)}"
        where = f"{of or ', '.join(names)}; {checked}; cases {', '.join(f'`{c}`' for c in cases)}"
    lines = [
        f"### {number}. {finding.title}\n",
        f"{finding.text.strip()}\n",
        f"- Upstream: {finding.issue}",
        f"- Versions: {', '.join(finding.versions)}",
        *([f"- CPU: {', '.join(finding.cpu).replace('!', 'without ')}"] if finding.cpu else []),
        f"- Seen in: {where}\n",
        "```python",
        finding.reproduction.strip(),
        "```\n",
    ]
    return "\n".join(lines)
