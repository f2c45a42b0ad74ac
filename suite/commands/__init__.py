"""Command line: `attention-conformance COMMAND`. `COMMANDS` is the table of all commands."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NoReturn, get_type_hints

from attention_conformance.suite.flags import CommandOptions
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.spec.text import printable_output


@dataclass(frozen=True)
class Command:
    """A command of the table.

    - `help`: the sentence about it in the list of commands
    - `place`: its module below `suite` and its function, which takes the command's options and returns
      the exit code. The module is imported only for this command.
    - `description`: the first lines of its help
    - `usage_code`: the exit code for wrong arguments
    """

    help: str
    place: str
    description: str | None = None
    usage_code: int = 2

    @property
    def run(self) -> Callable[[Any], int]:
        """The function that runs the command."""
        function: Callable[[Any], int] = resolve_name(f"attention_conformance.suite.{self.place}")
        return function

    @property
    def options(self) -> type[CommandOptions]:
        """The class of the command's options: the annotation of its function."""
        options: type[CommandOptions] = get_type_hints(self.run)["options"]
        return options


COMMANDS = {
    "list": Command("the ids of the cases of a level", "commands.catalogue:list_cases"),
    "describe": Command("what a case asks, in words and numbers", "commands.catalogue:describe"),
    "expect": Command(
        "draft a manifest of known failures from the failing cells of a run",
        "commands.catalogue:expect",
    ),
    "findings": Command(
        "the pages of what was found in released software, with reproductions",
        "report.commands:findings",
    ),
    "elections": Command(
        "the page of questions without a single right answer, and who elects what",
        "run.elections:run",
    ),
    "explain": Command(
        "what a function computes: scale, masks, heads, precision",
        "run.explain:run",
        "Reads functions by probes, and prints what they compute as a table, without a verdict. Several "
        "stand side by side; rows in which they differ are marked.",
    ),
    "mutants": Command(
        "the kill table: which check kills which deliberate fault", "commands.catalogue:mutants"
    ),
    "search": Command(
        "draw cases at random, judge them, and shrink failures",
        "search.command:run",
        "Draws cases of every implemented operator, judges each by the checks `values` and `gradients`, "
        "and shrinks every new kind of failure to a minimal case with a script.",
    ),
    "vectors": Command(
        "cases, expected values and bounds as files, for runtimes in other languages; `vectors judge` "
        "judges their answers",
        "vectors.command:run",
    ),
    "vectors judge": Command(
        "judge a folder of answers by the checks of `pytest suite`", "vectors.command:judge"
    ),
    "sweep": Command(
        "many runs at once, on many machines: seeds, releases, searches",
        "sweep:run",
        "Runs a plan on Ray (docs/sweeps.md). The same command continues a sweep.",
    ),
    "bench": Command(
        "time workloads, or gate one implementation against another",
        "measure.command:run",
        "Times workloads in every implementation. A time is kept only if the timed answer is right. "
        "Without --workload three workloads are timed, which takes some minutes; a line before each call "
        "says how many are left. With --against tests whether one implementation is slower than another. "
        "Exit codes: 0 no regression, 1 regression, 2 wrong answer, 3 nothing measured, 4 too noisy.",
        usage_code=3,
    ),
    "releases": Command(
        "configure asv to measure the releases of a framework",
        "measure.releases:run",
        "Writes FOLDER/asv.conf.json: asv measures each release of a framework in an environment of its "
        "own, with this project's benchmarks.",
    ),
    "report": Command(
        "tables from result files",
        "report.commands:report",
        "Tables of conformance and speed from result files (--results), and from asv's folder of "
        "results. Shards of one run are merged and must be complete; others are separate runs.",
    ),
    "diff": Command(
        "changes between two runs; exit code 1 on new failures",
        "report.commands:diff",
        "Changes between two runs, cell by cell. If a run is partial, only cells in both runs are "
        "compared. Exit code 1 on new failures, else 0.",
    ),
}
"""Every command by its words, in the order of the help."""


class _Parser(argparse.ArgumentParser):
    """A parser that exits with the command's own code for wrong arguments."""

    usage_code = 2

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.usage_code, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. `arguments`: the words after the program's name, by
    default those of this process. Usage errors, and records that cannot be written, give the code 2."""
    with printable_output():
        run, options = parsed(arguments)
        try:
            return run(options)
        except RecordError as error:
            print(error, file=sys.stderr)
            return 2


def parsed(arguments: Sequence[str] | None = None) -> tuple[Callable[[Any], int], Any]:
    """Parse a command line. Returns the function that runs the command, and its options. Exits for wrong
    arguments."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    completing = "_ARGCOMPLETE" in os.environ
    parser = _Parser(
        prog="attention-conformance",
        description="Attention conformance: cases, search, reports, expectations, the kill table. "
        "Implementations are judged with `pytest suite --backend=NAME`.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for words_of_command, command in COMMANDS.items():
        *above, name = words_of_command.split()
        place = commands.choices[above[0]].add_subparsers(metavar=name) if above else commands
        one = place.add_parser(name, help=command.help, description=command.description)
        one.usage_code = command.usage_code
        one.set_defaults(chosen=command)
        if completing or words[:1] == [*above, name][:1]:
            command.options.declare(one.add_argument)
    if completing:
        importlib.import_module("argcomplete").autocomplete(parser)  # ends the process
    given, unknown = parser.parse_known_args(words)
    if unknown:
        # The command's own parser says so: it knows with which code a wrong option ends.
        commands.choices[given.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return given.chosen.run, given.chosen.options.from_arguments(given)
