"""The plan of a run: which cells the options ask for, in which order.

Turns names given on a command line into backends, implementations and cells; everything that is
wrong with them is a UsageError that lists what would be right. Knows nothing of pytest.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from backends import registry
from backends.compilation import Compiled, compiled_forms, mode_of
from backends.protocol import (
    Backend,
    BackendUnavailable,
    BrokenFramework,
    Implementation,
    TimeOver,
)
from backends.registry import UsageError
from backends.user.layer import UserLayer
from suite.checks import all_checks
from suite.judge import leaks
from suite.judge.cell import Cell
from suite.judge.check import Check
from suite.judge.judge import Policy, Step
from suite.judge.trial import trial
from suite.records.cells import digest
from suite.records.expectations import (
    Expectation,
    ExpectationError,
    Manifest,
    load,
    load_named,
)
from suite.run.options import Options
from suite.run.process import limited
from suite.run.recorded import record_key
from suite.run.steps import expected, inherited, overflow
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.dtypes import dtype


@dataclass
class Plan:
    """Loaded backends and the implementations to judge, with their manifests; `of_functions` is that of
    the person's functions, from the files `expected`, beside which `natives` are the framework's.

    `callables` are functions at hand by the names that the options call them, `claimed` is what is
    claimed of functions besides what the options claim (see `suite.spec.claims.CLAIMS`).
    `unavailable` holds backends that "all" asked for and that failed to load, with the reason;
    `failed_imports` those of them that are installed, which fails the run. `notes` are for people.
    `told` takes the sentence that is to be said if the process dies now.
    """

    options: Options
    callables: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    claimed: Mapping[str, Any] = field(default_factory=dict)
    implementations: list[Implementation] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    functions: list[Implementation] = field(default_factory=list)
    failed_imports: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    natives: list[Implementation] = field(default_factory=list)
    expected: list[Path] = field(default_factory=list)
    of_functions: Manifest = field(default_factory=lambda: Manifest([], {}, ""))
    told: Callable[[str], object] = lambda death: None

    @classmethod
    def make(cls, options: Options, **fields: Any) -> Plan:
        """Import the frameworks, find the implementations, and try functions out; `fields` may be
        `callables`, `claimed` and `told`.

        Raises UsageError.
        """
        options.check()
        plan = cls(options, **fields)
        try:
            with limited(options.start_timeout, "importing frameworks and kernels"):
                plan.load()
        except TimeOver as error:
            raise UsageError(f"{error}; --start-timeout gives it longer") from error
        for text, function in zip(options.function, plan.functions, strict=False):
            plan.try_out(text, function)
            plan.notes += plan.wanting(function)
        return plan

    def load(self) -> None:
        """Import the frameworks and find the implementations. Raises UsageError."""
        options = self.options
        by_name = {registry.canonical(n) for n in options.backend if n != "all"}
        for name in options.backends:
            try:
                backend = registry.load(name, options.device)
            except BackendUnavailable as error:
                if name in by_name:
                    raise UsageError(f"backend {name} cannot be used: {error}") from error
                self.unavailable[name] = str(error)
                if isinstance(error, BrokenFramework):
                    self.failed_imports.append(name)
                continue
            self.add(backend)
        if options.implementation:
            self.select(options.implementation)
        if not self.implementations:
            raise UsageError(f"no implementation to judge; unavailable: {self.unavailable}")

    def add(self, backend: Backend) -> None:
        """Take in a backend's implementations, or the user's functions instead of them."""
        options = self.options
        # Plain strings: torch's version is a class of its own, which does not travel to workers.
        self.versions |= {name: str(text) for name, text in backend.versions.items()}
        quick = backend.quick() if options.compiles_quickly else None
        implementations = registry.implementations(quick or backend)
        if quick is not None:
            every = registry.implementations(backend)
            for each, optimized in zip(implementations, every, strict=True):
                each.optimized = optimized
        if options.function:
            self.natives += implementations
            settings = leaks.Settings(backend)
            functions = [self.function(backend, text) for text in options.function]
            self.notes += [
                f"importing {', '.join(options.function)} left {change}; cells are judged with what was"
                for change in settings.restore()
            ]
            self.functions += functions
            implementations = functions + (implementations if options.implementation else [])
        compiled = [] if options.mode == "eager" else compiled_forms(backend, implementations)
        self.functions += [c for c in compiled if c.inner in self.functions]
        implementations = [*(implementations if options.mode != "compiled" else []), *compiled]
        names = [i.name for i in implementations]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise UsageError(f"two implementations of {backend.name} are called {twice!r}")
        self.implementations += implementations
        try:
            entries = load(Path(backend.expectations))
            if not options.function:
                entries += [entry for path in options.expect for entry in load_named(path)]
            of_functions = [entry for path in self.expected for entry in load_named(path)]
        except ExpectationError as error:
            raise UsageError(str(error)) from error
        self.manifests[backend.name] = Manifest(entries, backend.versions, backend.device)
        self.of_functions = Manifest(of_functions, backend.versions, backend.device)

    def function(self, backend: Backend, text: str) -> Implementation:
        """The person's function named by `text`. Raises UsageError."""
        like, said = self.options.like, {**self.options.said, **self.claimed}
        if text in self.callables:
            function, claims = registry.callable_implementation(
                backend, self.callables[text], text, said, like
            )
        else:
            function, claims = registry.function_implementation(backend, text, said, like)
        self.expected += [path for path in claims.expect if path not in self.expected]
        self.notes += [f"{function}: {remark}" for remark in function.remarks]
        return function

    def try_out(self, text: str, function: Implementation) -> None:
        """Call the function named by `text` once. Raises UsageError where it cannot be judged."""
        who, seconds = f"function {text!r}", self.options.cell_timeout

        @contextmanager
        def calling(case: Case) -> Iterator[None]:
            self.told(f"{who} killed the process in its trial call on {case.id}")
            with limited(seconds, f"its trial call on {case.id}"):
                yield
            self.told("")

        reason = trial(function, calling)
        if reason is not None:
            raise UsageError(f"{who}: {reason}")

    def wanting(self, function: Implementation) -> list[str]:
        """Which parameter a person's layer lacks adds how many cells, the most first, for people."""
        if not isinstance(function, UserLayer):
            return []
        cells = [
            (check, cell.case)
            for check in all_checks()
            for cell in check.cells(self.options.level, [function])
            if check.unsupported(function, cell.case) is not None
        ]
        more = Counter({
            name: sum(check.unsupported(layer, case) is None for check, case in cells)
            for name, layer in function.with_one_more().items()
        })  # fmt: skip
        (name, count), *others = more.most_common()
        added = [
            f"a parameter {name} would add {count} cells",
            *(f"{n} {c}" for n, c in others if c),
        ]
        return [f"{function}: {', '.join(added)}"] if count else []

    def select(self, names: Sequence[str]) -> None:
        """Keep the named implementations ("sdpa" or "torch:sdpa"), and every user's function."""
        wanted = set(names)
        called = {i: {i.name, str(i)} for i in self.implementations}
        for i in self.implementations:
            if isinstance(i, Compiled):
                called[i] |= {i.inner.name, str(i.inner)}
        known = set().union(*called.values())
        unknown = sorted(wanted - known)
        if unknown:
            raise UsageError(
                f"unknown implementation {', '.join(unknown)}; valid: "
                f"{', '.join(str(i) for i in self.implementations)}"
            )
        self.implementations = [
            i for i in self.implementations if called[i] & wanted or i in self.functions
        ]

    def cells(self, check: Check, whole: bool = False) -> list[Cell]:
        """The cells of a check, case by case (so that implementations share an oracle).

        `whole` leaves the shard out of account.
        """
        index, count = (1, 1) if whole else self.options.part()
        names = {dtype(name).name for name in self.options.dtype}
        return [
            cell
            for cell in check.cells(self.options.level, self.implementations, self.options.seed)
            if (not names or cell.case.dtype.name in names)
            and _part_of(cell.case.id, count) == index
        ]

    def policy(self, cell: Cell, seconds: float | None = None) -> Policy:
        """How a cell is judged; `seconds` are its time limit, by default that of the options."""
        seconds = self.options.cell_timeout if seconds is None else seconds
        plain = Policy(self.options.audit, partial(limited, seconds, "the cell"))
        implementation = cell.implementation
        steps: list[Step] = [partial(expected, self.manifest(implementation))]
        if implementation in self.functions:
            steps.insert(0, overflow)
        if implementation in self.functions and self.options.inherit_known == "yes":
            of_framework = self.manifests[implementation.backend.name]
            steps.append(
                partial(inherited, self.natives, of_framework, replace(plain, audit=False))
            )
        return replace(plain, steps=tuple(steps))

    def manifest(self, implementation: Implementation) -> Manifest:
        """The expected failures of an implementation."""
        own = implementation in self.functions
        return self.of_functions if own else self.manifests[implementation.backend.name]

    def stale_expectations(self) -> list[str]:
        """Entries that match no supported cell of the full catalogue, as messages for people."""
        messages = []
        for manifest in (*self.manifests.values(), self.of_functions):
            present = [i for i in self.implementations if self.manifest(i) is manifest]
            names = {i.name for i in present}
            filtered = self.options.implementation or self.options.function
            left = Manifest([], {}, "")
            left.entries = [
                e
                for e in manifest.entries
                if (targets := self.asked_of(e)) and not (filtered and targets - names)
            ]
            if not left.entries:
                continue
            messages += [
                f"{e.source} ({', '.join(e.implementation)}: {', '.join(e.case)}) matches no cell of "
                "the catalogue; correct or remove it"
                for e in left.unmatched(partial(met, present))
            ]
        named = {name for e in self.of_functions.entries for name in e.implementation}
        if named and not named & {i.name for i in self.functions}:
            messages.append(
                f"{', '.join(map(str, self.expected))}: no entry names a function that is judged "
                f"({', '.join(i.name for i in self.functions)}); they name {', '.join(sorted(named))}"
            )
        return messages

    def asked_of(self, entry: Expectation) -> set[str]:
        """The implementations of the modes that are asked which an entry names."""
        mode = self.options.mode
        return {name for name in entry.implementation if mode in ("all", mode_of(name))}

    def answerable(self, whole: bool = False) -> bool:
        """Whether some cell of this part, or of the whole run, is one that can be answered."""
        return any(
            check.unsupported(cell.implementation, cell.case) is None
            for check in all_checks()
            for cell in self.cells(check, whole)
        )

    def digest(self) -> tuple[str, int]:
        """Digest and number of all cells of the whole run, every shard included."""
        keys = [record_key(cell) for check in all_checks() for cell in self.cells(check, True)]
        return digest(keys), len(keys)

    def identity(self) -> dict[str, Any]:
        """What a run is, for its header and for who writes it: plain data that travels to workers."""
        text, count = self.digest()
        return {
            "digest": text, "cells": count, "versions": self.versions, "unavailable": self.unavailable,
            "failed_imports": self.failed_imports, "notes": self.notes,
            "functions": [i.name for i in self.functions],
            "owes_answers": self.answerable() or not self.answerable(whole=True),
        }  # fmt: skip


def met(present: Sequence[Implementation], entry: Expectation) -> bool:
    """Whether an entry speaks of a cell of the full catalogue that one of the implementations can be
    asked."""
    return any(
        entry.names(case.id) and i.unsupported(case) is None
        for i in present
        for check in all_checks()
        if entry.asks(i.name, check.name)
        for case in asked_at_full(check, i)
    )


def asked_at_full(check: Check, implementation: Implementation) -> Iterable[AnyCase]:
    """The cases of the level "full" that an implementation is asked, with their twins."""
    return (cell.case for cell in check.cells("full", [implementation]))


def _part_of(case_id: str, count: int) -> int:
    """The shard, 1 to `count`, that a case belongs to: by its id, so that oracles are shared."""
    if count == 1:
        return 1
    return int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:4], "big") % count + 1
