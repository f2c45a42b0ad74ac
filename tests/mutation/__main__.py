"""`python -m tests.mutation --framework=NAME`: judge machine-made mutants of a released framework.

Exit codes: 0 if every mutant was judged, killed or not; 2 for a usage error, or if the framework as it
is does not end green.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from suite.flags import CommandOptions, option, whole
from suite.records import machine
from suite.records.lines import RecordError
from suite.report.render import render
from suite.run.jax_caches import compilations_in
from suite.run.options import shared
from suite.spec.text import printable, printed
from suite.spec.vocabulary import LEVELS
from tests.mutation import records
from tests.mutation.records import SEEN, STATUSES, FaultHeader, FaultRecord
from tests.mutation.run import Judge, NotGreen, mutants
from tests.mutation.tables import tables
from tests.mutation.targets import FRAMEWORKS, targets


@dataclass(frozen=True)
class MutationOptions(CommandOptions):
    """Which mutants are made, and how they are judged."""

    level: str = shared("level", checked=True)
    seed: int = shared("seed", help="the seed that draws the mutants")
    results: str = shared("results", help="write records to this new file")
    module: str = option("change this module of the framework alone")
    count: int = option("how many mutants", default=24, kind=whole)
    jobs: int = option("how many runs at a time", default=1, kind=whole, short="-j")
    after: str = option(
        "records of a level below: only mutants that survived there are judged, since a level holds "
        "those before it",
        "FILE.jsonl",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants, or print the tables of their records; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--framework", choices=FRAMEWORKS, help="change this framework's own attention code"
    )
    what.add_argument(
        "--table", nargs="+", metavar="FILE.jsonl", help="print the tables of these records"
    )
    MutationOptions.declare(parser.add_argument)
    with printed():
        chosen = parser.parse_args(arguments)
        if chosen.table:
            return show(chosen.table)
        # A change changes few programs: JAX compiles the others once.
        with tempfile.TemporaryDirectory(prefix="attention-") as folder:
            return run(chosen, compilations_in(folder))


def run(arguments: argparse.Namespace, variables: Mapping[str, str]) -> int:
    """Judge mutants in processes that have these environment variables; returns the exit code."""
    try:
        chosen = mutants(
            targets(arguments.framework, arguments.module), arguments.count, arguments.seed
        )
        before = seen_below(arguments.after, arguments.level) if arguments.after else {}
        names = dict.fromkeys(mutant.target.distribution for mutant in chosen)
        header = FaultHeader(
            **machine.origin(), versions={name: version(name) for name in names},
            options={
                "framework": arguments.framework, "module": arguments.module,
                "count": arguments.count, "seed": arguments.seed, "level": arguments.level,
            },
        )  # fmt: skip
        writer = records.writer(arguments.results, header) if arguments.results else None
    except (ValueError, OSError, ModuleNotFoundError, RecordError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    counts: Counter[str] = Counter()
    finished = False
    try:
        keys = [m.key(version(m.target.distribution), arguments.level) for m in chosen]
        unseen = [mutant for mutant, key in zip(chosen, keys, strict=True) if key not in before]
        seen = (before[key] for key in keys if key in before)
        judged = Judge(arguments.level, arguments.jobs, variables).judged(unseen)
        for record in itertools.chain(seen, judged):
            counts[record.status] += 1
            print(_line(record, f"{counts.total()}/{len(chosen)}"), flush=True)
            if writer:
                writer.write(record)
        finished = True
    except NotGreen as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if writer:
            writer.close(finished)
    print(", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]))
    return 0


def show(paths: Sequence[str]) -> int:
    """Print the tables of files of records in Markdown; returns the exit code."""
    try:
        runs = [records.load(path, partial=True) for path in paths]
        render(tables(runs, records.survivors()), "markdown", title="Machine-made mutants")
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def seen_below(path: str, level: str) -> dict[tuple[Any, ...], FaultRecord]:
    """Records of the mutants that a level below has seen or could not import, as records of `level`.

    Raises ValueError if a record's level is not below `level`, and what `records.load` raises.
    """
    below = records.load(path, partial=True).records
    for record in below:
        if LEVELS.index(record.level) >= LEVELS.index(level):
            raise ValueError(
                f"--after={path} has records of the level {record.level}; expected one below {level}"
            )
    decided = (record for record in below if record.status in (*SEEN, "not-imported"))
    return {here.key: here for here in (replace(record, level=level) for record in decided)}


def _line(record: FaultRecord, place: str) -> str:
    by = f" by {record.check} of {record.implementation}" if record.implementation else ""
    if record.implementation and record.backend:
        by += f" on {record.backend}"
    return printable(
        f"{place:>7} {record.status + by:40} {record.module}:{record.line} in {record.function}: "
        f"{record.described}  ({record.seconds:.0f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())
