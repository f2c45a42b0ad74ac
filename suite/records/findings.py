"""Findings: deviations of released software, read from manifests and written as pages.

A manifest (`suite.records.expectations`) holds entries

    [[finding]]
    name = "short-name"
    title = "one line: who does what wrong"
    severity = "wrong"                              # a name of SEVERITIES
    text = "what differs, and what follows from it"
    hits = "who is hit: call, option, dtype, version or device"    # required for wrong answers, see GRAVE
    workaround = "what is right today" or "none known"             # required for wrong answers
    issue = "https://..." or "none found ..."       # by default "none found"
    upstream = "open"                               # the state of a linked report: a name of STATES
    versions = ["torch>=2.0"]
    seen = "election nan-in-query of torch:sdpa"    # if no expectation cites the finding

`docs/findings/scripts/NAME.py` shows the finding without this project. The script prints two lines, which
begin with "expected" and "got". Its last line is "DEVIATES", "fixed" or "not applicable here".
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
from packaging.requirements import Requirement

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.expectations import (
    MANIFESTS,
    NONE_FOUND,
    Expectation,
    ExpectationError,
    Text,
    Texts,
    check_issue,
    load,
    tables,
    to_struct,
)

SEVERITIES = {
    "memory": "reads or writes memory that is not its own, or ends the process",
    "wrong": "answers with wrong numbers, and no error",
    "imprecise": "answers with larger errors than the dtype or the documentation promises",
    "refused": "raises for a valid call",
    "accepted": "answers an invalid call",
    "form": "returns another dtype, shape or meaning than documented, or than elsewhere in the library",
}
"""The effects of findings, the gravest first."""

GRAVE = ("memory", "wrong", "imprecise")
"""The severities of findings that must say who is hit and a workaround, unless they are by design."""

STATES = {
    "open": "reported; the report is open",
    "fixed": "a change for it is merged; the versions named here lack the change",
    "closed": "the report is closed; the deviation is there. A remark behind the link tells them apart",
    "by design": "its authors want it so",
    "not reported": "no report was found",
    "not looked up": "nobody looked at the report's state",
}
"""States of reports upstream, as looked up in November 2026."""

SCRIPTS = MANIFESTS.parent / "docs" / "findings" / "scripts"
"""The scripts of findings, NAME.py; an installed package has none."""

KERAS = "keras"
"""The manifest of Keras on every engine."""

OWNERS = {"torch": "pytorch", "mlx-lm": "mlx"}
"""The project of each package that has another name than its project."""

Contents = Mapping[str, tuple[Sequence["Finding"], Sequence[Expectation]]]
"""Findings and entries by manifest name."""


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deviation of released software, with a script that shows it without this project.

    `severity`: a name of `SEVERITIES`; `upstream`: the state of the linked report, "" if unknown.
    `hits`: who is hit; `workaround`: what users can do; both "" if not said.
    `crashes`: the script may end its process. `device`: the only devices that show the deviation.
    `cpu`: flags that the CPU must have, or with "!flag" must not have, to show the deviation.
    """

    name: Text
    title: Text
    severity: Literal["memory", "wrong", "imprecise", "refused", "accepted", "form"]
    text: Text
    versions: Texts
    hits: str = ""
    workaround: str = ""
    issue: Text = NONE_FOUND
    seen: str = ""
    crashes: bool = False
    device: tuple[Text, ...] = ()
    cpu: tuple[Text, ...] = ()
    upstream: Literal["", "open", "fixed", "closed"] = ""

    @property
    def state(self) -> str:
        """The state of the report upstream: a name of `STATES`."""
        if self.issue.startswith("none found: by design"):
            return "by design"
        if self.issue.startswith("none found"):
            return "not reported"
        return self.upstream or "not looked up"

    @property
    def owner(self) -> str:
        """The project that the finding is about: that of the first of `versions`."""
        package = Requirement(self.versions[0]).name
        return OWNERS.get(package, package)

    @property
    def asks_nothing(self) -> bool:
        """True if the finding does not concern users whose calls are valid."""
        return self.state == "by design" or self.severity == "accepted"

    @property
    def rank(self) -> tuple[int, bool, str]:
        """The key that sorts findings, the worst first: by severity; findings that nobody has to mend
        last within a severity; then by name."""
        return (
            list(SEVERITIES).index(self.severity),
            self.state in ("fixed", "by design"),
            self.name,
        )

    @property
    def reproduction(self) -> str:
        """The script's text; a comment with its path, if the package is installed without scripts."""
        path = SCRIPTS / f"{self.name}.py"
        if not path.is_file():
            return f"# docs/findings/scripts/{self.name}.py of the repository"
        return path.read_text(encoding="utf-8").strip()

    @property
    def platforms(self) -> str:
        """The devices and CPUs that show the deviation; "" for all."""
        flags = [f"CPU {flag.replace('!', 'without ')}" for flag in self.cpu]
        return ", ".join([*self.device, *flags])


