"""Findings: deviations of released software, read from manifests and written as a page.

A manifest (`suite.records.expectations`) holds entries

    [[finding]]
    name = "short-name"
    title = "one line: who does what wrong"
    severity = "wrong"                              # a name of SEVERITIES
    text = "what differs, and what follows from it"
    issue = "https://..." or "none found ..."
    upstream = "open"                               # the state of a linked report: a name of STATES
    versions = ["torch>=2.0"]
    seen = "election nan-in-query of torch:sdpa"    # if no expectation cites the finding
    reproduction = '''a script without this project, whose assertions hold while the fault is there'''
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.expectations import (
    MANIFESTS,
    Expectation,
    ExpectationError,
    Text,
    Texts,
    check_issue,
    load,
    tables,
    typed,
)

SEVERITIES = {
    "memory": "reads or writes memory that is not its own, or ends the process",
    "wrong": "answers with wrong numbers, and no error",
    "imprecise": "answers with larger errors than the dtype or the documentation promises",
    "refused": "raises for a valid call",
    "accepted": "answers an invalid call",
    "form": "returns another dtype, shape or meaning than documented, or than elsewhere in the library",
}
"""What findings do, the gravest first."""

STATES = {
    "open": "reported; the report is open",
    "fixed": "a change for it is merged; the versions named here lack the change",
    "closed": "the report is closed; the deviation is there",
    "by design": "its authors want it so",
    "not reported": "no report was found",
    "not looked up": "nobody looked at the report's state",
}
"""What became of findings upstream, as looked up in November 2026."""

INTRODUCTION = """\
What the suite found in released software. Each finding was reproduced without the suite: its script runs
in the framework alone, and the assertions of the script hold while the deviation is there."""

HEAD = f"""# Findings

{INTRODUCTION} The page is
made from the manifests in `backends` and from records:

    attention-conformance findings RESULTS... > FINDINGS.md
"""


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deviation of released software, with a script that shows it without this project.

    `severity`: a name of `SEVERITIES`; `upstream`: the state of the linked report, "" if unknown.
    `crashes`: the script may end its process instead of failing an assertion.
    `cpu`: flags that the CPU must have, or with "!flag" must not have, to show the deviation.
    """

    name: Text
    title: Text
    severity: Literal["memory", "wrong", "imprecise", "refused", "accepted", "form"]
    text: Text
    issue: Text
    versions: Texts
    reproduction: Text
    seen: str = ""
    crashes: bool = False
    cpu: tuple[Text, ...] = ()
    upstream: Literal["", "open", "fixed", "closed"] = ""

    @property
    def state(self) -> str:
        """What became of it upstream: a name of `STATES`."""
        if self.issue.startswith("none found: by design"):
            return "by design"
        if self.issue.startswith("none found"):
            return "not reported"
        return self.upstream or "not looked up"


def load_findings(path: Path) -> list[Finding]:
    """The findings of a manifest; an empty list if there is no file.

    Raises ExpectationError for an unknown, missing, empty or wrongly typed field, for a state of a report
    that was not found, and for a name that occurs twice.
    """
    findings = []
    for number, values in enumerate(tables(path).get("finding", []), 1):
        where = f"{path.name}, finding {number}"
        findings.append(typed(values, Finding, where))
        check_issue(findings[-1].issue, where)
        if findings[-1].upstream and findings[-1].issue.startswith("none found"):
            raise ExpectationError(f"{where}: a report that was not found has no state upstream")
    if len({finding.name for finding in findings}) < len(findings):
        raise ExpectationError(f"{path.name}: two findings have one name")
    return findings


def manifests(folder: Path = MANIFESTS) -> dict[str, tuple[list[Finding], list[Expectation]]]:
    """Findings and entries by manifest name: a backend, or "keras" for Keras on every engine.

    Raises ExpectationError if a cited finding is missing or two findings have one name.
    """
    paths = sorted(folder.rglob("*.toml"), key=lambda path: path.stem)
    contents = {path.stem: (load_findings(path), load(path)) for path in paths}
    names = [f.name for findings, _ in contents.values() for f in findings]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ExpectationError(f"two findings are called {sorted(twice)[0]!r}")
    for _, entries in contents.values():
        for entry in entries:
            if entry.finding and entry.finding not in names:
                raise ExpectationError(f"{entry.source}: cites unknown finding {entry.finding!r}")
    return contents


