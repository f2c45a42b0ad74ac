"""Expectations: manifests of known failures, strict in both directions.

A manifest is a TOML file per backend, `backends/expectations/NAME.toml`, of entries

    [[expect]]
    implementation = ["sdpa", "sdpa-flash"]
    check = ["bad_problem"]
    case = ["bad/key-value-lengths-differ/*"]   # shell patterns, * also matches /
    except = []                                 # optional
    kind = "no-raise"
    message = "answered with shape"             # a regular expression, searched for
    cause = "one line, verified"
    issue = "https://..." or "none found ..."
    versions = ["torch>=2.0"]                   # all must hold; see packaging.requirements
    device = ["cpu"]                            # optional, default any
    cpu = ["amx_bf16"]                          # optional: what the CPU can do; "!flag": cannot

and of what was found in released software, which entries of any manifest may cite by `finding = "name"`:

    [[finding]]
    name = "short-name"
    title = "one line: who does what wrong"
    text = "what differs, and what follows from it"
    issue = "https://..." or "none found ..."
    versions = ["torch>=2.0"]
    seen = "election nan-in-query of torch:sdpa"    # where no entry cites it
    reproduction = '''a script without this project, whose assertions hold while the fault is there'''

A matching cell that fails in this way is `known`. Another kind of failure, another message, a pass,
and an entry that matches no cell of the catalogue all fail the run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from suite.judge.machine import cpu_is
from suite.judge.verdict import KINDS, Verdict

MANIFESTS = Path(__file__).resolve().parents[2] / "backends" / "expectations"


class ExpectationError(Exception):
    """A manifest cannot be used; the message names the file and the entry."""


@dataclass(frozen=True)
class Expectation:
    """One entry of a manifest."""

    implementation: tuple[str, ...]
    check: tuple[str, ...]
    case: tuple[str, ...]
    kind: str
    message: str
    cause: str
    issue: str
    versions: tuple[str, ...]
    except_: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    finding: str = ""
    source: str = ""

    def matches(self, implementation: str, check: str, case: str) -> bool:
        """Whether the entry speaks of this cell."""

        def one_of(patterns: Iterable[str], text: str) -> bool:
            return any(fnmatchcase(text, pattern) for pattern in patterns)

        return (
            one_of(self.implementation, implementation)
            and one_of(self.check, check)
            and one_of(self.case, case)
            and not one_of(self.except_, case)
        )

    def holds_for(self, versions: Mapping[str, str], device: str) -> bool:
        """Whether the entry is meant for these versions (by distribution name), this device and this
        machine's CPU."""
        if (self.device and device not in self.device) or not cpu_is(self.cpu):
            return False
        for text in self.versions:
            requirement = Requirement(text)
            installed = versions.get(requirement.name)
            # A local version label (2.13.0+cpu) and pre-releases belong to the release they name.
            if installed is None or not requirement.specifier.contains(
                installed.split("+")[0], prereleases=True
            ):
                return False
        return True


@dataclass(frozen=True)
class Finding:
    """A deviation of released software, with a script that shows it without this project.

    `crashes`: the script ends its process instead of failing an assertion, and perhaps not every time.
    `cpu`: what the CPU must be able to do, or ("!flag") not, for the script to show anything.
    """

    name: str
    title: str
    text: str
    issue: str
    versions: tuple[str, ...]
    reproduction: str
    seen: str = ""
    crashes: bool = False
    cpu: tuple[str, ...] = ()


_REQUIRED = ("implementation", "check", "case", "kind", "message", "cause", "issue", "versions")
_LISTS = ("implementation", "check", "case", "except", "versions", "device", "cpu")


def load(path: Path) -> list[Expectation]:
    """The entries of a manifest; none where there is no file.

    Raises ExpectationError for an unknown key, a missing or empty field, an unknown kind, a bad
    pattern or version, and an issue that is neither a link nor says that none was found.
    """
    if not path.is_file():
        return []
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ExpectationError(f"{path.name}: not valid TOML: {error}") from error
    if set(document) - {"expect", "finding"}:
        raise ExpectationError(
            f"{path.name}: expected only [[expect]] and [[finding]] entries, got "
            f"{', '.join(document)}"
        )
    return [
        _entry(values, f"{path.name}, entry {number}")
        for number, values in enumerate(document.get("expect", []), 1)
    ]


