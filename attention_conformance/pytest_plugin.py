"""The pytest plugin of the installed project. It does nothing unless `--attention-backend` is given.

With that option the suite's plugin is loaded under prefixed option names, so that the options do not
clash with a project's own `--backend`:
`pytest --pyargs attention_conformance.suite --attention-backend=torch`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
"""The root of a checkout. pytest runs that start here have short names of options."""

BACKEND_OPTION = "--attention-backend"
"""The option that every run of the suite needs."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin before any conftest file, if `--attention-backend` is given."""
    if not any(str(word).partition("=")[0] == BACKEND_OPTION for word in args):
        return
    from attention_conformance.suite.run import options

    options.NAMES.short = early_config.rootpath == CHECKOUT
    early_config.pluginmanager.import_plugin("attention_conformance.suite.plugin")
