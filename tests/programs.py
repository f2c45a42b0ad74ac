"""A plugin of pytest that counts what JAX compiles: `pytest suite -p tests.programs --backend=jax`."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._jax.profiler import Compilations

_ALL: list[Compilations] = []


def pytest_configure(config: Any) -> None:
    _ALL.append(Compilations())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"programs: {_ALL[0].programs}")
