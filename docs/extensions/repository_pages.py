"""Pages that lie at the root of the repository, and links to them.

A link in a page is right where the repository is shown: `../README.md`. In the site the README is the
first page, and other pages of the root lie in a folder of their own.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
DATA = DOCS / "data"
"""Tables that other pages link: pages outside of the navigation."""
OPERATORS = DOCS / "operators"

PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Where pages of the root are in the site."""

GENERATED = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the root that are copied, into a folder that git ignores."""

LINK = re.compile(r"(?<=\]\()([^():#\s]+)(?=(?:#[^()\s]*)?\))")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", _write_pages)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(page: Path, text: str) -> None:
    """Writes a page where it is another one than before: what is the same is not built again."""
    page.parent.mkdir(exist_ok=True)
    if not page.is_file() or page.read_text("utf-8") != text:
        page.write_text(text, "utf-8")


def relinked(text: str, folder: Path, place: str) -> str:
    """A page of the repository with its links as they are in the site.

    `folder` is the one that links start from in the repository, `place` that of the page in the site.
    """

    def link(match: re.Match[str]) -> str:
        target = (folder / match[0]).resolve()
        if not target.is_file():
            return match[0]  # a page that is made, or a dead link, which Sphinx reports
        name = target.relative_to(ROOT).as_posix()
        uri = PLACES.get(name, posixpath.relpath(name, DOCS.name))
        return posixpath.relpath(uri, posixpath.dirname(place) or ".")

    return LINK.sub(link, text)


def _write_pages(app: Sphinx, config: Config) -> None:
    for name in GENERATED:
        text = (ROOT / name).read_text("utf-8")
        write(DOCS / PLACES[name], relinked(text, ROOT, PLACES[name]))


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links of a page become those of the site. The README goes before what the first page lists."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".md" or path.parent not in (DOCS, OPERATORS, DATA):
        return
    source[0] = relinked(source[0], path.parent, path.relative_to(DOCS).as_posix())
    if path.parent == DATA:
        source[0] = f"---\norphan: true\n---\n{source[0]}"
    if docname == app.config.root_doc:
        readme = (ROOT / "README.md").read_text("utf-8")
        source[0] = f"{relinked(readme, ROOT, path.name)}\n{source[0]}"
        app.env.note_dependency(str(ROOT / "README.md"), docname=docname)
