"""`python -m suite mutants --framework=NAME`: machine-made mutants of a released framework."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from suite.mutation.run import Judge, NotGreen, mutants
from suite.mutation.targets import FRAMEWORKS, targets
from suite.records import faults, machine
from suite.records.faults import SEEN, STATUSES, FaultHeader, FaultRecord
from suite.records.lines import RecordError
from suite.spec.text import printable
from suite.spec.vocabulary import LEVELS


def add_own_options(parser: argparse.ArgumentParser) -> None:
    """The options of machine-made mutants, besides level, seed and results."""
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
    parser.add_argument(
        "--after",
        metavar="FILE.jsonl",
        help="records of a level below: what was seen there is seen (a level holds those before it), and "
        "only what survived is judged",
    )


def run(arguments: argparse.Namespace, variables: Mapping[str, str]) -> int:
    """Judge mutants in processes with these variables; 0 where all were judged, whatever became of them,
    and 2 for a usage error."""
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
        writer = faults.writer(arguments.results, header) if arguments.results else None
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


def seen_below(path: str, level: str) -> dict[tuple[Any, ...], FaultRecord]:
    """Records of a level below that say more of this one than that it is to be asked, as records of this
    level. Raises ValueError where they are of no level below, and what `faults.load` raises."""
    records = faults.load(path, partial=True).records
    for record in records:
        if LEVELS.index(record.level) >= LEVELS.index(level):
            raise ValueError(
                f"--after={path} has records of the level {record.level}; expected one below {level}"
            )
    told = (record for record in records if record.status in (*SEEN, "not-imported"))
    return {here.key: here for here in (replace(record, level=level) for record in told)}


def _line(record: FaultRecord, place: str) -> str:
    by = f" by {record.check} of {record.implementation}" if record.implementation else ""
    if record.implementation and record.backend:
        by += f" on {record.backend}"
    return printable(
        f"{place:>7} {record.status + by:40} {record.module}:{record.line} in {record.function}: "
        f"{record.described}  ({record.seconds:.0f} s)"
    )
