"""The commands `vectors` and `vectors judge`. `docs/vectors.md` has their exit codes."""

from __future__ import annotations

import sys

from attention_conformance.suite.vectors.options import JudgeOptions, Selection, VectorsOptions


def run(options: VectorsOptions) -> int:
    """Run the command `vectors`, and return its exit code."""
    return _run(options)


def judge(options: JudgeOptions) -> int:
    """Run the command `vectors judge`, and return its exit code."""
    return _run(options)


def _run(options: VectorsOptions | JudgeOptions) -> int:
    try:
        from attention_conformance.suite.vectors.export import VectorsError, export
        from attention_conformance.suite.vectors.judge import UsageError, judge_answers
    except ImportError as error:
        print(f'{error}; pip install "attention-conformance[vectors]"', file=sys.stderr)
        return 2
    try:
        if isinstance(options, JudgeOptions):
            return judge_answers(options.answers, options)
        if options.output is None:
            raise VectorsError("name a new or empty folder for the vectors: --output=FOLDER")
        print(export(Selection.from_lookup(vars(options).get), options.output))
    except (OSError, UsageError, VectorsError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
