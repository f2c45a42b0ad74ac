"""The first screen of a page: its data, and the page in a real browser. The pages of a site."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.report import Report
from suite.records.diagnoses import DiagnosisRecord
from suite.records.speed import SpeedHeader, SpeedRun
from suite.report.conformance import CHANGED, DISTRIBUTION
from suite.report.frames import cells as frame_of
from suite.report.frames import latest, measurements, newest_times
from suite.report.kinds import CONFORMANCE, frames_of
from suite.report.overview import TOPICS, overview
from suite.report.render import render
from suite.report.site import _paths, pages, write
from suite.run.options import Options
from suite.run.recorded import header as header_of
from tests.records_by_hand import cell, elect, header, run
from tests.speed_by_hand import record as timed

CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=boom()> </script><script>boom()</script> & 'quotes\""
LIMITS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
          "--disable-component-update", "--no-first-run"]  # fmt: skip


def _runs(*, again: str = "fail") -> list[Any]:
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
        *elect("no-keys", {"f32": "zeros"}, "torch:mine"),
        *elect("no-keys", {"f32": "nan"}, "jax:jax-nn"),
    ]  # fmt: skip
    later = header(*cells, started="2026-11-21T10:00:00+00:00", controls=("tf:eager",),
                   again=("--level=smoke",))  # fmt: skip
    before = [replace(c, status="pass", kind="", message="") for c in cells[2:3]]
    first = replace(run(*before), source="first.jsonl")
    last = replace(run(*cells), source="last.jsonl", header=later)
    return [first, replace(last, diagnoses=(told,) if again == "fail" else ())]


@pytest.fixture
def shown() -> dict[str, Any]:
    return overview(frames_of(_runs()[1]))


def test_the_counts_of_every_topic_add_up(shown: dict[str, Any]) -> None:
    names = [topic["name"] for topic in shown["topics"]]
    assert names == ["all", "plain", "causal", "window", "rotary"]
    labels = [row["label"] for row in shown["rows"]]
    counts = {(labels[r], names[t], dtype): rest for r, t, dtype, *rest in shown["counts"]}
    assert counts["torch:mine", "plain", "f32"] == [
        2, 0, 0, 0, 0.25, "sdpa/none/mha/f32/b2h3q5k7d8"
    ]  # fmt: skip
    assert counts["torch:mine", "causal", "f32"][:4] == [0, 1, 0, 0]
    assert counts["jax:jax-nn", "window", "f32"][:4] == [0, 0, 0, 1]
    assert sum(sum(c[:4]) for (_, topic, _), c in counts.items() if topic == "all") == 8
    assert shown["rows"][labels.index("tf:eager")]["control"]
    assert not shown["rows"][labels.index("torch:mine")]["control"]


def test_every_operator_belongs_to_a_topic() -> None:
    from suite.spec.operators import OPERATORS

    named = {name for topic in TOPICS for name in topic.operators}
    assert named == {name for name, operator in OPERATORS.items() if not operator.is_default}


def test_a_failing_cell_says_how_to_ask_it_again(shown: dict[str, Any]) -> None:
    (failure,) = shown["failures"]
    assert failure["again"] == (
        "pytest suite --backend=torch --level=smoke "
        "-k 'values[torch:mine/sdpa/causal/mha/f32/b2h3q5k7d8]'"
    )
    assert (failure["ratio"], failure["kind"]) == ("inf", "value")
    assert [shown["topics"][n]["name"] for n in failure["topics"]] == ["all", "causal"]


def test_a_run_records_the_options_that_ask_a_cell_again() -> None:
    options = Options(
        backend=("torch",), mode="compiled", level="smoke", dtype=("f32",), function=("my k.py:f",),
        claim=("dtypes=f16",),
    )  # fmt: skip
    assert header_of(options, {}).again == (
        "--function=my k.py:f", "--claim=dtypes=f16", "--level=smoke"
    )  # fmt: skip


def test_the_sentences_say_what_is_wrong_and_what_changed() -> None:
    sentences = overview(frames_of(_runs()))["sentences"]
    assert any("A causal query sees the next key." in text for text in sentences)
    assert sentences[-1] == (
        "Since the first of the records: 1 new failures, 0 fixed, of 1 cells that were asked again."
    )
    assert overview(frames_of(_runs(again="pass")))["sentences"][-1].startswith(
        "Since the first of the records: 0 new failures, 0 fixed"
    )


def test_a_known_failure_cites_its_cause_and_its_finding() -> None:
    from suite.records.findings import manifests

    known = next(
        entry
        for _, entries in manifests().values()
        for entry in entries
        if entry.finding and "*" not in "".join((*entry.implementation, *entry.check))
    )
    named = cell(
        known.case[0].replace("*", "x"), f"torch:{known.implementation[0]}", "known",
        check=known.check[0], message=f"[{known.cause}]",
    )  # fmt: skip
    (failure,) = overview(frames_of(run(named)))["failures"]
    assert (failure["cause"], failure["finding"]) == (known.cause, known.finding)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("the browser chromium is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=LIMITS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The page of both runs, with every error of its console in `page.errors`."""
    frames = frames_of(_runs()[1])
    render(CONFORMANCE.of(frames), "html", tmp_path / "p.html", overview=overview(frames))
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.on("console", lambda m: opened.errors.append(m.text) if m.type == "error" else None)
    opened.goto((tmp_path / "p.html").as_uri())
    yield opened
    assert opened.errors == []
    opened.close()


