"""Documentation is true: its examples do what they show, and what it names is there."""

from __future__ import annotations

import doctest
import pkgutil
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import check_attention
from attention_conformance.suite.commands import parsed
from attention_conformance.suite.spec.claims import CLAIMS
from tests.processes import ROOT, python
from tests.shown import FOLDERS, PAGES
from tests.shown import files as shown_files

DOCS = ROOT / "docs"
DATA = DOCS / "data"
PLACES = "|".join([*FOLDERS, "tests", "docs"])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False)
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
    names = re.findall(rf"`((?:{'|'.join(FOLDERS)})(?:\.\w+)+)`", page.read_text(encoding="utf-8"))
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


NUMBER = r"(\d+(?:\.\d+)?)"


def differs(shown: str, printed: str) -> bool:
    """Whether a printed line has other words than a page shows, or numbers that differ by more than a
    tenth: the table of cases grows. A line of a page may end in "...", where more is printed."""
    start, more = (shown.removesuffix("...").rstrip(), ".*" if shown.endswith("...") else "")
    parts = re.split(NUMBER, start.strip())
    match = re.fullmatch(NUMBER.join(map(re.escape, parts[::2])) + more, printed.strip())
    return match is None or any(
        abs(float(one) - float(other)) > 0.1 * float(other)
        for one, other in zip(parts[1::2], match.groups(), strict=True)
    )


@pytest.mark.slow
def test_the_run_that_pages_show_prints_what_they_show(tmp_path: Path) -> None:
    """README.md and docs/start.md show parts of the output of one run."""
    pytest.importorskip("torch")
    start = (DOCS / "start.md").read_text(encoding="utf-8")
    kernel = tmp_path / "my_kernel.py"
    kernel.write_text(next(re.finditer(r"```python\n(.*?)```", start, re.DOTALL))[1])
    words = ("suite", "--backend=torch", "--level=smoke", f"--function={kernel}:attention")
    done = python("-m", "pytest", *words, "-p", "no:cacheprovider")
    for text in ((ROOT / "README.md").read_text(encoding="utf-8"), start):
        (block,) = re.findall(r"^```\n(WRONG:.*?)^```$", text, re.MULTILINE | re.DOTALL)
        printed = iter(done.stdout.splitlines())
        for line in filter(str.strip, block.splitlines()):
            if line.strip() != "...":
                assert any(not differs(line, other) for other in printed), line


@pytest.mark.slow
def test_the_changes_to_try_end_as_the_page_says(tmp_path: Path) -> None:
    """docs/architecture.md: a mask, a deviation and a row of an adapter, in a copy of the checkout."""
    pytest.importorskip("torch")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tmp_path)
    page = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Three changes")[2]
    mask, token, row, kernel = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    commands = "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).splitlines()

    def put(place: str, before: str, new: str) -> None:
        path = tmp_path / place
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, f"{new}{before}", 1), encoding="utf-8")

    (tmp_path / "my_adapter.py").write_text(shown_files()["my_adapter.py"])
    put("suite/spec/masks.py", "@dataclass(frozen=True)\nclass Padding(", f"{mask}\n\n")
    put("suite/spec/masks.py", '    (r"causalbr"', token)
    put("suite/spec/operators/sdpa_cases.py", '    "causal",\n', '    "stride3",\n')
    put("suite/deviations/masks.py", '    row("hidden-after-softmax"', row)
    put("my_adapter.py", "class Runtime(", f"{kernel}\n\n")
    (listed,) = re.findall(r"`(\[FrameworkFunction.*?\])`", page)
    put("my_adapter.py", "        return [", f"        return {listed}\n")
    fourth = "A query does not see every fourth key."
    ends = ["24 of 70 attend", "nothing found", "RIGHT:", fourth, "RIGHT:"]
    for command, end in zip(commands, ends, strict=True):
        words = shlex.split(command, comments=True)
        module = words[1:] if words[0] == "python" else ["-m", *words, "-p", "no:cacheprovider"]
        done = python(*module, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
        assert end in done.stdout, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_site_lists_every_page() -> None:
    """What is not listed is not found, and ends the build of the site. Operators and findings count as
    one page each: a reader opens the page of one operator or owner."""
    entries = re.findall(
        r"^(?:.+ <)?([a-z-]+)>?$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {path.stem for suffix in ("md", "ipynb") for path in DOCS.glob(f"*.{suffix}")}
    assert sorted(entries) == sorted(pages - {"index"})
    assert len(pages) <= 24, "a reader finishes the documentation"


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


def test_the_page_of_power_counts_the_kill_table() -> None:
    lines = (ROOT / "tests" / "frozen" / "kills-smoke.txt").read_text("utf-8").splitlines()
    seen = sum("survives" not in line for line in lines)
    text = " ".join((DOCS / "power.md").read_text(encoding="utf-8").split())
    assert f"judges {len(lines):,} faults" in text
    assert f"at smoke {seen:,} ({seen / len(lines):.1%}) are".replace("%", " %") in text


def test_the_page_of_claims_lists_every_claim() -> None:
    table = (
        (DOCS / "claims.md")
        .read_text(encoding="utf-8")
        .partition("| by dtype |\n|---|---|---|\n")[2]
    )
    rows = [
        f"| `{name}` | {claim.text} | {'yes ' if claim.by_dtype else ''}|"
        for name, claim in CLAIMS.items()
    ]
    assert table.partition("\n\n")[0].splitlines() == rows
