"""The command `search` of `attention-conformance`, and its options.

Exit codes: 0 no failure was found; 1 a failure was found, or the search process died; 2 the arguments
cannot be used, or no cell passed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import number, option, whole
from attention_conformance.suite.records.searches import FoundRecord
from attention_conformance.suite.run.options import Options, shared

MISSING = (
    "the search draws with Hypothesis, which is not installed: "
    'pip install "attention-conformance[search]", or pip install hypothesis'
)

_limit = partial(option, metavar="N", default=None, for_rerun=False)


@dataclass(frozen=True)
class SearchOptions(Options):
    """The options of a search. `seed` draws the cases; `minutes` and `examples` end the search."""

    fixed = ("level", "shard", "audit", "allow_refusals")

    cell_timeout: float = shared("cell-timeout", default=60.0)
    seed: int = shared("seed", help="seed that draws the cases")
    minutes: float | None = _limit("greatest time; default 1, or none with --examples", kind=number)
    examples: int | None = _limit("greatest number of cases", kind=whole)
    gradients: bool = option(
        "also judge gradients (default)", default=True, switch=True, for_rerun=False
    )
    script: str = option(
        "save the script of the first failure in this new file", "FILE.py", for_rerun=False
    )
    case: tuple[str, ...] = shared(
        "case",
        help="judge this case instead of drawing, and shrink it if it fails; repeatable",
        for_rerun=False,
    )
    results: str = shared("results", help="write the failures to this new file", for_rerun=False)

    def check(self) -> None:
        """Raise UsageError for invalid options. Imports no framework."""
        super().check()
        for name in ("minutes", "examples"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"--{name} must be positive, got {value}")
        for name in ("script", "results"):
            if (path := getattr(self, name)) and Path(path).exists():
                raise UsageError(f"--{name}={path} exists; name a new file")


def add_search_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `search` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "search",
        help="draw cases at random, judge them, and shrink failures",
        description="Draws cases of every implemented operator, judges each by the checks `values` and "
        "`gradients`, and shrinks every new kind of failure to a minimal case with a script. Exit code 1 "
        "if a failure was found.",
    )
    SearchOptions.declare(parser.add_argument)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `search` in a child process; returns the exit code, even if a kernel kills that process."""
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 2
    from attention_conformance.suite.run.process import can_fork, supervised
    from attention_conformance.suite.search.engine import search, write

    options = SearchOptions.of_arguments(arguments)
    if not can_fork():
        return search(options)
    advice = "`attention-conformance search --case=ID`, with the id above, judges that case alone"
    code, said = supervised(lambda board: search(options, board), advice)
    if options.results and "code" not in said and "judging" in said:
        write(options, [FoundRecord(**said["judging"])])
    return code
