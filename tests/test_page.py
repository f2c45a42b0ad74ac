"""The first screen of a page: its data, and the page in a real browser."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.report import Report
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.report.frames import facts_of, latest, measurements
from attention_conformance.suite.report.kinds import CONFORMANCE, frames_of
from attention_conformance.suite.report.overview import overview
from attention_conformance.suite.report.render import render
from attention_conformance.suite.report.site import write
from attention_conformance.suite.report.topics import TOPICS
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.recorded import header as header_of
from tests import page_questions
from tests.conftest import watched
from tests.rows import cell, elect, header, run, timed
from tests.rows import timings as speed
from tests.test_report_site import HOSTILE, facts, runs


def hostile() -> Any:
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


@pytest.fixture
def shown() -> dict[str, Any]:
    return overview(frames_of(runs()[1]))


def test_the_counts_of_every_topic_add_up(shown: dict[str, Any]) -> None:
    names = [topic["name"] for topic in shown["topics"]]
    assert names == ["all", "plain", "causal", "window", "gradients", "rotary"]
    labels = [row["label"] for row in shown["rows"]]
    counts = {(labels[r], names[t], dtype): rest for r, t, dtype, *rest in shown["counts"]}
    *tally, (command, *worst) = counts["torch:mine", "plain", "f32"]
    assert tally == [3, 0, 0, 0]
    assert worst == ["values", "sdpa/none/mha/f32/b2h3q5k7d8", 0.25, None]
    assert shown["commands"][command] == "pytest suite --backend=torch --level=smoke"
    assert counts["jax:jax-nn", "window", "f32"][4] is None
    assert counts["torch:mine", "causal", "f32"][:4] == [0, 1, 0, 0]
    assert counts["jax:jax-nn", "window", "f32"][:4] == [0, 0, 0, 1]
    assert sum(sum(c[:4]) for (_, topic, _), c in counts.items() if topic == "all") == 11
    assert shown["rows"][labels.index("tf:eager")]["control"]
    assert not shown["rows"][labels.index("torch:mine")]["control"]


def test_implementations_stand_by_operator() -> None:
    rotary = cell(implementation="torch:rope", operator="rotary", case="rotary/x/f32")
    frames = frames_of([run(rotary, *(c for one in runs() for c in one.cells))])
    shown = overview(frames)["rows"]
    assert [row["operator"] for row in shown] == ["sdpa", "sdpa", "rotary", "rotary"]
    assert [row["backend"] for row in shown] == ["torch", "jax", "torch", "tf"]


def test_every_operator_belongs_to_a_topic() -> None:
    from attention_conformance.suite.spec.operators import OPERATORS

    named = {name for topic in TOPICS for name in topic.operators}
    assert named == {name for name, operator in OPERATORS.items() if not operator.is_default}


def test_failing_and_refused_cells_say_how_they_are_asked_again(shown: dict[str, Any]) -> None:
    (failure,) = shown["failures"]
    command, *its = failure["cell"]
    assert shown["commands"][command] == "pytest suite --backend=torch --level=smoke"
    assert its == ["values", "sdpa/causal/mha/f32/b2h3q5k7d8", "inf", None]
    assert failure["kind"] == "value"
    window = [topic["name"] for topic in shown["topics"]].index("window")
    ((reason, cells, (command, *its)),) = shown["reasons"][f"1 {window}"]
    assert (reason, cells) == ("no window", 1)
    assert shown["commands"][command] == "pytest suite --backend=jax --level=smoke"
    assert its[:2] == ["values", "sdpa/win3/mha/f32/b2h3q5k7d8"]
    assert [shown["topics"][n]["name"] for n in failure["topics"]] == ["all", "causal"]


def test_a_command_names_the_mode_that_is_not_eager() -> None:
    cells = [cell(mode="compiled"), cell("sdpa/none/mha/f32/b1h1q1k1d8")]
    commands = overview(frames_of(run(*cells, again=("--seed=1",))))["commands"]
    assert commands == [
        "pytest suite --backend=torch --seed=1 --mode=compiled",
        "pytest suite --backend=torch --seed=1",
    ]


def test_a_run_records_the_options_that_ask_a_cell_again() -> None:
    options = Options(
        backend=("torch",), mode="compiled", level="smoke", dtype=("f32",), function=("my k.py:f",),
        claim=("dtypes=f16",),
    )  # fmt: skip
    assert header_of(options, {}).again == (
        "--function=my k.py:f", "--claim=dtypes=f16", "--level=smoke"
    )  # fmt: skip


def test_the_sentences_say_what_is_wrong_and_what_changed() -> None:
    sentences = overview(frames_of(runs()))["sentences"]
    assert any("A causal query sees the next key." in text for text in sentences)
    assert sentences[0] == "2 of 3 implementations are right in all that they were asked."
    assert sentences[-1] == (
        "Since the first of the records: 1 new failures, 0 fixed, of 1 cells that were asked again."
    )
    assert overview(frames_of(runs(again="pass")))["sentences"][-1].startswith(
        "Since the first of the records: 0 new failures, 0 fixed"
    )


def test_a_known_failure_cites_its_cause_and_its_finding() -> None:
    from attention_conformance.suite.records.findings import SEVERITIES, STATES, manifests

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
    shown = overview(frames_of(run(named)))
    (failure,) = shown["failures"]
    assert (failure["cause"], failure["finding"]) == (known.cause, known.finding)
    finding = shown["findings"][known.finding]
    assert finding["severity"] in SEVERITIES
    assert finding["state"] in STATES


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The page of both runs, with every error of its console in `page.errors`."""
    read = [facts("torch:mine", scale="1/D", softmax="over the keys", **{"value-size": "accepted"}),
            facts("jax:jax-nn", scale="1/sqrt(D)", softmax="over the keys"),
            facts("torch:mine", "2026-11-20", scale="1")]  # fmt: skip
    frames = frames_of(runs()[1]) | {"facts": facts_of(read)}
    render(CONFORMANCE.of(frames), "html", tmp_path / "p.html", overview=overview(frames))
    with watched(browser, width=1280, height=900) as opened:
        opened.goto((tmp_path / "p.html").as_uri())
        yield opened
        assert opened.errors == []


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
    command = dialog.locator("pre").inner_text()
    assert command == (
        "pytest suite --backend=torch --level=smoke "
        "-k 'values[torch:mine/sdpa/causal/mha/f32/b2h3q5k7d8]'"
    )
    dialog.get_by_role("button", name="copy").click()
    dialog.get_by_role("button", name="copied").wait_for()
    dialog.evaluate("node => node.append(document.createElement('textarea'))")
    dialog.locator("textarea").focus()
    page.keyboard.press("Control+v")
    assert dialog.locator("textarea").input_value() == command
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.wait_for_function("!location.hash.includes('open=')")


