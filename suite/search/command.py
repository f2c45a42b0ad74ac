"""The command `search` of `attention-conformance`.

Exit codes: 0 no failure was found; 1 a failure was found, or the search process died; 2 the arguments
cannot be used, or no cell passed.
"""

from __future__ import annotations

import argparse
from typing import Any

from attention_conformance.suite.records.searches import FoundRecord
from attention_conformance.suite.search.options import SearchOptions


def add_search_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `search` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "search",
        help="draw cases at random, judge them, and shrink failures",
        description="Draws cases of every implemented operator, judges each by the checks `values` and "
        "`gradients`, and shrinks every new kind of failure to a minimal case with a script.",
    )
    SearchOptions.declare(parser.add_argument)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command `search` in a fork of this process, and return its exit code. If the fork dies, the
    failure is still written to the results. Without forks the search runs in this process."""
    from attention_conformance.suite.run.process import can_fork, run_in_fork
    from attention_conformance.suite.search.engine import search, write

    options = SearchOptions.from_arguments(arguments)
    if not can_fork():
        return search(options)
    advice = "`attention-conformance search --case=ID`, with the id above, judges that case alone"
    code, facts = run_in_fork(lambda board: search(options, board), advice)
    if options.results and "code" not in facts and "judging" in facts:
        write(options, [FoundRecord(**facts["judging"])])
    return code
