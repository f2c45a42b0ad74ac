"""Command line: `attention-conformance COMMAND`: list, describe, explain, search, sweep,
bench, releases, report, diff, expect, findings, elections, mutants, and vectors."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.measure.command import add_bench_parser
from attention_conformance.suite.measure.releases import add_releases_parser
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.commands import PARTIAL, add_diff_parser, add_report_parser
from attention_conformance.suite.run.elections import add_elections_parser
from attention_conformance.suite.run.explain import add_explain_parser
from attention_conformance.suite.run.options import shared
from attention_conformance.suite.search.command import add_search_parser
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import (
    AnyCase,
    Selection,
    everything,
    find,
    original_of,
)
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.levels import POSTPONED
from attention_conformance.suite.spec.operators import WORDS
from attention_conformance.suite.spec.text import printable_output
from attention_conformance.suite.spec.vocabulary import KINDS, LEVELS, NUMERICS, STATUSES
from attention_conformance.suite.sweep import add_sweep_parser
from attention_conformance.suite.vectors.command import add_vectors_parser

CATALOGUE = "attention_conformance.suite.deviations:mutants"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. `arguments`: the words after the program's name, by
    default those of this process. Usage errors, and records that cannot be written, give the code 2."""
    with printable_output():
        chosen = parsed(arguments)
        try:
            return chosen.run(chosen)
        except RecordError as error:
            print(error, file=sys.stderr)
            return 2


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line. The attribute `run` of the result is the function that runs the command.
    Exits for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="attention-conformance",
        description="Attention conformance: cases, search, reports, expectations, the kill table. "
        "Implementations are judged with `pytest suite --backend=NAME`.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_list(commands)
    _add_describe(commands)
    _add_expect(commands)
    _add_findings(commands)
    add_elections_parser(commands)
    add_explain_parser(commands)
    _add_mutants(commands)
    add_search_parser(commands)
    add_vectors_parser(commands)
    add_sweep_parser(commands)
    add_bench_parser(commands)
    add_releases_parser(commands)
    add_report_parser(commands)
    add_diff_parser(commands)
    # Ends the process if a shell asks for completions.
    with contextlib.suppress(ImportError):
        importlib.import_module("argcomplete").autocomplete(parser)
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        # The command's own parser says so: it knows with which code a wrong option ends.
        commands.choices[chosen.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return chosen


@dataclass(frozen=True)
class ListOptions(CommandOptions):
    """The options of `list`."""

    level: str = shared("level", checked=True)
    checks: bool = option("list the checks and what they promise", switch=True)
    words: bool = option(
        "list the words of declarations: features, questions with their answers, classes",
        switch=True,
    )
    why: str = option("say which checks ask a case, since which level, and why", "ID")


def _add_list(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("list", help="the ids of the cases of a level")
    ListOptions.declare(parser.add_argument)
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    from attention_conformance.suite.checks import all_checks

    if arguments.why:
        try:
            print(_why(find(arguments.why)))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    if arguments.words:
        print(_words_text())
        return 0
    if arguments.checks:
        for check in all_checks().values():
            text = check.function.__doc__ or sys.modules[check.function.__module__].__doc__ or ""
            count = len(list(check.cases(arguments.level)))
            print(f"{check.name:28} {count:5} cases  {' '.join(text.split())}")
        return 0
    ids_of_checks = (
        case.id for check in all_checks().values() for case in check.cases(arguments.level)
    )
    ids = [case.id for case in everything(arguments.level)]
    print("\n".join(dict.fromkeys([*ids, *ids_of_checks])))
    return 0


def _why(wanted: AnyCase) -> str:
    """Returns the text of `list --why`: the checks of a case, the first level of each, and the
    reasons."""
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.check import cases_at

    lines, operators = [wanted.id], _operator_names(wanted)
    for check in all_checks().values():
        for name, cases in ((check.name, check.cases), (f"{check.name}, compiled", check.compiled)):
            listed = ((n, case) for n in LEVELS if cases for case in cases_at(n, cases, operators))
            level, case = next((x for x in listed if x[1].id == wanted.id), ("", wanted))
            if level:
                reasons = cases.why(level, operators) if isinstance(cases, Selection) else {}
                reason = reasons[case] if isinstance(case, Case) else case.why
                lines.append(f"  {name:28} since {level:9} {reason}")
    lines += [] if len(lines) > 1 else [f"  {_unlisted(wanted)}"]
    lines += ["Implementations that say so are asked later:"]
    return "\n".join([*lines, *(f"  {what:28} {reason}" for what, reason in POSTPONED.items())])


def _unlisted(case: AnyCase) -> str:
    """Returns a text for a case that no check lists: how it can still be judged."""
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.check import cases_at

    checks, operators = all_checks().values(), _operator_names(case)
    cases = (x for check in checks for x in cases_at("full", check.cases, operators))
    replaced_id = original_of(case, cases)
    if replaced_id is None:
        return "no check asks it: --case of search and bench does"
    return f"asked in place of {replaced_id}, if a function's signature or claims exclude that case"


def _operator_names(case: AnyCase) -> list[str]:
    """Returns the operator of a case, whose other cases are then computed alone; [] for cases that no
    level has to compute."""
    return [case.operator.name] if isinstance(case, Case) else []


def _words_text() -> str:
    """Returns the text of `list --words`: every word of declarations and claims, with its meaning."""
    tables = {
        "features": WORDS,
        "elections": {q.name: f"{q.text}: {' | '.join(q.options)}" for q in QUESTIONS.values()},
        "numerics classes, from the narrowest bound to the widest": dict.fromkeys(NUMERICS, ""),
        "dtypes": {name: fmt.long_name for name, fmt in DTYPES.items()},
        "claims of a person's function": {name: claim.text for name, claim in CLAIMS.items()},
        "statuses": dict.fromkeys(STATUSES, ""),
        "kinds of failures": KINDS,
    }
    lines = []
    for title, words in tables.items():
        width = max(map(len, words))
        lines += [title, *(f"  {word:{width}}  {text}".rstrip() for word, text in words.items())]
        lines.append("")
    return "\n".join(lines[:-1])


def _add_describe(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("describe", help="what a case asks, in words and numbers")
    parser.add_argument("case", nargs="+", help="a case id")
    parser.set_defaults(run=_describe)


def _describe(arguments: argparse.Namespace) -> int:
    for text in arguments.case:
        try:
            case = find(text)
        except ValueError as error:
            print(
                f"{error}\n`attention-conformance list --level=full` lists all cases",
                file=sys.stderr,
            )
            return 2
        try:
            facts = _facts_text(case)
        except (MemoryError, ValueError) as error:
            print(f"{text} cannot be drawn here: {error}", file=sys.stderr)
            return 2
        print(case.describe())
        print(facts, end="")
    return 0


def _facts_text(case: AnyCase) -> str:
    """Returns lines of text about a case: its checks, the number of attending pairs in its inputs, and
    the bounds of its oracle by numerics class."""
    import numpy as np

    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.check import cases_at
    from attention_conformance.suite.judge.oracle import Oracle, Rounding

    operators = _operator_names(case)
    checks = [
        check.name
        for check in all_checks().values()
        if any(x.id == case.id for x in cases_at("full", check.cases, operators))
    ]
    lines = [f"  checks  {', '.join(checks) or _unlisted(case)}"]
    if isinstance(case, Case) and case.sizes.B and case.sizes.Lq:
        inputs = draw(case)
        pairs, empty_rows = inputs.attends, int(inputs.fully_masked_rows.sum())
        if case.operator.takes_masks:
            lines.append(
                f"  pairs   {int(pairs.sum())} of {pairs.size} attend, {empty_rows} rows without keys"
            )
        for numerics in NUMERICS:
            bound = Oracle.forward(inputs, Rounding(numerics)).bound()
            lines.append(
                f"  bound   {numerics:8} median {np.median(bound):.3g}, max {bound.max():.3g}"
            )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ExpectOptions(CommandOptions):
    """The options of `expect`."""

    write: str = option("a result file", "RESULTS", default=None, required=True)
    output: str = option("a new file; default: print", "FILE.toml")
    partial: bool = PARTIAL


def _add_expect(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "expect", help="draft a manifest of known failures from the failing cells of a run"
    )
    ExpectOptions.declare(parser.add_argument)
    parser.set_defaults(run=_expect)


def _expect(arguments: argparse.Namespace) -> int:
    from attention_conformance.backends import registry
    from attention_conformance.suite.records.cells import load
    from attention_conformance.suite.records.expectations import draft
    from attention_conformance.suite.records.files import write_new

    try:
        run = load(arguments.write, arguments.partial)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    unexpected = ("unexpected-pass", "other-failure", "stale-claim")
    failing = [c for c in run.cells if c.status == "fail" and c.kind not in unexpected]
    text = ""
    for backend in dict.fromkeys(c.backend for c in failing):
        names = registry.modules(backend) or tuple(run.header.versions)
        versions = {n: v for n, v in run.header.versions.items() if n in names}
        cells_of_backend = [c for c in failing if c.backend == backend]
        sentences = [diagnosis for diagnosis in run.diagnoses if diagnosis.backend == backend]
        text += f"# {backend}.toml\n\n{draft(cells_of_backend, versions, sentences)}\n"
    if arguments.output:
        try:
            write_new(arguments.output, text)
        except OSError as error:
            print(error, file=sys.stderr)
            return 2
    else:
        print(text or "# no failing cells: nothing to expect")
    return 0


def _add_findings(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "findings", help="the pages of what was found in released software, with reproductions"
    )
    parser.add_argument("results", nargs="*", metavar="RESULTS", help="result files")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="write the pages there")
    parser.add_argument(
        "--reports", metavar="FOLDER", type=Path,
        help="run the scripts of unreported wrong answers and write reports to post upstream there",
    )  # fmt: skip
    parser.set_defaults(run=_findings)


def _findings(arguments: argparse.Namespace) -> int:
    from attention_conformance.suite.records.cells import load
    from attention_conformance.suite.records.expectations import ExpectationError
    from attention_conformance.suite.records.findings import manifests, pages, reports

    try:
        texts = pages(manifests(), [load(path) for path in arguments.results])
        if arguments.output:
            _write_pages(arguments.output, texts)
        if arguments.reports:
            _write_pages(arguments.reports, reports(manifests()))
        if not arguments.output and not arguments.reports:
            print("\n".join(texts.values()), end="")
    except (OSError, RecordError, ExpectationError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write_pages(folder: Path, pages: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class MutantsOptions(CommandOptions):
    """The options of `mutants`."""

    level: str = shared("level", checked=True)
    seed: int = shared("seed")
    backend: str = shared(
        "backend", help="the backend of mutants", metavar="MODULE:OBJECT", default=CATALOGUE,
        many=False,
    )  # fmt: skip


def _add_mutants(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "mutants",
        help="the kill table: which check kills which deliberate fault",
    )
    MutantsOptions.declare(parser.add_argument)
    parser.set_defaults(run=_mutants)


def _mutants(arguments: argparse.Namespace) -> int:
    from attention_conformance.backends.registry import UsageError, load
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.run.kill_table import format_table, kill

    try:
        backend = load(arguments.backend)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    checks, mutants = all_checks().values(), backend.implementations()
    kills = [kill(mutant, checks, arguments.level, arguments.seed) for mutant in mutants]
    print(format_table(kills))
    return 0 if all(kill.killed for kill in kills) else 1


if __name__ == "__main__":
    sys.exit(main())
