"""The commands `list`, `describe`, `expect` and `mutants`: cases, words, checks, drafts of manifests, and
the kill table.

Exit codes: 0; 1 if a mutant survives; 2 if the arguments cannot be used.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.report.commands import PARTIAL
from attention_conformance.suite.run.options import shared
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
from attention_conformance.suite.spec.vocabulary import KINDS, LEVELS, NUMERICS, STATUSES

CATALOGUE = "attention_conformance.suite.deviations:mutants"


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


def list_cases(options: ListOptions) -> int:
    """Run the command `list`, and return its exit code."""
    from attention_conformance.suite.checks import all_checks

    if options.why:
        try:
            print(_why(find(options.why)))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    if options.words:
        print(_words_text())
        return 0
    if options.checks:
        for check in all_checks().values():
            text = check.function.__doc__ or sys.modules[check.function.__module__].__doc__ or ""
            count = len(list(check.cases(options.level)))
            print(f"{check.name:28} {count:5} cases  {' '.join(text.split())}")
        return 0
    ids_of_checks = (
        case.id for check in all_checks().values() for case in check.cases(options.level)
    )
    ids = [case.id for case in everything(options.level)]
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
    lines += ["Implementations that say so are tested later:"]
    return "\n".join([*lines, *(f"  {what:28} {reason}" for what, reason in POSTPONED.items())])


def _unlisted(case: AnyCase) -> str:
    """Returns a text for a case that no check lists: how it can still be judged."""
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.judge.check import cases_at

    checks, operators = all_checks().values(), _operator_names(case)
    cases = (x for check in checks for x in cases_at("full", check.cases, operators))
    replaced_id = original_of(case, cases)
    if replaced_id is None:
        return "no check tests it: --case of search and bench does"
    return (
        f"tested in place of {replaced_id}, if a function's signature or claims exclude that case"
    )


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


@dataclass(frozen=True)
class DescribeOptions(CommandOptions):
    """The options of `describe`."""

    case: tuple[str, ...] = option("a case id", nargs="+")


def describe(options: DescribeOptions) -> int:
    """Run the command `describe`, and return its exit code."""
    for text in options.case:
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


def expect(options: ExpectOptions) -> int:
    """Run the command `expect`, and return its exit code."""
    from attention_conformance.backends import registry
    from attention_conformance.suite.records.cells import load
    from attention_conformance.suite.records.expectations import draft
    from attention_conformance.suite.records.files import write_new

    run = load(options.write, options.partial)
    unexpected = ("unexpected-pass", "other-failure", "stale-claim")
    failing = [c for c in run.cells if c.status == "fail" and c.kind not in unexpected]
    text = ""
    for backend in dict.fromkeys(c.backend for c in failing):
        names = registry.modules(backend) or tuple(run.header.versions)
        versions = {n: v for n, v in run.header.versions.items() if n in names}
        cells_of_backend = [c for c in failing if c.backend == backend]
        sentences = [diagnosis for diagnosis in run.diagnoses if diagnosis.backend == backend]
        text += f"# {backend}.toml\n\n{draft(cells_of_backend, versions, sentences)}\n"
    if options.output:
        try:
            write_new(options.output, text)
        except OSError as error:
            print(error, file=sys.stderr)
            return 2
    else:
        print(text or "# no failing cells: nothing to expect")
    return 0


@dataclass(frozen=True)
class MutantsOptions(CommandOptions):
    """The options of `mutants`."""

    level: str = shared("level", checked=True)
    seed: int = shared("seed")
    backend: str = shared(
        "backend", help="the backend of mutants", metavar="MODULE:OBJECT", default=CATALOGUE,
        many=False,
    )  # fmt: skip


def mutants(options: MutantsOptions) -> int:
    """Run the command `mutants`, and return its exit code."""
    from attention_conformance.backends.registry import UsageError, load
    from attention_conformance.suite.checks import all_checks
    from attention_conformance.suite.run.kill_table import format_table, kill

    try:
        backend = load(options.backend)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    checks = all_checks().values()
    kills = [
        kill(mutant, checks, options.level, options.seed) for mutant in backend.implementations()
    ]
    print(format_table(kills))
    return 0 if all(kill.killed for kill in kills) else 1
