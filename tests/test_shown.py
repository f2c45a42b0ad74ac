"""Every command that a page shows can be read: its options, and what they name, are there.

What takes long, carrying commands out, is done by `tests/test_shown_runs.py`.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from attention_conformance.backends import registry
from attention_conformance.suite.commands import parsed
from attention_conformance.suite.measure import command, worker
from attention_conformance.suite.measure.options import BenchOptions
from attention_conformance.suite.measure.pool import Offer, Pool
from attention_conformance.suite.report.kinds import TABLES
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import find
from tests.frozen.refused import options_of_pytest

shown = pytest.importorskip("tests.shown")
ROOT = shown.ROOT
COMMANDS = {each.text: each for each in shown.commands() if not each.is_a_name}
NAMED = {each.text: each for each in shown.commands() if each.is_a_name}

MANIFEST = """
[[expect]]
implementation = ["flash"]
check = ["values"]
case = ["*"]
kind = "value"
message = ".*"
cause = "a mask of -1e4"
issue = "none found"
versions = ["torch"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages name as a reader's own."""
    place = tmp_path_factory.mktemp("own")
    for name, text in shown.files().items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    for name in ("flash.toml", "mine.toml", "my_failures.toml"):
        (place / name).write_text(MANIFEST, encoding="utf-8")
    return place


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)


def hold_names(options: Options) -> None:
    """Raise UsageError for an implementation, a function or a claim that cannot be used, where what it is
    of is installed."""
    options.check()
    registered = {name for name in options.backends if ":" not in name}
    if options.device == "cpu" and registered <= set(registry.installed()):
        Plan.make(options)


def hold_bench(options: BenchOptions) -> None:
    """Raise NothingToMeasure or UsageError for a name that does not exist."""
    options = command.completed(options)
    pool = Pool(options)
    for name in options.backends:
        _, every = worker.implementations(name, options)
        offers = [Offer(i.name, i.mode, i.operator) for i in every.values()]
        pool.workers[name] = SimpleNamespace(offers=offers)
    against = [n for n in (options.against,) if n and not n.startswith("commit:")]
    pool.options = replace(options, implementation=(*options.implementation, *against))
    pool.offers()


def hold_suite(words: list[str]) -> None:
    """Raise SystemExit, UsageError or ValueError for a command line of `python -m suite` that is none."""
    _, options = parsed(words)
    if words[0] == "bench":
        hold_bench(options)
    elif words[0] == "search":
        hold_names(options)
    for case in getattr(options, "case", ()):
        find(case)
    assert set(getattr(options, "table", ())) <= TABLES.keys()


def hold_pip(words: list[str]) -> None:
    """What is installed is this project, or its folder, with extras that there are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = words[-1].replace(".[", f"{project['name']}[")
    requirement = Requirement(text)
    assert requirement.name == project["name"]
    assert requirement.extras <= project["optional-dependencies"].keys()
    assert " ".join(words[:-1]) in ("install", "install -e", "install -c constraints.txt -e")


def hold(words: list[str]) -> None:
    """Raise what a command line raises that cannot be carried out."""
    match words:
        case ["pytest", *rest] | ["python", "-m", "pytest", *rest]:
            options = options_of_pytest(rest)
            if options.backend:
                hold_names(options)
        case ["python", "-m", "suite", *rest] | ["attention-conformance", *rest]:
            hold_suite(rest)
        case ["pip", *rest]:
            hold_pip(rest)
        case _:
            assert words[0] in shown.PROGRAMS


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("text", COMMANDS, ids=lambda text: COMMANDS[text].place)
def test_a_command_of_a_page_can_be_read(text: str) -> None:
    hold(COMMANDS[text].words)


@pytest.mark.parametrize("text", NAMED)
def test_a_command_that_a_page_names_exists(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = NAMED[text].words
    if words[:3] == ["python", "-m", "suite"] and words[3:]:
        with pytest.raises(SystemExit) as ended:
            parsed([*words[3:], "--help"])
        assert ended.value.code == 0
        assert f"attention-conformance {words[3]}" in capsys.readouterr().out
    elif words[:2] == ["python", "-m"]:
        importlib.import_module(words[2])


def test_what_is_not_carried_out_is_shown_somewhere() -> None:
    """No entry of the tables outlives its command."""
    every = list(shown.commands())
    for start in shown.ELSEWHERE:
        assert any(re.match(start, x) for each in every for x in (each.text, each.place)), start
    for pattern in shown.SMALLER:
        assert any(re.search(pattern, each.text) for each in every), pattern
