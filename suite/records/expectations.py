"""Expectations: manifests of known failures, strict in both directions.

A manifest is a TOML file per backend, NAME.toml beside its adapter, of entries

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
    drawn = true                                # optional: only for the search, see below
    sometimes = "why it passes with some seeds" # optional, see below

An entry may cite a finding (`suite.records.findings`) of its manifest, or of one of this project, by
`finding = "name"`. Where the entry does not say otherwise, the issue, the versions and the CPU are then
those of the finding, and the cause is its title. A finding without an issue has "none found".

A matching cell that fails as stated is `known`. Four things fail the run: another kind of failure,
another message, a pass, and an entry that matches no cell of the catalogue. A run that pytest filters
(`-k`, `::`) looks for such entries in users' manifests only, not in this project's.

- `drawn`: the cases were drawn by a search and are not in the catalogue. The entry makes no cell `known`;
  the search does not report such failures again.
- `sometimes`: the cells fail with some seeds and stay within their bound with others. A pass is then a
  `pass`, and its message cites the reason. Do not name cells that fail with every seed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
import tomli_w
from packaging.requirements import InvalidRequirement, Requirement

from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.files import require_regular_file
from attention_conformance.suite.records.machine import cpu_has_flags
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.vocabulary import KINDS

MANIFESTS = Path(__file__).resolve().parents[2] / "backends"

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]


NONE_FOUND = "none found"
"""The issue of a finding that says no other: no report was found."""


class ExpectationError(Exception):
    """A manifest is invalid; the message names the file and the entry."""


class ManifestEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"except_": "except"}
):
    """One entry of a manifest."""

    implementation: Texts
    check: Texts
    case: Texts
    kind: Text
    message: Text
    cause: Text
    issue: Text
    versions: Texts
    except_: tuple[Text, ...] = ()
    device: tuple[Text, ...] = ()
    cpu: tuple[Text, ...] = ()
    finding: str = ""
    drawn: bool = False
    sometimes: Text | None = None


def _matches_any(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


class Expectation(ManifestEntry, frozen=True):
    """An entry with its place in a manifest (`source`); `committed` is True for manifests of this
    project."""

    source: str = ""
    committed: bool = False

    def matches(self, implementation: str, check: str, case: str) -> bool:
        """True if the entry's patterns match this cell."""
        return self.matches_check(implementation, check) and self.matches_case(case)

    def matches_check(self, implementation: str, check: str) -> bool:
        """True if the entry's patterns match this implementation and check."""
        return _matches_any(self.implementation, implementation) and _matches_any(self.check, check)

    def matches_case(self, case: str) -> bool:
        """True if the entry's patterns match this case."""
        return _matches_any(self.case, case) and not _matches_any(self.except_, case)

    def matches_failure(self, verdict: VerdictLike) -> bool:
        """True if a failure has the entry's kind, and the entry's pattern matches in its message."""
        return verdict.kind == self.kind and bool(re.search(self.message, verdict.message))

    def holds_for(self, versions: Mapping[str, str], device: str) -> bool:
        """True if the entry applies to these versions (by distribution name), this device, and the CPU of
        this machine."""
        if (self.device and device not in self.device) or not cpu_has_flags(self.cpu):
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


def load(path: Path) -> list[Expectation]:
    """Returns the entries of a manifest; an empty list if there is no file.

    Raises ExpectationError for an unknown, missing, empty or wrongly typed field, an unknown kind, an
    invalid pattern or version, and an issue that is neither a link nor begins with "none found".
    """
    document, committed = tables(path), path.resolve().is_relative_to(MANIFESTS)
    fields = _fields_by_finding(document.get("finding", []))
    return [
        _expectation(_with_cited(values, fields), f"{path.name}, entry {number}", committed)
        for number, values in enumerate(document.get("expect", []), 1)
    ]


