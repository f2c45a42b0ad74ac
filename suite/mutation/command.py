"""`python -m suite mutants --framework=NAME`: machine-made mutants of a released framework."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from importlib.metadata import version

from suite.mutation.run import Judge, NotGreen, mutants
from suite.mutation.targets import FRAMEWORKS, targets
from suite.records import faults, machine
from suite.records.faults import STATUSES, FaultHeader, FaultRecord
from suite.spec.text import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of machine-made mutants, besides level and seed."""
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="change this framework's own attention code by machine",
    )
    parser.add_argument("--module", default="", help="change this module of the framework alone")
    parser.add_argument(
        "--count", type=int, default=24, help="how many mutants (default %(default)s)"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--results", metavar="FILE.jsonl", help="a new file for the records")


def run(arguments: argparse.Namespace) -> int:
    """Judge mutants; 0 where all were judged, whatever became of them, and 2 for a usage error."""
    try:
        chosen = mutants(
            targets(arguments.framework, arguments.module), arguments.count, arguments.seed
        )
        names = dict.fromkeys(mutant.target.distribution for mutant in chosen)
        header = FaultHeader(
            **machine.origin(), versions={name: version(name) for name in names},
            options={
                "framework": arguments.framework, "module": arguments.module,
                "count": arguments.count, "seed": arguments.seed, "level": arguments.level,
            },
        )  # fmt: skip
        writer = faults.writer(arguments.results, header) if arguments.results else None
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    counts: Counter[str] = Counter()
    finished = False
    try:
        for record in Judge(arguments.level, arguments.jobs).judged(chosen):
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


def _line(record: FaultRecord, place: str) -> str:
    by = f" by {record.check} of {record.implementation}" if record.implementation else ""
    return printable(
        f"{place:>7} {record.status + by:40} {record.module}:{record.line} in {record.function}: "
        f"{record.described}  ({record.seconds:.0f} s)"
    )
