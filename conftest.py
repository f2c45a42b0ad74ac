"""Make the suite's options known to every way of calling pytest from this checkout."""

pytest_plugins = ["suite.plugin"]