def load_findings(path: Path) -> list[Finding]:
    """Returns the findings of a manifest; an empty list if there is no file.

    Raises ExpectationError for an unknown, missing, empty or wrongly typed field, for a state of a report
    that was not found, for a grave finding without `hits` or `workaround`, and for a name that occurs
    twice.
    """
    findings = []
    for number, values in enumerate(tables(path).get("finding", []), 1):
        where = f"{path.name}, finding {number}"
        finding = to_struct(values, Finding, where)
        check_issue(finding.issue, where)
        if finding.upstream and finding.issue.startswith("none found"):
            raise ExpectationError(f"{where}: a report that was not found has no state upstream")
        complete = finding.hits and finding.workaround
        if finding.severity in GRAVE and finding.state != "by design" and not complete:
            raise ExpectationError(
                f"{where}: the severity {finding.severity!r} needs `hits`, who is hit, and `workaround`, "
                "what users can do or 'none known'"
            )
        findings.append(finding)
    if len({finding.name for finding in findings}) < len(findings):
        raise ExpectationError(f"{path.name}: two findings have one name")
    return findings


def manifests(folder: Path = MANIFESTS) -> dict[str, tuple[list[Finding], list[Expectation]]]:
    """Returns findings and entries by manifest name: a backend, or "keras" for Keras on every engine.

    Raises ExpectationError if a cited finding is missing or two findings have one name.
    """
    paths = sorted(folder.rglob("*.toml"), key=lambda path: path.stem)
    contents = {path.stem: (load_findings(path), load(path)) for path in paths}
    names = [f.name for findings, _ in contents.values() for f in findings]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ExpectationError(f"two findings are called {sorted(duplicates)[0]!r}")
    for _, entries in contents.values():
        for entry in entries:
            if entry.finding and entry.finding not in names:
                raise ExpectationError(f"{entry.source}: cites unknown finding {entry.finding!r}")
    return contents


def find_fulfilled(
    contents: Contents, backend: str, implementation: str, check: str, case: str, message: str
) -> Expectation | None:
    """Returns the manifest entry by which a cell is `known`: the entry matches the cell, and the cell's
    message contains its cause. None without such an entry."""
    for name in (backend, KERAS):
        for entry in contents.get(name, ((), ()))[1]:
            if entry.cause in message and entry.matches(implementation, check, case):
                return entry
    return None