def _fields_by_finding(findings: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Returns the fields that an entry takes from the finding that it cites, by the finding's name."""
    return {
        finding["name"]: {"cause": finding["title"], "issue": NONE_FOUND}
        | {name: finding[name] for name in ("issue", "versions", "cpu") if name in finding}
        for finding in findings
        if isinstance(finding, dict) and {"name", "title"} <= set(finding)
    }


@cache
def _fields_of_committed_findings() -> dict[str, dict[str, Any]]:
    """Returns `_fields_by_finding` for all manifests of this project."""
    findings = (tables(path).get("finding", []) for path in sorted(MANIFESTS.glob("*/*.toml")))
    return _fields_by_finding(chain.from_iterable(findings))


def _with_cited(values: Any, fields: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the values of an entry, completed by the fields of the finding that it cites. `fields`:
    those of its own manifest, by the finding's name. Otherwise findings of this project are looked up.
    The entry's own values have precedence."""
    if not isinstance(values, dict) or "finding" not in values:
        return values
    name = str(values["finding"])
    return {**(fields.get(name) or _fields_of_committed_findings().get(name, {})), **values}


def load_named(path: str | Path) -> list[Expectation]:
    """Returns the entries of a manifest that a user named. Raises ExpectationError if there is no
    file."""
    if not Path(path).is_file():
        raise ExpectationError(
            f"there is no manifest {path}; `attention-conformance expect --write RESULTS` drafts one"
        )
    return load(Path(path))


def tables(path: Path) -> dict[str, list[Any]]:
    """Returns the tables `expect` and `finding` of a manifest; empty if there is no file. A manifest of
    this project is read once.

    Raises ExpectationError if the file is not TOML or has other tables.
    """
    return (_read_once if path.is_relative_to(MANIFESTS) else _read)(path)


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        if not require_regular_file(path).is_file():
            return {}
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExpectationError(f"{path.name}: not valid TOML: {error}") from error
    if set(document) - {"expect", "finding"} or not all(
        isinstance(entries, list) for entries in document.values()
    ):
        raise ExpectationError(
            f"{path.name}: expected only [[expect]] and [[finding]] entries, got "
            f"{', '.join(document)}"
        )
    return document


_read_once = cache(_read)

S = TypeVar("S", bound=msgspec.Struct)


def to_struct(values: Any, kind: type[S], where: str) -> S:
    """Returns the values as a struct of the type `kind`. `where`: the place in messages. Raises
    ExpectationError."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ExpectationError(f"{where}: {error}; correct the entry") from error


def check_issue(issue: str, where: str) -> None:
    """Raise ExpectationError unless an issue is a link or begins with "none found"."""
    if not re.match(r"https://\S+|none found", issue):
        raise ExpectationError(
            f"{where}: issue must be a link, or begin with 'none found', got {issue!r}"
        )


def _expectation(values: Any, where: str, committed: bool) -> Expectation:
    """Returns the entry with these values; `where` is its place in messages. Raises ExpectationError."""
    entry = to_struct(values, ManifestEntry, where)
    if entry.kind not in KINDS:
        raise ExpectationError(f"{where}: unknown kind {entry.kind!r}; valid: {', '.join(KINDS)}")
    check_issue(entry.issue, where)
    if entry.cause.startswith("TODO"):
        raise ExpectationError(
            f"{where}: the cause is not filled in; verify it, then write it down"
        )
    try:
        re.compile(entry.message)
        for text in entry.versions:
            Requirement(text)
    except (re.error, OverflowError, RecursionError, InvalidRequirement) as error:
        raise ExpectationError(f"{where}: {error}") from error
    return Expectation(**msgspec.structs.asdict(entry), source=where, committed=committed)


class VerdictLike(Protocol):
    """The fields of a verdict that a manifest reads. A verdict is a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def status(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...


V = TypeVar("V", bound=VerdictLike)


class Manifest:
    """The entries that apply to one backend's versions and device, and to this CPU."""

    def __init__(
        self, entries: Iterable[Expectation], versions: Mapping[str, str], device: str
    ) -> None:
        self.entries = [entry for entry in entries if entry.holds_for(versions, device)]
        self._by_check: dict[tuple[str, str], list[Expectation]] = {}

    def find(self, implementation: str, check: str, case: str) -> Expectation | None:
        """Returns the entry that matches a cell, or None. Raises ExpectationError if two entries
        match."""
        key = (implementation, check)
        if key not in self._by_check:
            self._by_check[key] = [e for e in self.entries if not e.drawn and e.matches_check(*key)]
        entries = [entry for entry in self._by_check[key] if entry.matches_case(case)]
        if len(entries) > 1:
            raise ExpectationError(
                f"{entries[0].source} and {entries[1].source} both match "
                f"{implementation} {check} {case}; make one of them exclude it"
            )
        return entries[0] if entries else None

    def apply(self, verdict: V, implementation: str, check: str, case: str) -> V:
        """Returns the verdict after the manifest is applied. If an entry matches the cell, its failure is
        `known`. A pass becomes the failure "unexpected-pass", another failure "other-failure"."""
        entry = self.find(implementation, check, case)
        if entry is None or verdict.status in ("unsupported", "error", "crash"):
            return verdict
        if verdict.status == "pass" and entry.sometimes:
            return replace(verdict, message=f"{entry.source} expects a failure: {entry.sometimes}")
        if verdict.status == "pass":
            return replace(
                verdict,
                status="fail",
                kind="unexpected-pass",
                message=f"passed, but {entry.source} expects {entry.kind}: {entry.cause}; "
                "remove or narrow the entry",
            )
        if entry.matches_failure(verdict):
            return replace(
                verdict, status="known", message=f"{verdict.message} [{entry.cause}; {entry.issue}]"
            )
        return replace(
            verdict,
            kind="other-failure",
            message=f"expected {entry.kind} /{entry.message}/ ({entry.source}), got "
            f"{verdict.kind}: {verdict.message}",
        )

    def similar(self, failure: VerdictLike, implementation: str, check: str, case: str) -> str:
        """Returns the source and cause of an entry that expects this failure in other cases of the
        operator and dtype, or "". Entries name sizes of the catalogue; a search draws cases of any
        size."""
        for entry in self.entries:
            if entry.matches_check(implementation, check) and entry.matches_failure(failure):
                for operator, *parts in (pattern.split("/") for pattern in entry.case):
                    dtypes = {*parts} & {*DTYPES} <= {*case.split("/")}
                    if dtypes and fnmatchcase(case.split("/")[0], operator):
                        return f"{entry.source}: {entry.cause}"
        return ""

    def unmatched(
        self, matches_a_cell: Callable[[Expectation], bool], filtered: bool = False
    ) -> list[Expectation]:
        """Returns the entries that match no cell of the catalogue. `matches_a_cell(entry)` says whether
        one does. With `filtered` this project's own entries are left out, and drawn ones always are."""
        strict = (e for e in self.entries if not (e.drawn or (filtered and e.committed)))
        return [entry for entry in strict if not matches_a_cell(entry)]


_LINE_ENDS = re.compile(r"(?:\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f])+")
"""Terminal colours and line ends. A drafted pattern covers a message up to the first of them."""

_VARYING_PARTS = re.compile(
    r"[(\[][^()\[\]]*\d[^()\[\]]*[)\]]"  # a place or a shape
    r"|[-+]?\b(?:\d[\w.]*(?:[-+]\d+)?|nan|inf)\b%?"  # a number
)
"""The parts of a message that differ from cell to cell."""

_LOST_CHARACTERS = re.compile("[\ud800-\udfff\ufffd]")
"""Characters that UTF-8 cannot encode, and their replacement character."""


def draft(
    failures: Iterable[CellRecord],
    versions: Mapping[str, str],
    diagnoses: Iterable[DiagnosisRecord] = (),
) -> str:
    """Returns the draft of a manifest in TOML, from failing cells; "" without failures.

    Failures share an entry if implementation, check and kind are equal and messages differ only in
    numbers. Each cause begins with TODO, which `load` refuses until a person has verified the cause. The
    cause quotes the first of the `diagnoses` of its implementation.
    """
    sentences: dict[str, str] = {}
    for diagnosis in diagnoses:
        sentences.setdefault(diagnosis.implementation, f"; the run says: {diagnosis.sentence}")
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for cell in failures:
        key = (cell.implementation, cell.check, cell.kind, _pattern(cell.message))
        groups.setdefault(key, []).append(cell.case)
    requirement = [f"{name}=={version.split('+')[0]}" for name, version in versions.items()][:1]
    entries = [
        {
            "implementation": [implementation],
            "check": [check],
            "case": sorted(set(cases)),
            "kind": kind,
            "message": message,
            "cause": f"TODO: verify, then one line{sentences.get(implementation, '')}",
            "issue": "TODO: a link, or: none found",
            "versions": requirement,
        }
        for (implementation, check, kind, message), cases in groups.items()
    ]
    return tomli_w.dumps({"expect": entries}) if entries else ""


def _pattern(message: str) -> str:
    """Returns a regular expression for the first line of a message, with `.*` for numbers."""
    line = next((part.strip() for part in _LINE_ENDS.split(message) if part.strip()), "")
    parts = _VARYING_PARTS.split(line)
    words = [_LOST_CHARACTERS.sub(".*", re.escape(part).replace("\\ ", " ")) for part in parts]
    return ".*".join(words) if any(map(re.compile(r"\w").search, words)) else ".*"
