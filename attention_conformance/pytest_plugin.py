"""What pytest loads where this project is installed: nothing, until `--attention-backend` is given.

Then the suite's own plugin is loaded, with its options under prefixed names, so that a project with a
`--backend` of its own can ask for the suite, too: `pytest --pyargs suite --attention-backend=torch`.
"""

from __future__ import annotations

import pytest

from attention_conformance.impostors import ROOT, refuse_impostors

ASKED = "--attention-backend"
"""The option that no run is without."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin before any conftest file, where its options are given."""
    if not any(str(word).partition("=")[0] == ASKED for word in args):
        return
    try:
        refuse_impostors()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from error
    from suite.front import options

    options.NAMES.short = early_config.rootpath == ROOT
    early_config.pluginmanager.import_plugin("suite.plugin")