def pages(contents: Contents, runs: Iterable[Run] = ()) -> dict[str, str]:
    """Returns pages in Markdown by name: "index", and a page for each owner of findings.

    A page shows the cells of `runs` that fail because of each finding.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    template = environment.get_template("findings.md.jinja")
    runs = list(runs)
    cells = [cell for run in runs for cell in run.cells if cell.status == "known"]
    versions = {name: text for run in runs for name, text in run.header.versions.items()}
    findings = [finding for listed, _ in contents.values() for finding in listed]
    findings.sort(key=lambda finding: finding.rank)
    owners = sorted({finding.owner for finding in findings})
    index = {
        "findings": findings, "owners": owners, "words": [*SEVERITIES.items(), *STATES.items()],
        "versions": ", ".join(f"{name} {text}" for name, text in sorted(versions.items())),
    }  # fmt: skip
    pages = {"index": template.render(owner="", **index)}
    for owner in owners:
        listed = [finding for finding in findings if finding.owner == owner]
        sections = [(finding, describe_sightings(finding, contents, cells)) for finding in listed]
        pages[owner] = template.render(owner=owner, findings=sections, severities=SEVERITIES)
    return pages


def describe_sightings(finding: Finding, contents: Contents, cells: Iterable[CellRecord]) -> str:
    """Returns a text that says where the suite sees a finding: the implementations, with the numbers of
    their known `cells`, and the checks and cases of the entries that cite the finding. Without such
    entries `Finding.seen`."""
    citing = {
        manifest: [entry for entry in entries if entry.finding == finding.name]
        for manifest, (_, entries) in contents.items()
    }
    entries = [entry for listed in citing.values() for entry in listed]
    if not entries:
        return finding.seen

    def shows(cell: CellRecord) -> bool:
        listed = citing.get(cell.backend, ())
        return any(e.matches(cell.implementation, cell.check, cell.case) for e in listed)

    cell_counts = Counter(cell.name for cell in cells if shows(cell))
    counts = [f"{name} ({n} cell{'s' * (n != 1)})" for name, n in cell_counts.items()]
    names = dict.fromkeys(
        f"{manifest}:{name}"
        for manifest, listed in citing.items()
        for entry in listed
        for name in entry.implementation
    )
    checks = dict.fromkeys(check for entry in entries for check in entry.check)
    checked = "every check" if "*" in checks else f"check {', '.join(checks)}"
    cases = dict.fromkeys(f"`{case}`" for entry in entries for case in entry.case)
    return f"{', '.join(counts or names)}; {checked}; cases {', '.join(cases)}"


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Returns the names of installed distributions by module."""
    return metadata.packages_distributions()


def installed_version(package: str) -> str:
    """Returns the version of the distribution that has the module of `package`, such as a build for CPUs
    or of the night; "" if none is installed."""
    names = _distributions().get(package.replace("-", "_"))
    return metadata.version(names[0]) if names else ""


def run_script(finding: Finding) -> tuple[str, bool]:
    """Runs the script of a finding in a process of its own. Returns what the script prints, and whether
    the deviation is seen: the last line is "DEVIATES", or the process dies."""
    command = [sys.executable, "-c", finding.reproduction]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode < 0:
        return f"{result.stdout}(the process ends)", True
    return result.stdout.strip(), result.stdout.strip().endswith("DEVIATES")


def report(finding: Finding) -> str:
    """Runs the script of a finding. Returns a report in Markdown to post upstream, with the script's
    output. If there is nothing to post, a sentence that says why: a package is not installed, or the
    script shows no deviation on this machine."""
    packages = [Requirement(text).name for text in finding.versions]
    if missing := [package for package in packages if not installed_version(package)]:
        return f"No report of {finding.name}: {', '.join(missing)} is not installed.\n"
    versions = ", ".join(f"{package} {installed_version(package)}" for package in packages)
    output, deviates = run_script(finding)
    if not deviates:
        return f"No report of {finding.name}: no deviation with {versions} on this machine.\n"
    facts = (
        f"Who is hit: {finding.hits}\n\nWorkaround: {finding.workaround}\n\nVersions: {versions}"
    )
    blocks = f"```python\n{finding.reproduction}\n```\n\nIt prints:\n\n```\n{output}\n```\n"
    return f"# {finding.title}\n\n{finding.text}\n\n{facts}\n\n{blocks}"


def reports(contents: Contents) -> dict[str, str]:
    """Returns reports by the finding's name, for findings of wrong answers and of wrong accesses to
    memory of which no report is known (see `report`)."""
    findings = [finding for listed, _ in contents.values() for finding in listed]
    unreported = ("not reported", "not looked up")
    grave = [f for f in findings if f.severity in ("memory", "wrong") and f.state in unreported]
    return {finding.name: report(finding) for finding in grave}
