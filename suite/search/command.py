"""The command `search` of `attention-conformance`.

Exit codes: 0 no failure was found; 1 a failure was found, or the search process died; 2 the arguments
cannot be used, or no cell passed.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.records import machine, searches
from attention_conformance.suite.records.files import write_new
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.search.options import UNSTORED, SearchOptions
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN

if TYPE_CHECKING:
    from attention_conformance.suite.judge.cell import Cell
    from attention_conformance.suite.run.process import Board
    from attention_conformance.suite.search.engine import Search
    from attention_conformance.suite.search.failures import Failure, Summary

MISSING = (
    "the search draws with Hypothesis, which is not installed: "
    'pip install "attention-conformance[search]", or pip install hypothesis'
)


def add_search_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `search` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "search",
        help="draw cases at random, judge them, and shrink failures",
        description="Draws cases of every implemented operator from the whole grammar, judges each by "
        "the checks `values` and `gradients`, and shrinks every new kind of failure to a minimal case "
        "with a script. Exit code 1 if a failure was found.",
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
        crash = FoundRecord(
            **said["judging"], kind="crash", said=how, status="crash", message=how, repeats=False
        )
        write(options, [crash])
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
        try:
            cases = [Case.parse(text) for text in options.case]
        except ValueError as error:
            raise UsageError(str(error)) from error
        limit_threads(options.threads)
        # options.seed draws the cases; their values are drawn with the seed of `pytest suite`.
        plan = Plan.make(replace(options, seed=Options.seed))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2

    def announce(cell: Cell) -> None:
        if board is not None:
            who, check, case = str(cell.implementation), cell.check.name, cell.case.id
            judging = {"implementation": who, "check": check, "dtype": cell.dtype.name}
            board.say(
                cell=f"{check} of {who}: {case}", judged=engine.judged - 1,
                judging=judging | {"case": case, "drawn": case},
            )  # fmt: skip

    engine = Search(
        plan,
        options.seed,
        options.minutes,
        options.examples,
        options.gradients,
        options.shapes,
        found=lambda failure: tell(engine, failure, options.script),
        drawn=lambda case: print(case.id) if options.list else None,
        judging=announce,
    )
    unwatch = leaks.watch()
    try:
        summary = engine.judge_these(cases) if cases else engine.run()
    finally:
        unwatch()
    print(summary_text(summary, engine))
    if options.results:
        found = [found_record(engine, failure) for failure in summary.failures]
        write(options, found, summary, plan.versions)
    if summary.failures:
        return 1
    return 0 if summary.statuses["pass"] + summary.statuses["known"] else 2


def tell(search: Search, failure: Failure, script: str) -> None:
    """Print a failure. Save its script, if `script` names a file, as `script` or, if that file exists, as
    SCRIPT-2.py, SCRIPT-3.py, ..."""
    print(found_text(search, failure))
    text, why = script_of(search, failure)
    if why:
        print(f"  script  none: {why}", flush=True)
        return
    print(f"  alone, without this project:\n\n{text.rstrip()}", flush=True)
    if not script:
        return
    path = Path(script)
    names = (path.with_stem(f"{path.stem}-{n}") for n in itertools.count(2))
    free = next(name for name in itertools.chain([path], names) if not name.exists())
    try:
        write_new(free, text)
    except OSError as error:
        print(f"  script  not saved: {error}", file=sys.stderr, flush=True)
    else:
        print(f"  saved   {free}", flush=True)


def script_of(search: Search, failure: Failure) -> tuple[str, str]:
    """The script of a failure and "", or "" and the reason why there is no script."""
    from attention_conformance.suite.judge.cell import Cell
    from attention_conformance.suite.run.script import NoScript, script

    cell = Cell(failure.check, failure.case, failure.implementation, search.plan.options.seed)
    try:
        return script(cell, failure.verdict), ""
    except NoScript as reason:
        return "", str(reason)
    except Exception as error:
        return "", f"{type(error).__name__} while it was written: {error}"


def found_record(search: Search, failure: Failure) -> FoundRecord:
    """The record of a failure."""
    implementation, check, kind, dtype, said = failure.key
    return FoundRecord(
        implementation, check, kind, dtype, said, failure.verdict.status, failure.case.id,
        failure.drawn.id, printable(failure.verdict.message), failure.times, failure.repeats,
        script_of(search, failure)[0],
    )  # fmt: skip


def write(
    options: SearchOptions,
    found: Sequence[FoundRecord],
    summary: Summary | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the records of a search. Without a summary the search process died."""
    header = SearchHeader(
        **machine.origin(), versions=dict(versions or {}),
        options={n: value for n, value in asdict(options).items() if n not in UNSTORED},
    )  # fmt: skip
    if summary is not None:
        header = replace(
            header, examples=summary.examples, statuses=dict(summary.statuses),
            seconds=round(summary.seconds, 3), digest=summary.digest,
        )  # fmt: skip
    file = searches.writer(options.results, header)
    for record in found:
        file.write(record)
    file.close()


