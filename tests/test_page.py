"""The page of results: what its first screen says, and the page in a real browser."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.report import Report
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.report.frames import facts_of, measurements
from attention_conformance.suite.report.kinds import CONFORMANCE, conformance_frames
from attention_conformance.suite.report.overview import overview
from attention_conformance.suite.report.render import render
from attention_conformance.suite.report.site import write_site
from attention_conformance.suite.report.topics import TOPICS
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.recorded import header as header_of
from attention_conformance.suite.spec.operators import OPERATORS
from tests.conftest import watched
from tests.rows import cell, run, timed, timings
from tests.test_report_site import HOSTILE, facts, runs

CAUSAL = "sdpa/causal/mha/f32/b2h3q5k7d8"


def rows_of(*loaded: Run, **frames: Any) -> dict[str, dict[str, Any]]:
    """The rows of the first screen by label."""
    return {row["label"]: row for row in overview(conformance_frames([*loaded]) | frames)["rows"]}


def test_a_verdict_counts_the_cells_of_its_topic_and_dtype() -> None:
    rows = rows_of(runs()[1])
    assert {label: row["shown"]["verdicts"] for label, row in rows.items()} == {
        "torch:mine": {
            "all": {
                "": "wrong: 4 of 5 judged cells pass",
                "f32": "wrong: 3 of 4 judged cells pass",
                "bf16": "right: 1 of 1 judged cells pass",
            },
            "plain": {
                "": "right: 4 of 4 judged cells pass",
                "f32": "right: 3 of 3 judged cells pass",
                "bf16": "right: 1 of 1 judged cells pass",
            },
            "causal": dict.fromkeys(("", "f32"), "wrong: 0 of 1 judged cells pass"),
            "gradients": dict.fromkeys(("", "f32"), "right: 1 of 1 judged cells pass"),
        },
        "jax:jax-nn": {
            "all": dict.fromkeys(("", "f32"), "right: 4 of 4 judged cells pass"),
            "plain": dict.fromkeys(("", "f32"), "right: 3 of 3 judged cells pass"),
            "causal": dict.fromkeys(("", "f32"), "right: 1 of 1 judged cells pass"),
            "window": dict.fromkeys(("", "f32"), "refused: 1 cells"),
            "gradients": dict.fromkeys(("", "f32"), "right: 1 of 1 judged cells pass"),
        },
        "tf:eager": {
            "all": dict.fromkeys(("", "f32"), "right: 1 of 1 judged cells pass"),
            "rotary": dict.fromkeys(("", "f32"), "right: 1 of 1 judged cells pass"),
        },
    }
    assert [row["shown"]["control"] for row in rows.values()] == [False, False, True]


def test_implementations_stand_by_operator_and_every_operator_has_a_topic() -> None:
    rotary = cell(implementation="torch:rope", operator="rotary", case="rotary/x/f32")
    rows = rows_of(run(rotary, *(c for one in runs() for c in one.cells)))
    assert [*rows] == ["torch:mine", "jax:jax-nn", "torch:rope", "tf:eager"]
    named = {name for topic in TOPICS for name in topic.operators}
    assert named == {name for name, operator in OPERATORS.items() if not operator.is_default}


def test_cells_say_how_they_are_judged_again() -> None:
    rows = rows_of(runs()[1])
    mine, other = rows["torch:mine"]["items"], rows["jax:jax-nn"]["items"]
    (failure,) = mine["failing cells"]
    assert failure["summary"] == f"values {CAUSAL} inf times its bound"
    assert failure["script"] == (
        f"pytest suite --backend=torch --level=smoke -k 'values[torch:mine/{CAUSAL}]'"
    )
    assert (failure["topics"], failure["texts"]) == ("all,causal", [HOSTILE])
    worst = [
        (one["dtype"], one["topics"]) for one in mine["the largest error of a right cell, by dtype"]
    ]
    assert worst == [("f32", "all,plain"), ("f32", "gradients"), ("bf16", "all,plain")]
    (refusal,) = other["refused, by reason"]
    assert (refusal["summary"], refusal["mark"], refusal["topics"]) == (
        "no window", "1 cells", "all,window",
    )  # fmt: skip
    assert "-k 'values[jax:jax-nn/sdpa/win3/" in refusal["script"]
    compiled = cell(mode="compiled", status="fail")
    (row,) = rows_of(run(compiled, again=("--seed=1",))).values()
    (failure,) = row["items"]["failing cells"]
    assert failure["script"].startswith("pytest suite --backend=torch --seed=1 --mode=compiled -k ")


def test_a_run_records_the_options_that_ask_a_cell_again() -> None:
    options = Options(
        backend=("torch",), mode="compiled", level="smoke", dtype=("f32",), function=("my k.py:f",),
        claim=("dtypes=f16",),
    )  # fmt: skip
    assert header_of(options, {}).again == (
        "--function=my k.py:f", "--claim=dtypes=f16", "--level=smoke"
    )  # fmt: skip


@pytest.mark.parametrize(("again", "counts"), [("fail", "1 new"), ("pass", "0 new")])
def test_the_sentences_say_what_is_wrong_and_what_changed(again: str, counts: str) -> None:
    sentences = overview(conformance_frames(runs(again=again)))["sentences"]
    wrong = [text for text in sentences if text.endswith("A causal query sees the next key.")]
    assert len(wrong) == (again == "fail")
    assert sentences[0].startswith("2 of 3" if wrong else "3 of 3")
    assert sentences[-1] == (
        f"Since the first of the records: {counts} failures, 0 fixed, of 1 cells that were judged again."
    )


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The page of the later run with facts and times, and the errors of its console in `page.errors`."""
    read = [facts("torch:mine", scale="1/D", softmax="over the keys", **{"value-size": "accepted"}),
            facts("jax:jax-nn", scale="1/sqrt(D)", softmax="over the keys"),
            facts("torch:mine", "2026-11-20", scale="1")]  # fmt: skip
    times = [timed(n, s, backend=b, workload="llama") for b, n, s in
             (("torch", "mine", 8e-3), ("jax", "jax-nn", 4e-3))]  # fmt: skip
    more = {"facts": facts_of(read), "measurements": measurements([timings(*times)])}
    frames = conformance_frames(runs()[1]) | more
    render(CONFORMANCE.make(frames), "html", tmp_path / "p.html", overview=overview(frames))
    with watched(browser, width=1280, height=900) as opened:
        opened.goto((tmp_path / "p.html").as_uri())
        yield opened
        assert opened.errors == []


