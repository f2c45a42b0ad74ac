"""The command `vectors` of `attention-conformance`, and `vectors judge`.

Exit codes:

    0  the vectors were made; or some answers pass and none fails
    1  an answer fails, or none passes
    2  arguments, vectors or answers cannot be used
    6  no answer fails, but too little was judged (`suite.records.coverage`)
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.spec.vocabulary import BROKEN, STATUSES
from attention_conformance.suite.vectors.options import ExportOptions, JudgeOptions

if TYPE_CHECKING:
    from attention_conformance.suite.records.cells import CellRecord, Run
    from attention_conformance.suite.vectors.judge import StoredPlan

MISSING = (
    "vectors are safetensors files, and safetensors or ml_dtypes is not installed: "
    'pip install "attention-conformance[vectors]", or pip install safetensors ml_dtypes'
)


def add_vectors_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `vectors` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "vectors",
        help="cases, expected values and bounds as files, for runtimes in other languages; `vectors "
        "judge` judges their answers",
        description="Writes the cases of a level as safetensors files with a JSON index "
        "(docs/vectors.md).",
    )
    ExportOptions.declare(parser.add_argument)
    parser.set_defaults(run=make)
    actions = parser.add_subparsers(metavar="judge")
    judge = actions.add_parser(
        "judge",
        help="judge a folder of answers",
        description="Judges a folder of answers to vectors by the checks of `pytest suite`.",
    )
    judge.add_argument("answers", type=Path, metavar="ANSWERS", help="a folder of answers")
    JudgeOptions.declare(judge.add_argument)
    judge.set_defaults(run=judge_answers)
    return parser


def make(arguments: argparse.Namespace) -> int:
    """Write vectors; returns the exit code."""
    if not _installed():
        return 2
    from attention_conformance.suite.vectors.export import export
    from attention_conformance.suite.vectors.index import VectorsError

    options = ExportOptions.of_arguments(arguments)
    if options.output is None:
        print("name a new or empty folder for the vectors: --output=FOLDER", file=sys.stderr)
        return 2
    try:
        index = export(options, options.output, progress("vectors"))
    except (OSError, VectorsError) as error:
        print(error, file=sys.stderr)
        return 2
    size = sum((options.output / entry.file).stat().st_size for entry in index.cases)
    print(
        f"{len(index.cases)} cases, {size / 1e6:.1f} MB, in {options.output}; digest "
        f"{index.digest[:12]}"
    )
    return 0


def judge_answers(arguments: argparse.Namespace) -> int:
    """Judge a folder of answers; returns the exit code."""
    if not _installed():
        return 2
    from attention_conformance.backends.registry import UsageError
    from attention_conformance.suite.records import cells as records
    from attention_conformance.suite.records.coverage import NOT_JUDGED_ENOUGH, shortfalls
    from attention_conformance.suite.records.files import new_file
    from attention_conformance.suite.vectors.index import VectorsError
    from attention_conformance.suite.vectors.judge import judged, plan_of

    options = JudgeOptions.of_arguments(arguments)
    try:
        plan = plan_of(arguments.answers, options)
        file = new_file(options.results) if options.results else None
    except (OSError, UsageError, VectorsError) as error:
        print(error, file=sys.stderr)
        return 2
    head = plan.header()
    writer = None if file is None else records.writer(options.results, head, file)
    said_of, cells = progress(plan.options.backend[0]), []
    for one in judged(plan):
        cells.append(one)
        if writer is not None:
            writer.write(one)
        said_of(one.seconds, head.cells)
    run = records.Run(head, tuple(cells))
    if writer is not None:
        writer.close()
    missing = shortfalls(run.cells, (), filtered=plan.filtered)
    said = [
        *lines(run, plan, arguments.answers, options, missing),
        *(f"not judged enough: {t}" for t in missing),
    ]
    print("\n".join(said))
    return exit_code(run) or (NOT_JUDGED_ENOUGH if missing else 0)


def progress(name: str) -> Callable[[float, int], None]:
    """A function `step(seconds, steps)` to call after each of `steps` steps. The function prints the
    remaining time now and then."""
    from attention_conformance.suite.run.progress import EVERY, Progress

    shown = Progress(EVERY[sys.stderr.isatty()])

    def step(seconds: float, steps: int) -> None:
        shown.owe({name: steps})
        if line := shown.take(name, seconds):
            print(line, file=sys.stderr)

    return step


def exit_code(run: Run) -> int:
    """0 if some cells pass and none fails, else 1."""
    return int(not run.totals["pass"] or any(run.totals[status] for status in BROKEN))


def lines(
    run: Run, plan: StoredPlan, answers: Path, options: JudgeOptions, missing: Sequence[str]
) -> Iterator[str]:
    """The printed lines of a run over stored answers: verdict, failures by group, facts, counts.
    `missing` are the reasons if too little was judged."""
    from attention_conformance.suite.report import explanation, frames, summary
    from attention_conformance.suite.run.terminal import IN_FULL, MOST, why

    def commands(cell: CellRecord) -> Mapping[str, str]:
        return {"again": rerun_command(answers, replace(options, case=(cell.case,)))}

    cells = frames.cells(run)
    groups = explanation.groups(cells)
    most, full = (len(groups),) * 2 if options.verbose else (MOST, IN_FULL)
    yield from summary.tables(cells) if options.verbose else summary.statuses(cells)
    yield summary.verdict(run, missing)
    yield from why(run, groups, most, commands, full)
    yield from ("", *summary.facts(cells, {}), *([] if options.verbose else [summary.HIDDEN]))
    counts = ", ".join(f"{run.totals[name]} {name}" for name in STATUSES if run.totals[name])
    yield f"\n{plan.title}: {counts or 'no cell'}"
    if not run.totals["pass"]:
        yield "no cell passed: the run fails"
    if options.results:
        yield f"records: {options.results}"


def rerun_command(answers: Path, options: JudgeOptions) -> str:
    """The command that judges answers again."""
    return shlex.join(
        ["attention-conformance", "vectors", "judge", str(answers), *options.command_line()]
    )


def _installed() -> bool:
    try:
        import ml_dtypes  # noqa: F401
        import safetensors  # noqa: F401
    except ImportError:
        print(MISSING, file=sys.stderr)
        return False
    return True
