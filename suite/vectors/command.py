"""The commands `vectors` and `vectors judge`. `docs/vectors.md` has their exit codes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from attention_conformance.suite.vectors.options import JudgeOptions, Selection


def add_vectors_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `vectors` to the subparsers of `argparse`; sets `run`."""
    about = "cases, expected values and bounds as files, for runtimes in other languages; `vectors judge`"
    parser = subparsers.add_parser("vectors", help=f"{about} judges their answers")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="a new or empty folder")
    Selection.declare(parser.add_argument)
    parser.set_defaults(run=run, answers=None)
    judge = parser.add_subparsers(metavar="judge").add_parser(
        "judge", help="judge a folder of answers by the checks of `pytest suite`"
    )
    judge.add_argument("answers", type=Path, metavar="ANSWERS", help="a folder of answers")
    JudgeOptions.declare(judge.add_argument)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command `vectors` or `vectors judge`, and return its exit code."""
    try:
        from attention_conformance.suite.vectors.export import VectorsError, export
        from attention_conformance.suite.vectors.judge import UsageError, judge_answers
    except ImportError as error:
        print(f'{error}; pip install "attention-conformance[vectors]"', file=sys.stderr)
        return 2
    try:
        if arguments.answers is not None:
            return judge_answers(arguments.answers, JudgeOptions.from_arguments(arguments))
        if arguments.output is None:
            raise VectorsError("name a new or empty folder for the vectors: --output=FOLDER")
        print(export(Selection.from_arguments(arguments), arguments.output))
    except (OSError, UsageError, VectorsError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
