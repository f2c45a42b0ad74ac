"""Make the suite's options known to every way of calling pytest from this checkout."""

pytest_plugins = ["attention_conformance.suite.plugin"]