def test_an_entry_of_right_or_refused_cells_opens_too(page: Any) -> None:
    dialog = page.locator("#details")
    page.get_by_role("button", name="torch:mine, plain: right").click()
    assert "0.25\u00d7 its bound" in dialog.inner_text()
    dialog.locator("summary", has_text="bf16").click()
    asked = "values[torch:mine/sdpa/none/mha/bf16/b2h3q5k7d8]"
    assert asked in dialog.locator("pre:visible").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="jax:jax-nn, window: refused").click()
    dialog.locator("summary", has_text="no window").click()
    assert "values[jax:jax-nn/sdpa/win3/" in dialog.locator("pre:visible").inner_text()


def test_the_page_is_used_by_keys_alone(page: Any) -> None:
    mark = page.get_by_role("button", name="torch:mine, causal: wrong")
    mark.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#details")
    dialog.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert dialog.get_by_role("button", name="copy").is_visible()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.closest('#matrix') !== null")


def test_print_has_the_matrix_and_no_controls(page: Any) -> None:
    page.emulate_media(media="print")
    assert page.locator("#matrix").is_visible()
    assert page.locator(".controls").is_hidden()


def test_two_implementations_are_compared(page: Any) -> None:
    page.locator("#a").select_option("torch:mine")
    page.locator("#b").select_option("jax:jax-nn")
    text = page.locator("#comparison").inner_text()
    assert "scale\t1/D\t1/sqrt(D)" in text
    assert "softmax" not in text
    # What a run did not ask, probes may have read.
    assert "value-size\taccepted\traises" in text
    assert text.count("value-size") == 1
    assert "no-keys\tzeros\tnan" in text
    assert "causal\twrong: 0 of 1 judged cells pass\tright: 1 of 1 judged cells pass" in text
    assert "f32\tnone, median inf, largest inf\tnot measured" in text
    assert "query f32\t0.5\t0.25" in text
    assert "key f32\t0.125\tnot asked" in text


