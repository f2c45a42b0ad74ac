"""What is refused, and what is said: ids of cases that mean nothing, and command lines that no run takes.

A line "TEXT:" adds an id or a command line; `write refused` fills in what is said.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.run.options import NAMES, Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from tests.frozen.part import FOLDER, Part, Texts, Wanted, everything

ROOT = FOLDER.parents[1]


def options_of_pytest(words: list[str]) -> Options:
    """The options of the suite, and pytest's own, as pytest reads them; output stays this run's."""
    # The plugin of Hypothesis warns if it is loaded behind strategies, which other tests made.
    ours = ["--capture=no", "-p", "no:hypothesispytest"]
    with contextlib.chdir(ROOT):
        config = pytest.Config.fromdictargs({}, [*ours, *words])
    return Options.from_lookup(lambda name: config.getoption(NAMES.destination(name)))


def planned(words: list[str]) -> Plan:
    """The plan of a run. Raises UsageError."""
    options = options_of_pytest(words)
    options.check()
    return Plan.make(options)


def printed(words: list[str]) -> None:
    """Run a command of `python -m suite`. Raises UsageError with what it prints on standard error."""
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            code: object = main(words)
        except SystemExit as ended:  # argparse
            code = ended.code
    assert code != 0, f"expected a refusal of {shlex.join(words)}, got exit code 0"
    raise UsageError(text.getvalue())


def said(text: str) -> str:
    """What is said of an id or a command line, in one line. Of a backend that is not installed the frozen
    text is returned."""
    backends = {*re.findall(r"--backend=([\w-]+)(?!\S*:)", text)} & {*registry.registered()}
    if not backends <= {*registry.installed()}:
        return REFUSED.read()[text]
    program, *words = shlex.split(text)
    ways: dict[str, Callable[[], object]] = {
        "pytest": lambda: planned(words[1:]),
        "python": lambda: printed(words[2:]),
    }
    try:
        with contextlib.chdir(ROOT):
            ways.get(program, lambda: Case.parse(text))()
    except (UsageError, ValueError, pytest.UsageError) as error:
        first, _, usage = str(error).rpartition(": error: ")  # argparse prints the usage before
        told = usage.partition("\n")[0] if first else str(error)
        return " ".join(told.replace(f"{ROOT}/", "").split())
    return "taken"


def refused(wanted: Wanted) -> Texts:
    """What is said of the frozen texts."""
    return {text: said(text) for text in REFUSED.read() if wanted(text)}


REFUSED = Part("refused", "refused", refused, quick=everything)