def load_findings(path: Path) -> list[Finding]:
    """The findings of a manifest; none where there is no file.

    Raises ExpectationError for an unknown key, a missing or empty field, and a name given twice.
    """
    if not path.is_file():
        return []
    return _findings(tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def _findings(document: Mapping[str, Any], file: str) -> list[Finding]:
    found = []
    known = {f.name for f in fields(Finding)}
    needed = {f.name for f in fields(Finding) if f.default is MISSING}
    for number, values in enumerate(document.get("finding", []), 1):
        place = f"{file}, finding {number}"
        if unknown := set(values) - known:
            raise ExpectationError(f"{place}: unknown {', '.join(sorted(unknown))}")
        if missing := {name for name in needed if not values.get(name)}:
            raise ExpectationError(f"{place}: {', '.join(sorted(missing))} missing")
        if not values["issue"].startswith(("https://", "none found")):
            raise ExpectationError(f"{place}: issue must be a link, or say that none was found")
        lists = {n: tuple(values.get(n, ())) for n in ("versions", "cpu")}
        found.append(Finding(**{**values, **lists}))
    names = [f.name for f in found]
    if len(set(names)) < len(names):
        raise ExpectationError(f"{file}: two findings have one name")
    return found


def _entry(values: dict[str, Any], where: str) -> Expectation:
    unknown = set(values) - set(_REQUIRED) - set(_LISTS) - {"finding"}
    missing = [name for name in _REQUIRED if not values.get(name)]
    if unknown or missing:
        raise ExpectationError(
            f"{where}: unknown {sorted(unknown) or 'nothing'}, missing or empty {missing or 'nothing'}"
        )
    for name in _LISTS:
        found = values.get(name, [])
        if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
            raise ExpectationError(f"{where}: {name} must be a list of strings, got {found!r}")
    if values["kind"] not in KINDS:
        raise ExpectationError(
            f"{where}: unknown kind {values['kind']!r}; valid: {', '.join(KINDS)}"
        )
    if not re.match(r"https://\S+|none found", values["issue"]):
        raise ExpectationError(
            f"{where}: issue must be a link, or begin with 'none found', got {values['issue']!r}"
        )
    if values["cause"].startswith("TODO"):
        raise ExpectationError(
            f"{where}: the cause is not filled in; verify it, then write it down"
        )
    try:
        re.compile(values["message"])
        for text in values["versions"]:
            Requirement(text)
    except (re.error, InvalidRequirement) as error:
        raise ExpectationError(f"{where}: {error}") from error
    lists = {name: tuple(values.get(name, ())) for name in _LISTS}
    return Expectation(
        implementation=lists["implementation"],
        check=lists["check"],
        case=lists["case"],
        kind=values["kind"],
        message=values["message"],
        cause=values["cause"],
        issue=values["issue"],
        versions=lists["versions"],
        except_=lists["except"],
        device=lists["device"],
        cpu=lists["cpu"],
        finding=values.get("finding", ""),
        source=where,
    )


class Manifest:
    """The entries that hold for one backend's versions and device."""

    def __init__(
        self, entries: Iterable[Expectation], versions: Mapping[str, str], device: str
    ) -> None:
        self.entries = [entry for entry in entries if entry.holds_for(versions, device)]

    def find(self, implementation: str, check: str, case: str) -> Expectation | None:
        """The entry for a cell. Raises ExpectationError where two entries claim it."""
        found = [e for e in self.entries if e.matches(implementation, check, case)]
        if len(found) > 1:
            raise ExpectationError(
                f"{found[0].source} and {found[1].source} both match "
                f"{implementation} {check} {case}; make one of them exclude it"
            )
        return found[0] if found else None

    def apply(self, verdict: Verdict, implementation: str, check: str, case: str) -> Verdict:
        """The verdict in the light of the manifest: `known`, or a failure of the expectation."""
        entry = self.find(implementation, check, case)
        if entry is None or verdict.status in ("unsupported", "error", "crash"):
            return verdict
        if verdict.status == "pass":
            return replace(
                verdict,
                status="fail",
                kind="unexpected-pass",
                message=f"passed, but {entry.source} expects {entry.kind}: {entry.cause}; "
                "remove or narrow the entry",
            )
        if verdict.kind == entry.kind and re.search(entry.message, verdict.message):
            return replace(
                verdict, status="known", message=f"{verdict.message} [{entry.cause}; {entry.issue}]"
            )
        return replace(
            verdict,
            kind="other-failure",
            message=f"expected {entry.kind} /{entry.message}/ ({entry.source}), got "
            f"{verdict.kind}: {verdict.message}",
        )

    def unmatched(self, cells: Iterable[tuple[str, str, str]]) -> list[Expectation]:
        """Entries that match none of the catalogue's cells (implementation, check, case)."""
        left = list(self.entries)
        for cell in cells:
            left = [entry for entry in left if not entry.matches(*cell)]
            if not left:
                break
        return left


def draft(failures: Iterable[Mapping[str, Any]], versions: Mapping[str, str]) -> str:
    """A manifest draft in TOML from failing cells (mappings with the fields of a record).

    Failures of one implementation, check and kind whose messages begin alike share an entry. Causes
    are left as TODO, which `load` refuses: an expectation without a verified cause is a defect.
    """
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for cell in failures:
        start = re.split(r"[\d(:;,]", str(cell["message"]), maxsplit=1)[0].strip()
        key = (cell["implementation"], cell["check"], cell["kind"], start)
        groups.setdefault(key, []).append(cell["case"])
    requirement = [f"{name}=={version.split('+')[0]}" for name, version in versions.items()][:1]
    entries = []
    for (implementation, check, kind, start), cases in groups.items():
        listed = ",\n".join(f"    {_quote(case)}" for case in sorted(set(cases)))
        entries.append(
            "[[expect]]\n"
            f"implementation = [{_quote(implementation)}]\n"
            f"check = [{_quote(check)}]\n"
            f"case = [\n{listed},\n]\n"
            f"kind = {_quote(kind)}\n"
            f"message = {_quote(re.escape(start) or '.')}\n"
            'cause = "TODO: verify, then one line"\n'
            'issue = "TODO: a link, or: none found"\n'
            f"versions = [{', '.join(map(_quote, requirement))}]\n"
        )
    return "\n".join(entries)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