def _labels(page: Any) -> list[str]:
    return page.locator("#matrix tbody th button").all_inner_texts()


def test_rows_are_filtered_sorted_and_kept_in_the_address(page: Any) -> None:
    assert _labels(page) == ["torch:mine", "jax:jax-nn"]
    page.locator("#controls").check()
    assert _labels(page) == ["torch:mine", "jax:jax-nn", "tf:eager"]
    page.locator("#framework").select_option("jax")
    assert _labels(page) == ["jax:jax-nn"]
    page.locator("#framework").select_option("")
    page.get_by_role("button", name="window", exact=True).click()
    assert _labels(page)[0] == "jax:jax-nn"  # refused comes before not asked
    page.locator("#q").fill("mine")
    assert _labels(page) == ["torch:mine"]
    page.reload()
    assert _labels(page) == ["torch:mine"]
    assert {"q=mine", "sort=window"} <= {*page.url.partition("#")[2].split("&")}


def test_a_filter_by_dtype_changes_verdicts(page: Any) -> None:
    wrong = page.get_by_role("button", name="torch:mine, all: wrong")
    assert wrong.count() == 1
    page.locator("#dtype").select_option("bf16")
    assert wrong.count() == 0
    page.locator("#dtype").select_option("f32")
    page.locator("#differs").check()
    names = page.locator("#matrix thead th:not(.name) button").all_inner_texts()
    assert {"causal", "window"} & {*names} == {"causal"}


def test_an_entry_opens_its_failures(page: Any) -> None:
    page.get_by_role("button", name="torch:mine, causal: wrong").click()
    dialog = page.locator("#details")
    assert dialog.is_visible()
    dialog.locator("summary").click()
    assert HOSTILE in dialog.inner_text()
    assert "values[torch:mine/" in dialog.locator("pre").inner_text()
    dialog.get_by_role("button", name="copy").click()
    dialog.get_by_role("button", name="copied").wait_for()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.wait_for_function("!location.hash.includes('open=')")


def test_two_implementations_are_compared(page: Any) -> None:
    page.locator("#a").select_option("torch:mine")
    page.locator("#b").select_option("jax:jax-nn")
    text = page.locator("#comparison").inner_text()
    assert "no-keys\tzeros\tnan" in text
    assert "causal\twrong: 0 of 1 judged cells pass\tright: 1 of 1 judged cells pass" in text


def test_a_notebook_shows_the_page_of_a_report(browser: Any) -> None:
    opened = browser.new_page()
    opened.set_content(Report(_runs()[1])._repr_html_())
    inside = opened.frame_locator("iframe")
    inside.get_by_role("button", name="torch:mine, causal: wrong").click()
    assert inside.locator("#details").is_visible()
    opened.close()