def labels(page: Any) -> list[str]:
    return page.locator("#matrix tbody tr:visible th a").all_inner_texts()


def test_rows_are_filtered_sorted_and_kept_in_the_address(page: Any) -> None:
    choose = {
        name: page.locator(f"[name={name}]") for name in ("controls", "framework", "q", "dtype")
    }
    assert labels(page) == ["torch:mine", "jax:jax-nn"]
    choose["controls"].check()
    assert labels(page) == ["torch:mine", "jax:jax-nn", "tf:eager"]
    choose["framework"].select_option("jax")
    assert labels(page) == ["jax:jax-nn"]
    choose["framework"].select_option("")
    page.get_by_role("button", name="window", exact=True).click()
    assert labels(page)[0] == "jax:jax-nn"  # refused comes before not asked
    for text in ("mine", "no-keys=zeros"):
        choose["q"].fill(text)
        assert labels(page) == ["torch:mine"]
    page.reload()
    assert labels(page) == ["torch:mine"]
    assert {"q=no-keys%3Dzeros", "sort=window"} <= {*page.url.partition("#")[2].split("&")}
    choose["q"].fill("")
    page.get_by_role("button", name="speed", exact=True).click()
    assert labels(page)[0] == "jax:jax-nn"
    speeds = page.locator("#matrix tr:visible td[data-name=speed]")
    assert speeds.all_inner_texts() == ["1.00\u00d7", "2.00\u00d7", ""]
    page.locator("[name=workload]").select_option("llama forward f32")
    assert speeds.all_inner_texts() == ["4.00 ms", "8.00 ms", ""]
    wrong = page.get_by_role("link", name="torch:mine, all: wrong")
    for dtype, count in (("bf16", 0), ("f32", 1)):
        choose["dtype"].select_option(dtype)
        assert wrong.count() == count
    page.locator("[name=differs]").check()
    names = page.locator("#matrix thead th:visible").all_inner_texts()
    assert {"causal", "window"} & {*names} == {"causal"}


def test_an_entry_opens_its_cells_by_keys_alone(page: Any) -> None:
    dialog = page.locator("dialog[open]")
    for entry, summary, shown in (
        ("torch:mine, causal: wrong", CAUSAL, f"'values[torch:mine/{CAUSAL}]'"),
        ("torch:mine, plain: right", "bf16", "'values[torch:mine/sdpa/none/mha/bf16/b2h3q5k7d8]'"),
        ("jax:jax-nn, window: refused", "no window", "'values[jax:jax-nn/sdpa/win3/"),
    ):
        page.get_by_role("link", name=entry).focus()
        page.keyboard.press("Enter")
        dialog.locator("summary:visible", has_text=summary).focus()
        page.keyboard.press("Enter")
        assert shown in dialog.locator("pre:visible").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_function("!location.hash.includes('open=')")
        assert not dialog.is_visible()
        assert page.evaluate("document.activeElement.closest('#matrix') !== null")


def test_a_search_for_two_implementations_compares_them(page: Any) -> None:
    page.locator("[name=controls]").check()
    page.locator("[name=q]").fill("torch:mine | jax no-keys=nan")
    page.locator("[name=differs]").check()
    assert labels(page) == ["torch:mine", "jax:jax-nn"]
    names = page.locator("#matrix thead th:visible").all_inner_texts()
    assert {"causal", "window", "plain", "gradients"} & {*names} == {"causal"}
    page.emulate_media(media="print")
    assert page.locator("#matrix").is_visible()
    assert page.locator(".controls").is_hidden()


