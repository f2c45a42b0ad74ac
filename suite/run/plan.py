"""The plan of a run: the cells that the options select, and the policy by which each is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

from attention_conformance.backends.compilers import mode_of
from attention_conformance.backends.protocol import (
    BackendUnavailable,
    BrokenFramework,
    Implementation,
)
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import Policy, Step
from attention_conformance.suite.records.cells import digest
from attention_conformance.suite.records.expectations import Expectation
from attention_conformance.suite.run.loading import (
    NO_USER_CODE,
    LoadedBackend,
    OnDeath,
    UserCode,
    ignore_death,
    lacking_parameters,
    load_backends,
)
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import time_limit
from attention_conformance.suite.run.recorded import record_key
from attention_conformance.suite.run.steps import expected, inherited, overflow
from attention_conformance.suite.run.suggestions import triton_hint
from attention_conformance.suite.run.varied import cells_in_drawn_sizes
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import dtype
from attention_conformance.suite.spec.vocabulary import LEVELS


@dataclass(frozen=True)
class Plan:
    """The backends, implementations and cells of a run. `unavailable`: by name the errors of backends
    that "all" includes and that could not be loaded."""

    options: Options
    loaded: Sequence[LoadedBackend]
    unavailable: Mapping[str, BackendUnavailable]

    @classmethod
    def make(
        cls,
        options: Options,
        user: UserCode = NO_USER_CODE,
        on_death: OnDeath = ignore_death,
    ) -> Plan:
        """Returns the plan of these options. Imports the frameworks, and makes trial calls of user
        functions. Raises UsageError."""
        options.check()
        try:
            return cls._load(options, user, on_death)
        except UsageError as error:
            hint = triton_hint(error, options.backends, options.device)
            raise UsageError(f"{error}{hint}") from error

    @classmethod
    def _load(cls, options: Options, user: UserCode, on_death: OnDeath) -> Plan:
        loaded, unavailable = load_backends(options, user, on_death)
        if options.function:
            (backend,) = loaded
            notes = [lacking_parameters(function, options.level) for function in backend.functions]
            loaded = [replace(backend, notes=(*backend.notes, *chain.from_iterable(notes)))]
        return cls(options, loaded, unavailable)

    @cached_property
    def implementations(self) -> list[Implementation]:
        """The implementations to judge, of all backends."""
        return [i for one in self.loaded for i in one.implementations]

    @cached_property
    def functions(self) -> list[Implementation]:
        """The user functions to judge, with their compiled forms."""
        return [i for one in self.loaded for i in one.functions]

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the frameworks by distribution, as plain strings. torch's own version class
        cannot be sent between processes."""
        return {n: str(text) for one in self.loaded for n, text in one.backend.versions.items()}

    @property
    def notes(self) -> list[str]:
        """Sentences for people about the implementations."""
        return [note for one in self.loaded for note in one.notes]

    def loaded_backend(self, implementation: Implementation) -> LoadedBackend:
        """Returns the loaded backend of an implementation."""
        return next(one for one in self.loaded if one.backend.name == implementation.backend.name)

    def cells(self, check: Check, whole: bool = False) -> list[Cell]:
        """Returns the cells of a check in this shard, or in all shards if `whole`. The cells of a case
        are neighbours, so that implementations share an oracle."""
        shard, count = (1, 1) if whole else self.options.part()
        names = {dtype(name).name for name in self.options.dtype}
        cells = [*check.cells(self.options.level, self.implementations, self.options.seed)]
        if self.options.untrusted and check.single_answer:
            cells += cells_in_drawn_sizes(
                [cell for cell in cells if cell.implementation in self.functions]
            )
        return [
            cell
            for cell in cells
            if (not names or cell.case.dtype.name in names)
            and _shard_of(cell.case.id, count) == shard
        ]

    def policy(self, cell: Cell, seconds: float | None = None) -> Policy:
        """Returns the policy for judging a cell. `seconds`: the time limit, by default --cell-timeout."""
        loaded = self.loaded_backend(cell.implementation)
        is_function = cell.implementation in self.functions
        seconds = self.options.cell_timeout if seconds is None else seconds
        limit = partial(time_limit, seconds, "the cell")
        steps: list[Step] = [partial(expected, loaded.expected_of(cell.implementation))]
        if is_function:
            steps.insert(0, overflow)
        if is_function and self.options.inherit_known == "yes":
            steps.append(partial(inherited, loaded, Policy(limit=limit)))
        return Policy(self.options.audit, limit, tuple(steps))

    def stale_expectations(self, filtered: bool = False) -> list[str]:
        """Returns messages for people about manifest entries that match no supported cell of the full
        catalogue; [] for none.

        A `filtered` run does not test this project's own manifests: that takes longer than judging a few
        cells, and unfiltered runs do it.
        """
        messages = []
        for one in self.loaded:
            for manifest in (one.manifest, one.function_manifest):
                judged = [i for i in one.implementations if one.expected_of(i) is manifest]
                messages += [
                    f"{e.source} ({', '.join(e.implementation)}: {', '.join(e.case)}) matches no cell "
                    "of the catalogue; correct or remove it"
                    for e in manifest.unmatched(partial(self._matches_a_cell, judged), filtered)
                ]
            names = {name for e in one.function_manifest.entries for name in e.implementation}
            functions = [i.name for i in one.functions]
            if names and not names & {*functions}:
                messages.append(
                    f"{', '.join(map(str, one.expect))}: no entry names a function that is judged "
                    f"({', '.join(functions)}); they name {', '.join(sorted(names))}"
                )
        return messages

    def _matches_a_cell(self, judged: Sequence[Implementation], entry: Expectation) -> bool:
        """True if an entry matches a supported cell of the `judged` implementations. Also True if it
        names only implementations of other modes, or an implementation that this run leaves out."""
        mode = self.options.mode
        names = {name for name in entry.implementation if mode in ("all", mode_of(name))}
        is_filtered = self.options.implementation or self.options.function
        if not names or (is_filtered and names - {i.name for i in judged}):
            return True
        return any(
            entry.matches_case(case.id) and i.unsupported(case) is None
            for level in LEVELS  # most entries match at smoke: full takes seconds to draw
            for i in judged
            for check in all_checks().values()
            if entry.matches_check(i.name, check.name)
            for case in cases_asked(check, level, i)
        )

    def answerable(self, whole: bool = False) -> bool:
        """True if this shard has a supported cell; if `whole`, True if any shard has one."""
        return any(
            check.unsupported(cell.implementation, cell.case) is None
            for check in all_checks().values()
            for cell in self.cells(check, whole)
        )

    def digest(self) -> tuple[str, int]:
        """Returns the digest and the number of the cells of all shards."""
        keys = [
            record_key(cell) for check in all_checks().values() for cell in self.cells(check, True)
        ]
        return digest(keys), len(keys)

    def identity(self) -> dict[str, Any]:
        """Returns the facts of the plan that the writer of records needs, as plain data by name. Workers
        send them to the main process. "needs_pass": True if a run without a passed cell fails."""
        text, count = self.digest()
        return {
            "digest": text, "cells": count, "versions": self.versions,
            "unavailable": {name: str(error) for name, error in self.unavailable.items()},
            "failed_imports": [
                n for n, error in self.unavailable.items() if isinstance(error, BrokenFramework)
            ],
            "notes": self.notes, "functions": [i.name for i in self.functions],
            "controls": [str(i) for i in self.implementations if i.textbook],
            "needs_pass": self.answerable() or not self.answerable(whole=True),
        }  # fmt: skip


def cases_asked(check: Check, level: str, implementation: Implementation) -> Iterable[AnyCase]:
    """Returns the cases of a level in which a check judges an implementation, including nearest supported
    cases."""
    return (cell.case for cell in check.cells(level, [implementation]))


def _shard_of(case_id: str, count: int) -> int:
    """Returns the shard of a case, 1 to `count`, from a hash of its id: all cells of a case are in one
    shard, and share an oracle."""
    if count == 1:
        return 1
    return int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:4], "big") % count + 1