def test_a_notebook_shows_the_page_of_a_report(browser: Any) -> None:
    opened = browser.new_page()
    opened.set_content(Report(runs()[1])._repr_html_())
    inside = opened.frame_locator("iframe")
    inside.get_by_role("button", name="torch:mine, causal: wrong").click()
    assert inside.locator("#details").is_visible()
    opened.close()


def test_a_table_is_sorted_by_a_column(page: Any) -> None:
    page.locator(".tables > summary").click()
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


def test_hostile_text_in_every_field_stays_text(browser: Any, tmp_path: Path) -> None:
    made = hostile()
    read = facts(f"{made.cells[0].backend}:{made.cells[0].implementation}", **{HOSTILE: HOSTILE})
    frames = frames_of(made) | {"facts": facts_of([read])}
    write(frames, HOSTILE, tmp_path / "site")
    first = overview(frames)
    render(
        CONFORMANCE.of(frames, [*CONFORMANCE.tables]), "html", tmp_path / "p.html", HOSTILE, first
    )
    (of_one,) = (tmp_path / "site" / "implementations").iterdir()
    with watched(browser) as opened:
        for path in (tmp_path / "p.html", tmp_path / "site" / "index.html", of_one):
            opened.goto(path.as_uri())
            if path.name != "index.html":
                opened.locator("#matrix .mark").first.click()
                for one in opened.locator("#details summary").all():
                    one.click()
                assert f"{HOSTILE} message" in opened.locator("#details").inner_text()
                command = shlex.split(opened.locator("#details pre").first.inner_text())
                name = f"{read.records[0].backend}:{read.records[0].implementation}"
                check = command[-1].removesuffix(f"[{name}/{HOSTILE} case]")
                assert check in (f"{HOSTILE} check", "values", "gradients")
                assert command[:3] == ["pytest", "suite", f"--backend={HOSTILE} backend"]
            assert HOSTILE in opened.locator("h1").text_content()
            assert opened.locator("img").count() == 0
            assert opened.locator("script").count() == 2
        assert opened.errors == []


@pytest.mark.slow
def test_a_hundred_thousand_cells_open_at_once(browser: Any, tmp_path: Path) -> None:
    path = page_questions.page_of_many(100_000, tmp_path / "p.html")
    assert path.stat().st_size < 10e6
    assert page_questions.opened(browser, path.as_uri()) < 2.0


def test_the_page_answers_what_people_ask(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    made = [
        *runs()[1].cells,
        cell("sdpa/none/gqa2/bf16/b2h4q5k7d8", "torch:mine", features=("grouped-heads",)),
        *elect("nan-in-masked-key", {"f32": "leaks"}, "jax:jax-nn"),
        *elect("nan-in-masked-key", {"f32": "blocked"}, "torch:mine"),
    ]
    both = [
        runs()[0],
        replace(run(*made, source="last.jsonl"), header=header(*made, started="2026-12-01")),
    ]
    times = [timed(n, s, backend=b, workload="llama-decode")
             for b, n, s in (("torch", "mine", 8e-3), ("jax", "jax-nn", 4e-3))]  # fmt: skip
    frames = frames_of(both) | {"measurements": measurements([speed(*times)])}
    first = overview(frames, newest=latest(frames["cells"]))
    render({}, "html", page, overview=first)
    asked = {
        q: (answer, actions) for q, answer, actions, _ in page_questions.ask(browser, page.as_uri())
    }
    assert [*asked.values()][:4] == [
        ("torch:mine, grouped: right: 1 of 1 judged cells pass", 1),
        ("jax:jax-nn", 1),
        ("jax:jax-nn, 4.00 ms in llama-decode forward f32", 1),
        (
            "Since the first of the records: 1 new failures, 0 fixed, of 1 cells that were asked again.",
            0,
        ),
    ]
    page_questions.photograph(browser, page.as_uri(), tmp_path)
    assert len([*tmp_path.glob("*-*-*.png")]) == 18


OPENS = ("", "#open=torch%3Amine+%2F+causal", "#a=torch:mine&b=jax:jax-nn")


@pytest.mark.parametrize(
    ("width", "opens"), [(1280, ""), (1920, ""), *((360, opens) for opens in OPENS)]
)
def test_the_page_fits_and_serves_everyone(page: Any, width: int, opens: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{page.url}{opens}")
    page.reload()
    assert page.locator("#details").is_visible() == opens.startswith("#open")
    assert bool(page.locator("#comparison").inner_text()) == opens.startswith("#a")
    if not opens:
        page.locator(".tables > summary").click()
    for summary in page.locator("#details summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
