"""The site: it builds strictly, and nothing is fetched."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]

for module in ("furo", "latex2mathml", "linkify_it", "myst_nb", "sphinx", "sphinx_copybutton"):
    pytest.importorskip(module, reason="needs the extra docs")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CONTRIBUTING.md says, but elsewhere."""
    folder = tmp_path_factory.mktemp("site", numbered=False)
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "-n", "--keep-going", "-q"]
    done = subprocess.run(
        [*command, "-d", str(folder.parent / "doctrees"), "docs", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source") and "src" in attributes:
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(attributes["href"])

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_nothing_is_fetched(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc], path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text("utf-8"))


def test_the_notebook_is_executed_and_kept_without_outputs(pages: dict[Path, Page]) -> None:
    source = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
    assert not [cell for cell in source["cells"] if cell.get("outputs")]
    page = next(page for path, page in pages.items() if path.stem == "quickstart")
    assert "elements beyond their bound" in page.text


def test_docstrings_are_read_as_markdown(site: Path) -> None:
    text = (site / "python.html").read_text(encoding="utf-8")
    words = html.unescape(re.sub(r"<[^>]+>", "", text.partition('id="the-functions"')[2]))
    for name in ("check_attention", "assert_attention_close", "AttentionFailure", "claims"):
        assert f'id="attention_conformance.{name}"' in text
    assert len(words) > 5000
    assert "`" not in words
    assert 'class="problematic"' not in text
