"""Documentation is true: its examples do what they show, and what it names is there."""

from __future__ import annotations

import doctest
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import check_attention
from suite.commands import parsed
from suite.records.machine import PACKAGES
from suite.spec.claims import CLAIMS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DATA = DOCS / "data"
PAGES = [
    *sorted([*DOCS.glob("*.md"), *DATA.glob("*.md")]),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
PLACES = "|".join([*PACKAGES, "tests", "docs"])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_examples(name: str) -> None:
    failed, _ = doctest.testfile(str(DOCS / name), module_relative=False)
    assert not failed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_pages_name_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for place in re.findall(rf"`((?:{PLACES})/[\w./*]+)`", text):
        # NAME stands for what somebody will write.
        assert "NAME" in place or list(ROOT.glob(place)), place
    for link in re.findall(r"\]\(([^):#]+\.(?:md|svg|toml))(?:#[\w-]+)?\)", text):
        assert (page.parent / link).is_file(), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_pages_name_are_there(page: Path) -> None:
    """Modules of the suite, and what is in them: no page sends its reader to what was renamed."""
    names = re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`", page.read_text(encoding="utf-8"))
    for name in names:
        pkgutil.resolve_name(name)


def test_the_first_example_fails_and_its_remedy_passes() -> None:
    """docs/start.md: a causal mask that hides the diagonal, too."""
    pytest.importorskip("torch")
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    source = next(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))[1]
    for remedy, passed in (("triu()", False), ("triu(1)", True)):
        namespace: dict[str, Any] = {}
        exec(source.replace("triu()", remedy), namespace)
        report = check_attention(
            namespace["attention"], checks=("values", "first_row"), dtypes=("f32",), raises=False
        )
        assert report.passed is passed, report
        kinds = {f"{row.check}, {row.kind}" for row in report.failures.itertuples()}
        assert kinds == (set() if passed else {"values, non-finite", "first_row, value"})


def test_the_site_lists_every_page() -> None:
    """What is not listed is not found, and ends the build of the site."""
    entries = re.findall(
        r"^(?:.+ <)?([a-z-]+)>?$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {path.stem for suffix in ("md", "ipynb") for path in DOCS.glob(f"*.{suffix}")}
    assert sorted(entries) == sorted(pages - {"index"})
    assert len(pages) <= 20, "a reader finishes the documentation"
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_page_of_data_is_linked() -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page.parent != DATA]
    for path in DATA.glob("*.md"):
        assert any(f"data/{path.name}" in text for text in pages), path.name


def test_the_page_of_words_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--help"])
    commands = re.findall(r"^    ([a-z]+)\b", capsys.readouterr().out, re.MULTILINE)
    text = (DOCS / "words.md").read_text(encoding="utf-8").partition("## Commands")[2]
    assert len(commands) > 10
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == sorted(commands)


def test_the_page_of_functions_lists_every_claim() -> None:
    table = (
        (DOCS / "function.md")
        .read_text(encoding="utf-8")
        .partition("| by dtype |\n|---|---|---|\n")[2]
    )
    rows = [
        f"| `{name}` | {claim.text} | {'yes ' if claim.by_dtype else ''}|"
        for name, claim in CLAIMS.items()
    ]
    assert table.partition("\n\n")[0].splitlines() == rows
