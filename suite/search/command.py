"""The command `search` of `attention-conformance`.

Exit codes: 0 no failure was found; 1 a failure was found, or the search process died; 2 the arguments
cannot be used, or no cell passed.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.records import machine, searches
from attention_conformance.suite.records.files import write_new
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN

if TYPE_CHECKING:
    from attention_conformance.suite.judge.cell import Cell
    from attention_conformance.suite.run.process import Board
    from attention_conformance.suite.search.engine import Failure, Search

MISSING = (
    "the search draws with Hypothesis, which is not installed: "
    'pip install "attention-conformance[search]", or pip install hypothesis'
)


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

    options = SearchOptions.of_arguments(arguments)
    if not can_fork():
        return search(options)
    advice = "`attention-conformance search --case=ID`, with the id above, judges that case alone"
    code, said = supervised(lambda board: search(options, board), advice)
    if options.results and "code" not in said and "judging" in said:
        how = "the process that judged this cell died"
        of_crash: Any = {"kind": "crash", "said": how, "status": "crash", "message": how}
        write(options, [FoundRecord(**said["judging"], **of_crash, repeats=False)])
    return code


def search(options: SearchOptions, board: Board | None = None) -> int:
    """Search in this process, and write the cell being judged to `board`; returns the exit code."""
    from attention_conformance.backends.registry import UsageError
    from attention_conformance.backends.threads import limit_threads
    from attention_conformance.suite.judge import leaks
    from attention_conformance.suite.run.plan import Plan
    from attention_conformance.suite.search.engine import Search
    from attention_conformance.suite.spec.case import Case

    try:
        options.check()
        cases = [Case.parse(text) for text in options.case]
        limit_threads(options.threads)
        # options.seed draws the cases; their values are drawn with the seed of `pytest suite`.
        plan = Plan.make(replace(options, seed=Options.seed))
    except (UsageError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    found: list[FoundRecord] = []

    def judging(cell: Cell) -> None:
        if board is not None:
            names = {"implementation": str(cell.implementation), "check": cell.check.name}
            judged = names | {"dtype": cell.dtype.name, "case": cell.case.id, "drawn": cell.case.id}
            text = f"{cell.check.name} of {cell.implementation}: {cell.case.id}"
            board.say(cell=text, judged=engine.judged - 1, judging=judged)

    engine = Search(plan, options, lambda failure: found.append(tell(engine, failure)), judging)
    unwatch = leaks.watch()
    try:
        engine.judge_these(cases) if cases else engine.run()
    finally:
        unwatch()
    print(summary(engine))
    if options.results:
        write(options, found, engine)
    return 1 if found else 0 if engine.statuses["pass"] + engine.statuses["known"] else 2


def tell(search: Search, failure: Failure) -> FoundRecord:
    """Print a failure, save its script if --script names a file, and return its record."""
    from attention_conformance.suite.run.script import script

    cell, verdict = failure.cell, failure.verdict
    options = replace(search.plan.options, mode=cell.implementation.mode)
    words = options.command_line()
    if cell.implementation not in search.plan.functions:
        words.append(f"--implementation={cell.implementation.name}")
    once = "" if failure.repeats else "\n  passes when it is judged again: it is not deterministic"
    print(
        f"\n{verdict.status}: {verdict.kind}, {cell.check.name} of {cell.implementation}\n"
        f"  case    {cell.case.id}\n  drawn   shrunk from {failure.drawn.id}\n  {verdict.message}\n"
        f"  again   attention-conformance search {shlex.join([*words, f'--case={cell.case.id}'])}\n"
        f"          attention-conformance describe {cell.case.id}{once}"
    )
    text = ""
    try:
        text = script(cell, verdict)
        print(f"  as a script:\n\n{text.rstrip()}")
    except Exception as error:  # NoScript says why there is none
        print(f"  script  none: {error}")
    path = Path(search.options.script)
    if text and search.options.script:
        saved = not path.exists()
        if saved:
            write_new(path, text)
        print(f"  saved   {path}" if saved else f"  script  not saved: {path} exists")
    sys.stdout.flush()
    return FoundRecord(
        *failure.cause, verdict.status, cell.case.id, failure.drawn.id, printable(verdict.message),
        failure.times, failure.repeats, text,
    )  # fmt: skip


def write(
    options: SearchOptions, found: Sequence[FoundRecord], search: Search | None = None
) -> None:
    """Write the records of a search. Without `search` its process died."""
    asked = {n: v for n, v in asdict(options).items() if n not in ("script", "case", "results")}
    header = SearchHeader(**machine.origin(), options=asked)
    if search is not None:
        times = {failure.cause: failure.times for failure in search.failures.values()}
        found = [replace(record, times=times[record.cause]) for record in found]
        header = replace(
            header, versions=search.plan.versions, examples=len(search.seen),
            statuses=dict(search.statuses), seconds=round(search.seconds, 3), digest=digest(search),
        )  # fmt: skip
    file = searches.writer(options.results, header)
    for record in found:
        file.write(record)
    file.close()


def digest(search: Search) -> str:
    """A digest of the ids of the cases, in order."""
    return hashlib.sha256("\n".join(search.seen).encode()).hexdigest()[:12]


def summary(search: Search) -> str:
    """The text of a search that ended: examples, cells by status, failures."""
    names = ", ".join(map(str, search.plan.implementations))
    began = f"seed {search.options.seed}: {len(search.seen)} examples in {search.seconds:.0f} s"
    order = ("pass", "unsupported", "known", "like known", *BROKEN)
    lines = [
        f"\n{began}, of {names}",
        "  cells     " + ", ".join(f"{search.statuses[name]} {name}" for name in order),
        f"  digest    {digest(search)} of the ids in order",
    ]
    lines += [f"  like known, {times} times: {entry}" for entry, times in search.alike.items()]
    lines += [
        f"  found {one.times} times: {one.verdict.kind}, {one.cell.check.name} of "
        f"{one.cell.implementation}: {one.cell.case.id}"
        for one in search.failures.values()
    ]
    return "\n".join(lines if search.failures else [*lines, "  nothing found"])
