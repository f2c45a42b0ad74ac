"""What several files of tests share: one thread for frameworks, the adapter of PyTorch, the wheel, a
browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import load
from attention_conformance.backends.threads import limit_threads
from tests.wheels import build

# Cases are tiny, and workers share the cores: threads would wait for each other most of the time.
limit_threads(1)

# The plugin of Hypothesis imports Hypothesis at the end of every run, which no child needs.
os.environ.setdefault("PYTEST_ADDOPTS", "-p no:hypothesispytest")

collect_ignore = ["outside"]
"""Projects of other people, which `test_outside.py` runs in environments of their own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn", type=int, help="of tests marked `seldom`, run the third of this turn"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("--turn")
    left = set() if turn is None else of_other_turns(items, turn)
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=[*left])


def of_other_turns(items: list[pytest.Item], turn: int) -> set[pytest.Item]:
    """The two thirds of the tests marked `seldom` that do not run in a turn."""
    seldom = [item for item in items if item.get_closest_marker("seldom")]
    return {*seldom} - {*seldom[turn % 3 :: 3]}


@pytest.fixture(scope="module")
def torch_backend() -> Any:
    """The adapter of PyTorch on the CPU."""
    pytest.importorskip("torch")
    return load("torch")


@pytest.fixture(scope="session")
def vectors_f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of plain attention in float16: few cases."""
    from tests.answering import plain_vectors

    return plain_vectors(tmp_path_factory.mktemp("vectors"), "f16")


@pytest.fixture(scope="session")
def right_answers(vectors_f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Right answers to `vectors_f16`, with gradients."""
    from attention_conformance.suite.deviations.kernels.gradient import Differentiable
    from tests.answering import answer

    kernel = Differentiable(load("tests.honest:honest"))
    folder = tmp_path_factory.mktemp("answers") / "right"
    return answer(vectors_f16, folder, [kernel], numerics="exact")


@pytest.fixture
def own_answers(right_answers: Path, tmp_path: Path) -> Path:
    """A copy of the right answers, to be changed."""
    return Path(shutil.copytree(right_answers, tmp_path / "own"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build(tmp_path_factory.mktemp("wheel"))


LIMITS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
          "--disable-component-update", "--no-first-run"]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium, driven by Playwright. Skips the test without either."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("the browser chromium is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=LIMITS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser of all tests."""
    with chromium() as started:
        yield started


@contextmanager
def watched(browser: Any, **viewport: int) -> Iterator[Any]:
    """A new page of the browser. The errors of its scripts and of its console, and the texts of its
    dialogs, are in `page.errors`."""
    with browser.new_page(viewport=viewport or None) as page:
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
        page.on("dialog", lambda dialog: (page.errors.append(dialog.message), dialog.dismiss()))
        yield page
