"""The folder of pages: what each page has, and the way from the matrix to a page in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.facts import FactsHeader, FactsRecord, FactsRun
from attention_conformance.suite.report.frames import facts_of, measurements, newest_cells
from attention_conformance.suite.report.kinds import conformance_frames
from attention_conformance.suite.report.site import _paths, site_pages, write_site
from tests.conftest import watched
from tests.rows import cell, elect, header, run, timed, timings


def facts(of: str, started: str = "2026-11-21", **answers: str) -> FactsRun:
    """What was read of one implementation, "backend:name", on a day."""
    backend, _, name = of.partition(":")
    return FactsRun(FactsHeader(started=started), (FactsRecord(backend, name, "cpu", answers),))


HOSTILE = "<img src=x onerror=boom()> </script><script>boom()</script> & 'quotes\""


def runs(*, again: str = "fail") -> list[Any]:
    """An earlier run, and a later one in which a cell of causal attention has the status `again`."""
    causal = {"case": "sdpa/causal/mha/f32/b2h3q5k7d8", "features": ("causal",), "group": "causal"}
    told = DiagnosisRecord(
        "torch", "mine", "A causal query sees the next key.", "", "mask", "catalogue", 1, 1, 0,
        "values", causal["case"],
    )  # fmt: skip
    cells = [
        cell(implementation="torch:mine", error_ratio=0.25, grade="exact", numerics="exact"),
        cell(implementation="torch:mine", dtype="bf16", case="sdpa/none/mha/bf16/b2h3q5k7d8"),
        cell(implementation="torch:mine", status=again, kind="value", message=HOSTILE,
             error_ratio=float("inf") if again == "fail" else 0.5, **causal),
        cell(implementation="jax:jax-nn", **causal),
        cell(implementation="jax:jax-nn", status="unsupported", message="no window",
             case="sdpa/win3/mha/f32/b2h3q5k7d8", features=("window",), group="win"),
        cell(implementation="tf:eager", operator="rotary", case="rotary/x/f32"),
        cell(implementation="torch:mine", check="gradients", ratios={"query": 0.5, "key": 0.125},
             error_ratio=0.125),
        cell(implementation="jax:jax-nn", check="gradients", ratios={"query": 0.25}),
        *elect("no-keys", {"f32": "zeros"}, "torch:mine"),
        *elect("no-keys", {"f32": "nan"}, "jax:jax-nn"),
        *elect("value-size", {"f32": "raises"}, "jax:jax-nn"),
    ]  # fmt: skip
    later = header(*cells, started="2026-11-21T10:00:00+00:00", controls=("tf:eager",),
                   again=("--level=smoke",))  # fmt: skip
    before = [replace(c, status="pass", kind="", message="") for c in cells[2:3]]
    first = replace(run(*before), source="first.jsonl")
    last = replace(run(*cells), source="last.jsonl", header=later)
    return [first, replace(last, diagnoses=(told,) if again == "fail" else ())]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "site"
    write_site(conformance_frames(runs()), "A title", folder)
    return folder


def test_a_site_has_a_page_for_every_implementation(site: Path) -> None:
    names = ["jax-jax-nn.html", "tf-eager.html", "torch-mine.html"]
    assert sorted(path.name for path in site.glob("implementations/*")) == names
    index, mine = (
        (site / name).read_text("utf-8")
        for name in ("index.html", "implementations/torch-mine.html")
    )
    its = 'class="items"'
    assert (its in index, its in mine) == (False, True)
    assert (HOSTILE in index, HOSTILE in mine) == (False, False)
    assert mine.index('id="distribution"') < mine.index('id="history"')
    for folder in (site, site.parent):
        with pytest.raises(FileExistsError):
            write_site(conformance_frames(runs()), "A title", folder)


def test_the_matrix_has_the_newest_run_and_the_page_has_all() -> None:
    first, last = runs()
    frames = conformance_frames([last, first])  # in any order
    assert {*newest_cells(frames["cells"])["label"]} == {"torch:mine", "jax:jax-nn", "tf:eager"}
    assert len(newest_cells(frames["cells"])) == len(last.cells)
    times = [
        timings(timed("mine", seconds, backend="torch"), source=source, started=started)
        for source, started, seconds in (
            ("b.jsonl", "2026-11-21", 3e-3),
            ("a.jsonl", "2026-11-20", 5e-3),
        )
    ]
    read = facts("torch:mine", scale="1/D", lse="not taken", **{"no-keys": "asked"})
    more = {"measurements": measurements(times), "facts": facts_of([read])}
    texts = dict(site_pages(frames | more, "A title"))
    mine, other = (texts[f"implementations/{n}.html"] for n in ("torch-mine", "jax-jax-nn"))
    history, _, footer = mine.partition('id="history"')[2].partition("<footer>")
    assert footer.startswith("torch 2.13.0")
    assert history.index(first.header.started) < history.index(last.header.started)
    assert history.count("torch 2.13.0") == 2
    assert not [text for text in ('id="changed"', "first.jsonl", "1/D", "mine") if text in other]
    # An answer to an election question replaces what a probe read.
    for name, entries in (
        ("scale", ["1/D"]),
        ("lse", ["not taken"]),
        ("no-keys", ["zeros"]),
        ("gpt2-train forward f32", ["2.25", "3.0", "4.5"]),
    ):
        row = mine.partition(f'<th scope="row">{name}</th>')[2].partition("</tr>")[0]
        assert re.findall("<td>(.*?)</td>", row) == entries


def test_paths_of_pages_are_harmless_and_differ() -> None:
    labels = ["torch:a/../../b", "torch:a b", "torch:A-b", "torch:<script>", "torch:" + "x" * 300]
    paths = _paths(labels)
    assert len({path.lower() for path in paths.values()}) == len(labels)
    for path in paths.values():
        assert path.isascii()
        assert path.count("/") == 1
        assert len(path) < 120


@pytest.mark.parametrize("width", [360, 1920])
def test_an_entry_of_the_matrix_leads_to_its_failures(browser: Any, site: Path, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with watched(browser, width=width, height=900) as opened:
        opened.goto((site / "index.html").as_uri())
        opened.locator("[name=dtype]").select_option("f32")
        opened.get_by_role("link", name="torch:mine, causal: wrong").click()
        assert opened.url.partition("#")[0].endswith("implementations/torch-mine.html")
        assert "dtype=f32" in opened.url
        its = opened.locator(".implementation")
        its.locator("summary:visible").click()
        assert HOSTILE in its.inner_text()
        for entry in opened.locator(".table td.text").all():
            assert entry.evaluate("entry => entry.scrollWidth <= innerWidth")
        assert opened.locator(".controls").is_hidden()
        assert opened.locator("#matrix tbody tr").count() == 1
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        for scheme in ("light", "dark"):
            opened.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(opened)
            assert found.violations_count == 0, found.generate_report()
        opened.get_by_role("link", name="All implementations").click()
        opened.get_by_role("link", name="jax:jax-nn", exact=True).click()
        assert opened.locator("h1").inner_text() == "jax:jax-nn"
        assert opened.errors == []


def test_a_site_needs_a_folder_and_judged_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run().save(tmp_path / "empty.jsonl")
    assert (
        main(["report", str(tmp_path / "empty.jsonl"), "--format=site", f"--output={tmp_path}/s"])
        == 2
    )
    assert "the records hold none" in capsys.readouterr().err
    odd = cell(implementation="torch:odd", status="fail", kind="value", message="\ud800 \x1b[31m")
    run(*runs()[1].cells, odd).save(tmp_path / "run.jsonl")
    words = ["report", str(tmp_path / "run.jsonl"), "--format=site"]
    assert main(words) == 2
    assert "name a folder by --output" in capsys.readouterr().err
    assert main([*words, f"--output={tmp_path / 'site'}", "--table", "runs"]) == 2
    assert "leave --table out" in capsys.readouterr().err
    assert main([*words, f"--output={tmp_path / 'site'}"]) == 0
    assert (tmp_path / "site" / "index.html").is_file()
