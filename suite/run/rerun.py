"""Rerun: the commands that judge a failing cell once more, or look for a smaller case like it."""

from __future__ import annotations

import shlex
from dataclasses import replace

from suite.records.cells import CellRecord
from suite.run.options import NAMES, Options
from suite.spec.text import printable
from suite.spec.vocabulary import SEARCHED


def rerun_command(node: str, options: Options) -> str:
    """The one-line command that judges just the cell of this test."""
    return shlex.join(["pytest", node, *NAMES.said(options.words())])


def search_command(cell: CellRecord, options: Options) -> str:
    """The command that looks for a smaller case than this failing one, and saves its script; "" where the
    search does not judge the check, or draws other values."""
    if cell.check not in SEARCHED or options.seed != Options.seed:
        return ""
    one = (cell.backend,) if len(options.backend) > 1 or "all" in options.backend else ()
    search_options = replace(
        options, backend=one or options.backend, mode=cell.mode, level=Options.level, audit=False
    )
    words = search_options.words()
    if not options.function:
        words.append(f"--implementation={cell.implementation}")
    script = f"{cell.check}-{cell.implementation.replace('@', '-')}.py"
    words += [f"--case={cell.case}", f"--script={script}"]
    return shlex.join(["python", "-m", "suite", "search", *words])


def failure_text(cell: CellRecord, node: str, options: Options) -> str:
    """A failing cell in full."""
    worst = "" if cell.error_ratio is None else f"\n  error ratio {cell.error_ratio:.3g}"
    return printable(
        f"{cell.status}: {cell.kind}\n"
        f"  case   {cell.case}\n"
        f"  check  {cell.check}, in {cell.backend}:{cell.implementation} "
        f"({cell.mode}, {cell.device}, numerics {cell.numerics}){worst}\n"
        f"  {cell.message}\n"
        f"  again: {rerun_command(node, options)}"
    )
