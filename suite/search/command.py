"""The command `search` of `python -m suite`.

Exit codes: 0 where nothing was found, 1 where something was, 2 where the arguments cannot be used.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.search.engine import Failure, Search, Summary

MISSING = (
    "the search draws with Hypothesis, which is not installed: "
    'pip install "attention-conformance[search]", or pip install hypothesis'
)

AXES = (
    "masks",
    "sizes",
    "dtypes",
    "heads",
    "biases",
    "scales",
    "softcaps",
    "recipes",
    "layouts",
    "forms",
)


def add_search_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `search` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "search",
        help="draw problems at random, judge them, and shrink what fails",
        description="Draws cases from the whole grammar, judges each as the checks `values` and "
        "`gradients` do, and shrinks every new way of failing to a minimal case with a script. "
        "Exit code 1 where something was found.",
    )
    parser.add_argument("--backend", metavar="NAME", required=True, help="as for pytest suite")
    parser.add_argument("--implementation", action="append", default=[], metavar="NAME")
    parser.add_argument("--function", action="append", default=[], metavar="PATH.py:NAME")
    parser.add_argument("--numerics", default="", metavar="CLASS", help="class of a --function")
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--mode", default="eager", help="as for pytest suite: eager (default), compiled, all"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="default 1, or as --examples asks"
    )
    parser.add_argument("--examples", type=int, metavar="N", help="cases to draw at most")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of what is drawn")
    parser.add_argument(
        "--gradients", action=argparse.BooleanOptionalAction, default=True,
        help="judge gradients, too, where an implementation has them (default)",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", type=int, metavar="N",
        help="draw from N sizes alone, 0 from all; default: few where every shape is compiled",
    )  # fmt: skip
    parser.add_argument(
        "--case", action="append", default=[], metavar="ID",
        help="judge this case instead of drawing; repeatable",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the id of every case drawn")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `search`; returns the exit code."""
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 2
    from backends.registry import UsageError
    from suite.plan import Options, Plan
    from suite.search.engine import Search
    from suite.spec.problem import Case

    try:
        if arguments.minutes is not None and not arguments.minutes > 0:
            raise UsageError(f"--minutes must be positive, got {arguments.minutes}")
        if arguments.examples is not None and arguments.examples < 1:
            raise UsageError(f"--examples must be positive, got {arguments.examples}")
        if arguments.shapes is not None and arguments.shapes < 0:
            raise UsageError(f"--shapes must not be negative, got {arguments.shapes}")
        try:
            cases = [Case.parse(text) for text in arguments.case]
        except ValueError as error:
            raise UsageError(str(error)) from error
        options = Options(
            backend=(arguments.backend,),
            implementation=tuple(arguments.implementation),
            device=arguments.device,
            dtype=tuple(arguments.dtype),
            function=tuple(arguments.function),
            numerics=arguments.numerics,
            mode=arguments.mode,
        )
        plan = Plan.make(options)
        search = Search(
            plan,
            arguments.seed,
            arguments.minutes,
            arguments.examples,
            arguments.gradients,
            arguments.shapes,
            found=lambda failure: print(found_text(search, failure), flush=True),
            drawn=lambda case: print(case.id) if arguments.list else None,
        )
        if not search.implementations:
            names = ", ".join(map(str, plan.implementations))
            raise UsageError(
                f"nothing to search: {names} compute layers, and cases of sdpa are drawn"
            )
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    summary = search.judge_these(cases) if cases else search.run()
    print(summary_text(summary, search))
    if summary.failures:
        return 1
    return 0 if summary.statuses["pass"] + summary.statuses["known"] else 2


def found_text(search: Search, failure: Failure) -> str:
    """A failure for people: the minimal case, how to judge it again, and the script."""
    from suite.search.script import NoScript, script

    case, check = failure.case, failure.check
    options = search.plan.options
    who = [f"--backend={name}" for name in options.backend]
    who += [f"--function={shlex.quote(text)}" for text in options.function]
    who += [f"--numerics={options.numerics}"] if options.numerics else []
    compiled = failure.implementation.mode == "compiled"
    who += ["--mode=compiled"] if compiled else []
    if failure.implementation not in search.plan.functions:
        who.append(f"--implementation={failure.implementation.name}")
    module = check.function.__module__.replace(".", "/")
    node = f"{module}.py::test_{check.name}[{failure.implementation}/{case.id}]"
    if compiled:
        home = f"compiled_catalogue.{'GRADIENTS' if check.name == 'gradients' else 'DESIGNED'}"
    else:
        home = "gradient_catalogue.DESIGNED" if check.name == "gradients" else "catalogue._designed"
    how = "shrunk from" if failure.shrunk else "as drawn, time was over before it was shrunk:"
    lines = [
        f"\n{failure.verdict.status}: {failure.verdict.kind}, {check.name} of {failure.implementation}",
        f"  case    {case.id}",
        f"  drawn   example {failure.example}, {how} {failure.drawn.id}",
        f"  {failure.verdict.message}",
        f"  again   python -m suite search {' '.join(who)} --case={case.id}",
        f"          python -m suite describe {case.id}",
        f"  to keep paste the id into suite.spec.{home}, then",
        f"          pytest {shlex.quote(node)} {' '.join(who)} --level=full",
    ]
    if not failure.repeats:
        lines.append(
            "  It did not fail when it was judged once more: something is not deterministic."
        )
    try:
        cell = check.cell(check, case, failure.implementation, options.seed)
        text = script(cell, failure.verdict)
        lines += ["  alone, without this project:", "", *text.splitlines()]
    except NoScript as reason:
        lines.append(f"  script  none: {reason}")
    except Exception as error:
        lines.append(f"  script  none: {type(error).__name__} while it was written: {error}")
    return "\n".join(lines)


def summary_text(summary: Summary, search: Search) -> str:
    """What was drawn and what came of it."""
    names = ", ".join(map(str, search.implementations))
    counts = summary.statuses
    order = ("pass", "unsupported", "known", "like known", "fail", "error")
    cells = ", ".join(f"{counts[name]} {name}" for name in order)
    rate = summary.examples / summary.seconds if summary.seconds else 0.0
    lines = [
        f"\nseed {summary.seed}: {summary.examples} examples in {summary.seconds:.0f} s, "
        f"{rate:.1f} a second, of {names}",
        f"  cells     {cells}; {summary.shrinking} more to shrink failures",
        "  distinct  " + ", ".join(f"{len(summary.axes.get(n, ()))} {n}" for n in AXES),
        f"  digest    {summary.digest} of the ids in order",
    ]
    if search.pool:
        lines.append(
            f"  sizes     from {len(search.pool)}, since every new one is compiled (--shapes)"
        )
    for found in summary.alike.values():
        lines.append(
            f"  like known, {found.times} times: {found.implementation} {found.case.id}\n"
            f"            {found.source}: {found.cause}"
        )
    for failure in summary.failures:
        lines.append(
            f"  found {failure.times} times: {failure.verdict.kind}, {failure.check.name} of "
            f"{failure.implementation}: {failure.case.id}"
        )
    if not summary.failures:
        lines.append("  nothing found")
    return "\n".join(lines)