def test_a_notebook_shows_the_page_of_a_report(browser: Any) -> None:
    opened = browser.new_page()
    opened.set_content(Report(runs()[1])._repr_html_())
    inside = opened.frame_locator("iframe")
    inside.get_by_role("link", name="torch:mine, causal: wrong").click()
    assert inside.locator("dialog[open]").is_visible()
    opened.close()


def test_a_table_is_sorted_by_a_column(page: Any) -> None:
    page.locator("#statuses > summary").click()
    column = "#statuses tbody td:nth-child({})"

    def entries(number: int) -> list[str]:
        return page.locator(column.format(number)).all_inner_texts()

    page.locator(column.format(4)).first.evaluate("entry => { entry.textContent = '12' }")
    names, cells = entries(1), ["12", "5", "1"]
    assert entries(4) == cells
    for head, number, order in (
        ("cells", 4, ["1", "5", "12"]),
        ("cells", 4, cells),
        ("implementation", 1, sorted(names)),
    ):
        page.locator("#statuses").get_by_role("button", name=head, exact=True).click()
        assert entries(number) == order
    head = page.locator("#statuses th[aria-sort]")
    assert (head.inner_text(), head.get_attribute("aria-sort")) == ("implementation", "ascending")


def hostile() -> Run:
    """A run with `HOSTILE` in every text that no list of words bounds."""
    bounded = {"dtype", "status", "operator", "kind"}
    texts = {
        f.name: f"{HOSTILE} {f.name}"
        for f in fields(CellRecord)
        if f.type == "str" and f.name not in bounded
    }
    statuses = ("pass", "fail", "known", "unsupported", "error", "crash")
    cells = [
        replace(cell(status=status), **texts, seed=seed, error_ratio=0.5, facts={HOSTILE: HOSTILE},
                ratios={HOSTILE: 0.25}, features=(HOSTILE,))
        for seed, status in enumerate(statuses)
    ]  # fmt: skip
    ours = texts["backend"], texts["implementation"]
    asked = replace(cells[0], check="election", question=HOSTILE, observed=HOSTILE)
    judged = [replace(c, check=check) for c in cells for check in ("values", "gradients")]
    told = DiagnosisRecord(
        *ours, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, 0, HOSTILE, HOSTILE, HOSTILE, HOSTILE
    )
    made = run(*cells, *judged, asked, versions={HOSTILE: HOSTILE}, machine={"cpu": HOSTILE},
               options={HOSTILE: HOSTILE}, again=(HOSTILE,), source=HOSTILE)  # fmt: skip
    return replace(made, diagnoses=(told,))


def test_hostile_text_in_every_field_stays_text(browser: Any, tmp_path: Path) -> None:
    made = hostile()
    read = facts(f"{made.cells[0].backend}:{made.cells[0].implementation}", **{HOSTILE: HOSTILE})
    frames = conformance_frames(made) | {"facts": facts_of([read])}
    write_site(frames, HOSTILE, tmp_path / "site")
    every = CONFORMANCE.make(frames, [*CONFORMANCE.tables])
    render(every, "html", tmp_path / "p.html", HOSTILE, overview(frames))
    (of_one,) = (tmp_path / "site" / "implementations").iterdir()
    with watched(browser) as opened:
        for path in (tmp_path / "p.html", tmp_path / "site" / "index.html", of_one):
            opened.goto(path.as_uri())
            if path.name != "index.html":
                opened.locator("#matrix .mark").first.click()
                its = opened.locator(".implementation")
                for one in its.locator("summary:visible").all():
                    one.click()
                assert f"{HOSTILE} message" in its.inner_text()
                command = shlex.split(its.locator("pre").first.inner_text())
                name = f"{read.records[0].backend}:{read.records[0].implementation}"
                check = command[-1].removesuffix(f"[{name}/{HOSTILE} case]")
                assert check in (f"{HOSTILE} check", "values", "gradients")
                assert command[:3] == ["pytest", "suite", f"--backend={HOSTILE} backend"]
            assert HOSTILE in opened.locator("h1").text_content()
            assert opened.locator("img").count() == 0
            assert opened.locator("script").count() == 1
        assert opened.errors == []


@pytest.mark.parametrize(
    ("width", "opens"),
    [(1280, ""), (1920, ""), (360, ""), (360, "#open=torch%3Amine+%2F+causal")],
)
def test_the_page_fits_and_serves_everyone(page: Any, width: int, opens: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{page.url}{opens}")
    page.reload()
    assert page.locator("dialog[open]").count() == opens.startswith("#open")
    for summary in page.locator(
        "dialog[open] summary:visible" if opens else ".table > summary"
    ).all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