@cache
def title_of(name: str) -> str:
    """How messages cite a finding: by its number on the page, or by its name if the page lacks it."""
    contents = manifests()
    names = [finding.name for findings, _ in contents.values() for finding in findings]
    return f"finding {names.index(name) + 1 if name in names else name}"


def page(
    contents: Mapping[str, tuple[Sequence[Finding], Sequence[Expectation]]], runs: Iterable[Run]
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
    lines.append(by_severity(contents))
    counted = 0
    for backend, (findings, _) in contents.items():
        if findings:
            lines.append(f"## {backend}\n")
        for finding in findings:
            counted += 1
            cited = citing(finding, contents)
            lines.append(f"### {counted}. {finding.title}\n")
            lines.append(description(finding, cited, _hit(cells, cited)))
    return "\n".join(lines)


def by_severity(contents: Mapping[str, tuple[Sequence[Finding], Sequence[Expectation]]]) -> str:
    """Two tables in Markdown: findings by severity and state upstream, and the meanings of states."""
    findings = [finding for listed, _ in contents.values() for finding in listed]
    rows = [["finding", *STATES, "all"], ["---", *["---:"] * (len(STATES) + 1)]]
    for severity, text in SEVERITIES.items():
        mine = [finding.state for finding in findings if finding.severity == severity]
        rows.append([f"{severity}: {text}", *(str(mine.count(s)) for s in STATES), str(len(mine))])
    meanings = [f"- {state}: {text}" for state, text in STATES.items()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([table, "", "States upstream are those of November 2026:", "", *meanings, ""])


def citing(
    finding: Finding, contents: Mapping[str, tuple[Sequence[Finding], Sequence[Expectation]]]
) -> dict[str, list[Expectation]]:
    """The entries that cite a finding, by manifest."""
    return {
        name: [e for e in entries if e.finding == finding.name]
        for name, (_, entries) in contents.items()
    }


def _hit(cells: Iterable[CellRecord], cited: Mapping[str, Sequence[Expectation]]) -> dict[str, int]:
    """The number of cells that match one of the entries, by implementation."""
    counts: dict[str, int] = {}
    for cell in cells:
        entries = cited.get(cell.backend, ())
        if any(e.matches(cell.implementation, cell.check, cell.case) for e in entries):
            name = f"{cell.backend}:{cell.implementation}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def description(
    finding: Finding,
    cited: Mapping[str, Sequence[Expectation]],
    counts: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """A finding in Markdown, without its title.

    `cited` are the entries that cite the finding. `counts` are its known cells by implementation.
    """
    where = finding.seen
    entries = [(backend, e) for backend, listed in cited.items() for e in listed]
    if entries:
        checks = dict.fromkeys(c for _, e in entries for c in e.check)
        cases = dict.fromkeys(c for _, e in entries for c in e.case)
        of = ", ".join(f"{n} ({c} cell{'s' * (c != 1)})" for n, c in counts.items())
        names = dict.fromkeys(f"{backend}:{n}" for backend, e in entries for n in e.implementation)
        checked = "every check" if "*" in checks else f"check {', '.join(checks)}"
        where = f"{of or ', '.join(names)}; {checked}; cases {', '.join(f'`{c}`' for c in cases)}"
    lines = [
        f"{finding.text.strip()}\n",
        f"- Severity: {finding.severity}, {SEVERITIES[finding.severity]}",
        f"- Upstream: {finding.state}; {finding.issue}",
        f"- Versions: {', '.join(finding.versions)}",
        *([f"- CPU: {', '.join(finding.cpu).replace('!', 'without ')}"] if finding.cpu else []),
        f"- Seen in: {where}\n",
        "```python",
        finding.reproduction.strip(),
        "```\n",
    ]
    return "\n".join(lines)
