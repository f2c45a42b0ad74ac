"""The command `explain`: what functions of plain attention compute, as the readings of the diagnosis say,
without a verdict.

    attention-conformance explain my_kernels.py:flash --backend=torch
    attention-conformance explain my_kernels.py:flash old.py:attention --backend=torch
    attention-conformance explain --backend=torch --results=facts.jsonl

With `--results` the facts are written to a file for reports, by default those of every implementation.

Exit codes: 0; 2 if the arguments cannot be used, or if reading a function takes too long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from textwrap import wrap

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import (
    BackendUnavailable,
    Implementation,
    TimeOver,
    UsageError,
)
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.flags import option
from attention_conformance.suite.judge.diagnosis import facts
from attention_conformance.suite.records import facts as records
from attention_conformance.suite.records import machine
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options, shared
from attention_conformance.suite.run.process import time_limit
from attention_conformance.suite.spec.text import valid_names

SECONDS = 8.0
"""Processor seconds to read one function; facts that are missing then are shown as not measured."""

WIDTH = 112
"""The most characters of a line of the table."""

DIFFERS = "!"
"""The mark before a row in which columns differ."""

SHARED_OPTIONS = (
    "function", "backend", "device", "numerics", "claim", "allow_unused", "threads", "cell_timeout",
    "implementation",
)  # fmt: skip
"""The options of a run that `explain` has as well."""


@dataclass(frozen=True)
class ExplainOptions(Options):
    """The options of `explain`."""

    fixed = tuple(field.name for field in fields(Options) if field.name not in SHARED_OPTIONS)

    function: tuple[str, ...] = option("a function to read", "PATH.py:NAME", nargs="*")
    implementation: tuple[str, ...] = shared(
        "implementation",
        help="read this implementation of the framework, too (sdpa-flash); repeatable",
    )
    results: str = shared(
        "results",
        help="write the facts to this new file, of every implementation if none is named",
    )


def run(options: ExplainOptions) -> int:
    """Run the command `explain`, and return its exit code."""
    try:
        options.check()
        limit_threads(options.threads)
        if options.results:
            _write(options)
            return 0
        columns = {name: _read(one, name, options) for name, one in named(options)}
    except (UsageError, BackendUnavailable, TimeOver, RecordError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(table(columns)))
    return 0


def _read(implementation: Implementation, name: str, options: Options) -> dict[str, str]:
    """Returns the facts of an implementation as texts by name. Raises TimeOver, with `name` in its
    message."""
    with time_limit(options.cell_timeout, f"reading {name}"):
        return facts.read_facts(implementation, SECONDS)


def _write(options: ExplainOptions) -> None:
    """Write a new file of facts, with a line for each implementation, as soon as its facts are measured.
    Raises UsageError if two implementations have the same name."""
    by_name = dict(named(options, every=True))
    if len({one.name for one in by_name.values()}) < len(by_name):
        raise UsageError("functions of one name have one line in a file: write them to two files")
    backend = next(iter(by_name.values())).backend
    versions = {name: str(text) for name, text in backend.versions.items()}
    file = records.writer(
        options.results, records.FactsHeader(**machine.origin(), versions=versions)
    )
    finished = False
    try:
        for name, one in by_name.items():
            values = _read(one, name, options)
            file.write(records.FactsRecord(backend.name, one.name, backend.device, values))
        finished = True
    finally:
        file.close(finished)


def named(options: Options, every: bool = False) -> Iterator[tuple[str, Implementation]]:
    """Yields the functions and implementations that the options name, each with its name. If none is
    named and `every` is True, yields all of the backend's implementations of plain attention. Raises
    UsageError."""
    if len(options.backends) != 1:
        raise UsageError(f"exactly one --backend is read, got {', '.join(options.backends)}")
    backend = registry.load(options.backends[0], options.device)
    natives = {i.name: i for i in registry.implementations(backend) if i.operator.is_default}
    if every and not options.function and not options.implementation:
        yield from natives.items()
        return
    if not options.function and not options.implementation:
        names = ", ".join(natives)
        raise UsageError(f"name a function, PATH.py:NAME, or --implementation; valid: {names}")
    for text in options.function:
        # One by one: functions of different files may have one name.
        (function,) = load_backend(
            backend, replace(options, function=(text,), implementation=(), optimized=True)
        ).functions
        yield text if len(options.function) > 1 else function.name, function
    for name in options.implementation:
        short = name.removeprefix(f"{backend.name}:")
        if short not in natives:
            raise UsageError(f"unknown implementation {name}{valid_names(name, natives)}")
        yield short, natives[short]


def table(columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the lines of a table: a row for each fact, a column for each function. `columns` are the
    facts by the function's name. A row is marked by `DIFFERS` if its columns differ."""
    rows = list(dict.fromkeys(fact for column in columns.values() for fact in column))
    name_width = max(map(len, rows), default=0)
    width = max((WIDTH - name_width - 2) // max(len(columns), 1) - 2, 24)
    lines = _row(" ", "", list(columns), name_width, width)
    for name in rows:
        cells = [column.get(name, facts.NOT_TAKEN) for column in columns.values()]
        lines += _row(DIFFERS if len(set(cells)) > 1 else " ", name, cells, name_width, width)
    return lines


def _row(mark: str, name: str, cells: Sequence[str], name_width: int, width: int) -> list[str]:
    """Returns the lines of a row: `mark`, `name` padded to `name_width`, and cells wrapped at `width`."""
    wrapped = [wrap(cell, width) or [""] for cell in cells]
    lines = []
    for number in range(max(map(len, wrapped), default=0)):
        texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        begin = f"{mark} {name:{name_width}}" if number == 0 else " " * (name_width + 2)
        lines.append("  ".join([begin, *(f"{text:{width}}" for text in texts)]).rstrip())
    return lines