def found_text(search: Search, failure: Failure) -> str:
    """The text of a failure: the minimal case, and the commands that judge it again."""
    case, check, implementation = failure.case, failure.check, failure.implementation
    words = replace(search.plan.options, mode=implementation.mode).command_line()
    if implementation not in search.plan.functions:
        words.append(f"--implementation={implementation.name}")
    who = " ".join(map(shlex.quote, words))
    module = check.function.__module__.replace(".", "/")
    node = f"{module}.py::test_{check.name}[{implementation}/{case.id}]"
    home = {"values": "cases", "gradients": "gradients"}[check.name]
    if implementation.mode == "compiled":
        home = {"cases": "compiled"}.get(home, f"compiled_{home}")
    how = "shrunk from" if failure.shrunk else "not shrunk, time was over:"
    lines = [
        f"\n{failure.verdict.status}: {failure.verdict.kind}, {check.name} of {implementation}",
        f"  case    {case.id}",
        f"  drawn   example {failure.example}, {how} {failure.drawn.id}",
        f"  {failure.verdict.message}",
        f"  again   attention-conformance search {who} --case={case.id}",
        f"          attention-conformance describe {case.id}",
        f"  to keep paste the id into `{home}` of suite/spec/operators/{case.operator.module}.py, then",
        f"          pytest {shlex.quote(node)} {who} --level=full",
    ]
    if not failure.repeats:
        lines.append(
            "  The case passed when it was judged again: the implementation is not deterministic."
        )
    return "\n".join(lines)


def summary_text(summary: Summary, search: Search) -> str:
    """The text of a summary: examples, cells by status, failures."""
    names = ", ".join(map(str, search.implementations))
    counts = summary.statuses
    order = ("pass", "unsupported", "known", "like known", *BROKEN)
    cells = ", ".join(f"{counts[name]} {name}" for name in order)
    rate = summary.examples / summary.seconds if summary.seconds else 0.0
    lines = [
        f"\nseed {summary.seed}: {summary.examples} examples in {summary.seconds:.0f} s, "
        f"{rate:.1f} a second, of {names}",
        f"  cells     {cells}; {summary.shrinking} more to shrink failures",
        "  distinct  " + ", ".join(f"{len(values)} {n}" for n, values in summary.axes.items()),
        f"  digest    {summary.digest} of the ids in order",
    ]
    if search.pools:
        count = max(len(pool) for pool in search.pools.values())
        lines.append(
            f"  sizes     {count} of each operator, because each new size is compiled (--shapes)"
        )
    for like in summary.alike.values():
        lines.append(
            f"  like known, {like.times} times: {like.implementation} {like.case.id}\n"
            f"            {like.source}: {like.cause}"
        )
    for failure in summary.failures:
        lines.append(
            f"  found {failure.times} times: {failure.verdict.kind}, {failure.check.name} of "
            f"{failure.implementation}: {failure.case.id}"
        )
    if not summary.failures:
        lines.append("  nothing found")
    return "\n".join(lines)
