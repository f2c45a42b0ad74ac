"""The pytest plugin of the installed project. It does nothing unless `--attention-backend` is given.

With that option the suite's plugin is loaded under prefixed option names, so that the options do not
clash with a project's own `--backend`: `pytest --pyargs suite --attention-backend=torch`.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from attention_conformance.impostors import NAMES, ROOT, refuse_impostors

ASKED = "--attention-backend"
"""The option that every run of the suite has."""

HIDDEN = re.compile(rf"No module named '({'|'.join(NAMES)})\.")
"""Python's error if a user's folder without `__init__.py` has the name of one of this project's packages.
Python prefers the package, whatever the order of sys.path."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin before any conftest file, if `--attention-backend` is given."""
    if not any(str(word).partition("=")[0] == ASKED for word in args):
        return
    try:
        refuse_impostors()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from error
    from suite.run import options

    options.NAMES.short = early_config.rootpath == ROOT
    early_config.pluginmanager.import_plugin("suite.plugin")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Explain why a module in a user's folder is not found, if one of this project's
    packages hides it."""
    report = yield
    if report.failed and (told := HIDDEN.search(str(report.longrepr))):
        name = told[1]
        sentence = (
            f"the package {name!r} of attention-conformance, in {ROOT}, hides a folder called {name!r} "
            "without __init__.py: rename the folder"
        )
        report.sections.append(("attention-conformance", sentence))
    return report
