"""The page of findings: what the suite found in released software, from the manifests and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suite.judge.expectations import MANIFESTS, Expectation, Finding, load, load_findings
from suite.judge.records import CellRecord, Run

HEAD = """# Findings

What the suite found in released software. Each finding was reproduced without the suite: the script
below it runs in the framework alone, and its assertions hold while the deviation is there. The page is
made from the manifests in `backends/expectations` and from records:

    python -m suite findings RESULTS... > FINDINGS.md
"""


def manifests(folder: Path = MANIFESTS) -> dict[str, tuple[list[Finding], list[Expectation]]]:
    """Findings and entries by backend. Raises ExpectationError."""
    paths = sorted(folder.glob("*.toml"))
    return {path.stem: (load_findings(path), load(path)) for path in paths}


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
            cited = [e for e in entries if e.finding == finding.name]
            lines.append(_section(counted, finding, cited, _hit(cells, backend, cited)))
    return "\n".join(lines)


def _hit(cells: Iterable[CellRecord], backend: str, cited: Sequence[Expectation]) -> dict[str, int]:
    """How many known cells each implementation has that one of the entries speaks of."""
    counts: dict[str, int] = {}
    for cell in cells:
        if cell.backend == backend and any(
            e.matches(cell.implementation, cell.check, cell.case) for e in cited
        ):
            counts[cell.implementation] = counts.get(cell.implementation, 0) + 1
    return counts


def _section(
    number: int, finding: Finding, cited: Sequence[Expectation], counts: Mapping[str, int]
) -> str:
    where = finding.seen
    if cited:
        checks = dict.fromkeys(c for e in cited for c in e.check)
        cases = dict.fromkeys(c for e in cited for c in e.case)
        of = ", ".join(f"{n} ({count} cells)" for n, count in counts.items())
        names = dict.fromkeys(name for e in cited for name in e.implementation)
        checked = "every check" if "*" in checks else f"check {', '.join(checks)}"
        where = f"{of or ', '.join(names)}; {checked}; cases {', '.join(f'`{c}`' for c in cases)}"
    lines = [
        f"### {number}. {finding.title}\n",
        f"{finding.text.strip()}\n",
        f"- Upstream: {finding.issue}",
        f"- Versions: {', '.join(finding.versions)}",
        f"- Seen in: {where}\n",
        "```python",
        finding.reproduction.strip(),
        "```\n",
    ]
    return "\n".join(lines)
