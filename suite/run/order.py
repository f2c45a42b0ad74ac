"""The command `order` of `python -m suite`: in which order implementations add the values of all keys.

    python -m suite order --backend=torch
    python -m suite order sdpa-flash my_kernels.py:flash --backend=torch
    python -m suite order > docs/data/orders.md

Exit codes: 0; 2 if the arguments cannot be used, or if reading a function takes too long.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends import registry
from backends.protocol import (
    BackendUnavailable,
    BrokenFramework,
    Implementation,
    TimeOver,
    UsageError,
)
from backends.threads import limit_threads
from suite.flags import option
from suite.judge import leaks
from suite.judge.diagnosis.instrument import Instrument
from suite.judge.elections import order
from suite.report.render import aligned
from suite.run.elections import asked_apart
from suite.run.explain import TAKEN, all_but, divide_names, named
from suite.run.options import Options
from suite.run.process import limited

KEYS = (64, 256, 1024, 2048)
"""Numbers of keys whose sums are read."""

SECONDS = 20.0
"""Processor time to read one implementation."""

ALONE = "one query"
"""The column that compares one query in one sample with many."""

NOT_READ = "-"

HEAD = """# Orders of sums

An output is a sum over keys, and rounding depends on the order of the sum. Two implementations with equal
orders may give equal bits; with different orders they do not. The page shows in which order every
implementation adds, so that a reader knows where other bits come from.

    python -m suite order --backend=torch
    python -m suite order my_kernels.py:flash --backend=torch

One pair of values is 2^100 and -2^100, all others are 1, all weights are equal: what is lost beside 2^100
tells which values are added first (Xie et al., FPRev, USENIX ATC 2025). The tree of partial sums is known
exactly, and compared with known trees.

| name | order |
|---|---|
| `sequential` | one after the other |
| `from-last` | one after the other, from the last key |
| `pairwise` | neighbours, then pairs of neighbours |
| `halves` | the second half is added to the first, then the second quarter |
| `blocks-64` | blocks of 64 keys, which are added one after the other |
| `blocks-192-192-128` | blocks of these sizes in turn |
| `split-4` | four parts, whatever the number of keys (split keys) |
| `lanes-4` | four sums of every fourth key, which are added at the end |
| `at-once` | all keys lose their last bits together |
| `exact` | nothing is lost |
| `varies` | rows, components or calls differ |
| `unlike-any-known-tree` | another tree |

The orders are those of one machine: matrix products choose theirs by processor, library and size. The
last column says whether the sums of one query in one sample have the order of those of 16 queries in 2
samples (256 keys). The page is made by running, for implementations of plain attention in float32 on the
CPU:

    python -m suite order > docs/data/orders.md
"""


@dataclass(frozen=True)
class OrderOptions(Options):
    """The options of `order`; `function` and `implementation` are its arguments."""

    fixed = all_but(*TAKEN)

    json: bool = option("print the orders as JSON", switch=True)


def add_order_parser(commands: Any) -> None:
    """Add `order` to the subparsers of `argparse`; sets `run`."""
    parser = commands.add_parser(
        "order",
        help="in which order implementations add over keys: sequential, pairwise, blocks, split",
        description="Reveals the order in which values of keys are added, by pairs of huge opposite "
        "values. Without --backend: a page of all backends in Markdown.",
    )
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="an implementation (sdpa-flash) or PATH.py:NAME"
    )
    OrderOptions.declare(parser.add_argument)
    parser.set_defaults(run=_order)


def _order(arguments: argparse.Namespace) -> int:
    divide_names(arguments)
    options = OrderOptions.of_arguments(arguments)
    try:
        if not options.backend and not arguments.name:
            print(page(asked_apart(registry.installed(), "order", "--json")), end="")
            return 0
        options.check()
        limit_threads(options.threads)
        read: dict[str, dict[str, tuple[str, str]]] = {}
        for name, implementation in named(options, every=lambda one: one.operator.is_default):
            with limited(options.cell_timeout, f"reading {name}"):
                read[name] = orders(implementation)
    except (UsageError, BackendUnavailable, BrokenFramework, TimeOver) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({f"{options.backends[0]}:{name}": of for name, of in read.items()}))
    else:
        print("\n".join(table(read)))
    return 0


def orders(implementation: Implementation) -> dict[str, tuple[str, str]]:
    """The orders of an implementation's sums, each as a short name and in words: by the number of keys,
    and under `ALONE` for one query."""
    tool = Instrument(implementation, SECONDS)
    found = {}
    with leaks.undone(implementation.backend):
        for keys in KEYS:
            found[f"{keys} keys"] = _order_of(tool, keys)
        found[ALONE] = _alone(tool)
    return split(found)


def _order_of(tool: Instrument, keys: int) -> tuple[str, str]:
    inputs = order.drawn(tool.implementation, order.PROBE, keys)
    if inputs is None:
        return NOT_READ, ""
    try:
        name = order.read(tool.sums, inputs)
    except order.Unread:
        return NOT_READ, ""
    return name.name, name.text


def _alone(tool: Instrument) -> tuple[str, str]:
    many, one = (
        order.drawn(tool.implementation, probe, order.KEYS) for probe in (order.PROBE, order.ALONE)
    )
    if many is None or one is None or one.sizes.Lq >= many.sizes.Lq:
        return NOT_READ, ""
    try:
        same = order.alike(tool.sums, many, one)
    except order.Unread:
        return NOT_READ, ""
    return "same" if same else "another", ""


def split(found: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """The orders, in which blocks whose number is the same for all numbers of keys are parts of a
    split."""
    parts = {}
    for column, (name, _) in found.items():
        size = re.fullmatch(r"blocks-(\d+)", name)
        if size:
            parts[column] = -(-int(column.split()[0]) // int(size[1]))
    if len(parts) < 2 or len({*parts.values()}) > 1:
        return dict(found)
    changed = {}
    for column, count in parts.items():
        inside = found[column][1].partition(", each ")[2]
        changed[column] = (f"split-{count}", f"split in {count} parts, each {inside}")
    return {**found, **changed}


def table(read: Mapping[str, Mapping[str, tuple[str, str]]]) -> list[str]:
    """The lines of a table with a row for each implementation, and below it the orders in words."""
    columns = list(dict.fromkeys(column for of in read.values() for column in of))
    rows = [["", *columns]]
    rows += [[name, *(of[column][0] for column in columns)] for name, of in read.items()]
    words = dict.fromkeys(pair for of in read.values() for pair in of.values() if pair[1])
    legend = [[name, text] for name, text in words]
    lines = aligned(rows, [False] * len(rows[0]))
    return [*lines, "", *aligned(legend, [False, False])] if legend else lines


def page(read: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
    """The page in Markdown; implementations are called "torch:sdpa"."""
    columns = list(dict.fromkeys(column for of in read.values() for column in of))
    lines = [HEAD, f"| implementation | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, of in read.items():
        lines.append(f"| {name} | {' | '.join(of[column][0] for column in columns)} |")
    return "\n".join([*lines, ""])
