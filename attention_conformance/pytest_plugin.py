"""What pytest loads where this project is installed: nothing, until `--attention-backend` is given.

Then the suite's own plugin is loaded, with its options under prefixed names, so that a project with a
`--backend` of its own can ask for the suite, too: `pytest --pyargs suite --attention-backend=torch`.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from attention_conformance.impostors import NAMES, ROOT, refuse_impostors

ASKED = "--attention-backend"
"""The option that no run is without."""

HIDDEN = re.compile(rf"No module named '({'|'.join(NAMES)})\.")
"""What Python says where a person's folder has a name of ours and no `__init__.py`: a package goes before
such a folder, wherever on the path the two lie."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin before any conftest file, where its options are given."""
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
    """Say why a module in a folder of a person's own is not found."""
    report = yield
    if report.failed and (told := HIDDEN.search(str(report.longrepr))):
        name = told[1]
        sentence = (
            f"the package {name!r} is that of attention-conformance, in {ROOT}, and hides folders called "
            f"{name!r} without __init__.py: rename the folder"
        )
        report.sections.append(("attention-conformance", sentence))
    return report
