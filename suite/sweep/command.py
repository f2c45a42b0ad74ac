"""The command `sweep` of `attention-conformance`.

Exit codes:

- 0: every task is recorded and green
- 1: a cell has the status `fail`, `error` or `crash`, or a search found a failure
- 2: plan, folder or arguments are invalid
- 3: the sweep is unfinished; the same command continues the sweep
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import CommandOptions, number, option, whole
from attention_conformance.suite.run.options import shared
from attention_conformance.suite.spec.text import uncoloured


@dataclass(frozen=True)
class SweepOptions(CommandOptions):
    """Where a sweep is carried out, and for how long."""

    results: Path = shared(
        "results",
        help="the folder of records: a new one, or the folder of the sweep to continue",
        metavar="FOLDER",
        default=None,
        kind=Path,
        required=True,
    )
    cluster: str = option(
        "local (this machine, default), auto (the cluster of this machine), or ray://HOST:PORT",
        "WHERE",
        "local",
    )
    cores: int = option("cores for --cluster=local; 0 for all (default)", "N", 0, kind=whole)
    hours: float = option("end after H hours; 0 for no limit (default)", "H", 0.0, kind=number)

    def check(self) -> None:
        """Raise UsageError for invalid options, before a cluster is used."""
        where = self.cluster
        if where not in ("local", "auto") and not where.startswith("ray://"):
            raise UsageError(f"unknown cluster {where!r}; valid: local, auto, ray://HOST:PORT")
        if self.cores and where != "local":
            raise UsageError("--cores is only for --cluster=local: remove the option")
        for name in ("cores", "hours"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"--{name} must not be negative, got {value}")


def add_sweep_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `sweep PLAN.toml` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "sweep",
        help="many runs at once, on many machines: seeds, releases, searches",
        description="Runs a plan on Ray (docs/sweeps.md) and writes the records into a folder that "
        "reports read. The same command continues an unfinished sweep. Exit codes: 0 if every task is "
        "recorded and green, 1 on failures, 2 if arguments are invalid, 3 if the sweep is unfinished.",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is swept")
    SweepOptions.declare(parser.add_argument)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `sweep`; returns the exit code."""
    from attention_conformance.suite.sweep.cluster import Cluster
    from attention_conformance.suite.sweep.plan import load
    from attention_conformance.suite.sweep.run import UNFINISHED, USAGE, Sweep

    options = SweepOptions.of_arguments(arguments)
    try:
        options.check()
        sweep = Sweep(load(arguments.plan), options.results)
        compiled = options.results.resolve() / "compiled"
        with Cluster(options.cluster, options.cores, compiled) as cluster:
            return sweep.run(cluster, options.hours)
    except UsageError as error:
        print(uncoloured(str(error)), file=sys.stderr)
        return USAGE
    except (OSError, KeyboardInterrupt) as error:
        how = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else "interrupted"
        print(f"{how}\nthe sweep is unfinished; the same command continues it", file=sys.stderr)
        return UNFINISHED