@pytest.mark.parametrize("width", [360, 1280, 1920])
def test_the_page_fits_and_serves_everyone(page: Any, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "site"
    write(frames_of(_runs()), "A title", folder)
    return folder


def test_a_site_has_a_page_for_every_implementation(site: Path) -> None:
    names = ["jax-jax-nn.html", "tf-eager.html", "torch-mine.html"]
    assert sorted(path.name for path in site.glob("implementations/*")) == names
    index, mine = (
        (site / name).read_text("utf-8")
        for name in ("index.html", "implementations/torch-mine.html")
    )
    again = "values[torch:mine/sdpa/causal"
    assert (again in index, again in mine) == (False, True)
    assert (HOSTILE in index, HOSTILE in mine) == (False, False)
    assert "jax-nn" not in mine
    assert (
        mine.index('id="elections"') < mine.index('id="distribution"') < mine.index('id="history"')
    )
    for folder in (site, site.parent):
        with pytest.raises(FileExistsError):
            write(frames_of(_runs()), "A title", folder)


def test_the_matrix_has_the_newest_run_and_the_page_has_all() -> None:
    first, last = _runs()
    frames = frames_of([last, first])  # in any order
    assert {*latest(frames["dated"])["label"]} == {"torch:mine", "jax:jax-nn", "tf:eager"}
    assert len(latest(frames["dated"])) == len(last.cells)
    texts = dict(pages(frames, "A title"))
    history = texts["implementations/torch-mine.html"].partition('id="history"')[2]
    assert history.index(first.header.started) < history.index(last.header.started)
    assert history.count("torch 2.13.0") == 2
    assert CHANGED.of(frames["dated"])[["before", "status", "case"]].to_numpy().tolist() == [
        ["pass", "fail", first.cells[0].case]
    ]
    assert 'id="changed"' not in texts["implementations/jax-jax-nn.html"]
    assert "first.jsonl" not in texts["implementations/jax-jax-nn.html"]


def test_the_newest_run_may_come_in_parts() -> None:
    """Parts of one run, of which a cell was asked twice, beside an older run of other cells."""
    one, two = cell("sdpa/none/mha/f32/b1h1q1k1d8"), cell("sdpa/none/mha/f32/b1h1q1k2d8")
    gone, worse = cell("sdpa/none/mha/f32/b1h1q1k3d8"), replace(one, status="fail")
    parts = {
        "old": (gone, "a", "1"),
        "1": (one, "b", "3"),
        "2": (two, "b", "2"),
        "3": (worse, "b", "4"),
    }
    runs = [
        run(each, source=f"{name}.jsonl", digest=digest, started=started)
        for name, (each, digest, started) in parts.items()
    ]
    newest = latest(frames_of(runs)["dated"])
    assert dict(zip(newest["case"], newest["status"], strict=True)) == {
        one.case: "fail", two.case: "pass"
    }  # fmt: skip
    assert {*newest["label"]} == {"torch:sdpa"}


def test_the_matrix_has_the_newest_times_and_the_page_all() -> None:
    speed = [
        SpeedRun(
            SpeedHeader(protocol=2, started=started),
            (timed("mine", seconds, backend="torch"),),
            source,
        )
        for source, started, seconds in (
            ("b.jsonl", "2026-11-21", 3e-3),
            ("a.jsonl", "2026-11-20", 5e-3),
        )
    ]
    frames = frames_of(_runs()) | {"measurements": measurements(speed)}
    assert newest_times(frames["measurements"])["seconds"].to_list() == [3e-3]
    text = dict(pages(frames, "A title"))["implementations/torch-mine.html"]
    assert '"gpt2-train forward f32": [2.25, 3.0, 4.5]' in text
    shown = text.partition('<section id="speed">')[2].partition("</section>")[0]
    assert re.findall(r"<td[^>]*>([35])</td>", shown) == ["5", "3"]


def test_a_distribution_counts_every_ratio_once() -> None:
    ratios = [0.0, 0.01, 0.010001, 0.3, 1.0, 1.0001, float("inf")]
    judged = run(
        *(cell(f"sdpa/none/mha/f32/b1h1q1k{n}d8", error_ratio=r) for n, r in enumerate(ratios))
    )
    (row,) = DISTRIBUTION.of(frame_of(judged)).to_dict("records")
    assert [row[n] for n in ("≤ 0.01", "≤ 0.03", "≤ 0.1", "≤ 0.3", "≤ 1", "> 1")] == [
        2,
        1,
        0,
        1,
        1,
        2,
    ]
    assert (row["median"], row["max"]) == (0.3, float("inf"))


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
    opened, errors = browser.new_page(viewport={"width": width, "height": 900}), []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((site / "index.html").as_uri())
    opened.locator("#dtype").select_option("f32")
    opened.get_by_role("link", name="torch:mine, causal: wrong").click()
    assert opened.url.partition("#")[0].endswith("implementations/torch-mine.html")
    assert "dtype=f32" in opened.url
    opened.locator("#details summary").click()
    assert HOSTILE in opened.locator("#details").inner_text()
    opened.keyboard.press("Escape")
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
    assert errors == []
    opened.close()


def test_a_site_needs_a_folder_and_judged_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from suite.__main__ import main
    from tests.records_by_hand import write as write_run

    write_run(tmp_path / "run.jsonl", _runs()[1])
    words = ["report", str(tmp_path / "run.jsonl"), "--format=site"]
    assert main(words) == 2
    assert "name a folder by --output" in capsys.readouterr().err
    assert main([*words, f"--output={tmp_path / 'site'}", "--table", "runs"]) == 2
    assert "leave --table out" in capsys.readouterr().err
    assert main([*words, f"--output={tmp_path / 'site'}"]) == 0
    assert (tmp_path / "site" / "index.html").is_file()
