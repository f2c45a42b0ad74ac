"""What people ask a page of results: actions and seconds until the answer stands there, and screenshots.

    python -m tests.page_questions RECORDS... [--output=FOLDER] [--cells=100000]

The page is made as `python -m suite report RECORDS... --format=html` makes it, and opened anew in
Chromium for every question. An action is a click, a choice or a line typed. With `--output` the page,
what entries open and a comparison are photographed at three widths in both themes. With `--cells` a page
of so many cells is made, too, and its size and the time until it can be read are said.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_conformance.suite.__main__ import main as suite
from attention_conformance.suite.records.files import new_folder
from attention_conformance.suite.report.kinds import CONFORMANCE, frames_of
from attention_conformance.suite.report.overview import overview
from attention_conformance.suite.report.render import render
from tests.conftest import chromium
from tests.rows import cell, run

WIDTHS, THEMES = (390, 1280, 1920), ("light", "dark")


class Visitor:
    """A page that was just opened, and the actions on it."""

    def __init__(self, page: Any) -> None:
        self.page, self.actions = page, 0

    def choose(self, control: str, value: str) -> None:
        self.actions += 1
        self.page.locator(f"#{control}").select_option(value)

    def write(self, text: str) -> None:
        self.actions += 1
        self.page.locator("#q").fill(text)

    def names(self, most: int = 3) -> str:
        """The implementations in the order shown."""
        shown = self.page.locator("#matrix tbody th").all_inner_texts()
        names = [text.split("\n")[0] for text in shown]
        return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


def is_right(visitor: Visitor) -> str:
    visitor.choose("dtype", "bf16")
    mark = visitor.page.locator("#matrix tbody td[data-name=grouped] .mark").first
    return str(mark.get_attribute("aria-label"))


def leaks(visitor: Visitor) -> str:
    visitor.write("nan-in-masked-key=leaks")
    return visitor.names()


def fastest(visitor: Visitor) -> str:
    offered = visitor.page.locator("#workload option").evaluate_all(
        "all => all.map((o) => o.value)"
    )
    decoding = [name for name in offered if "decode" in name]
    if not decoding:
        return "no times of a decoding workload are given"
    visitor.choose("workload", decoding[0])
    speed = visitor.page.locator("#matrix tbody td[data-name=speed]").first.inner_text()
    return f"{visitor.names(1).partition(' and ')[0]}, {speed} in {decoding[0]}"


def changed(visitor: Visitor) -> str:
    told = visitor.page.locator(".lead").all_inner_texts()
    return next((text for text in told if text.startswith("Since ")), "no cell was asked twice")


def swapped(visitor: Visitor) -> str:
    labels = visitor.page.evaluate(
        "data.rows.filter((row) => row.backend === data.rows[0].backend).map((row) => row.label)"
    )
    for control, label in zip("ab", labels, strict=False):
        visitor.choose(control, label)
    tables = visitor.page.locator("#comparison caption").all_inner_texts()
    rows = visitor.page.locator("#comparison tbody tr").count()
    return f"{' and '.join(labels[:2])}: {rows} rows of {len(tables)} tables ({'; '.join(tables)})"


QUESTIONS: dict[str, Callable[[Visitor], str]] = {
    "is X right with grouped heads in bf16?": is_right,
    "who leaks NaN?": leaks,
    "which right one decodes fastest?": fastest,
    "what changed since the last release?": changed,
    "can I swap A for B?": swapped,
}

VIEWS = {
    "page": "",
    "entry": "#open={label}+%2F+causal",
    "comparison": "#a={label}&b={other}",
}
"""What is photographed, by the end of its address."""


def ask(browser: Any, url: str) -> list[tuple[str, str, int, float]]:
    """Every question with its answer, the number of actions, and seconds from opening to the answer."""
    asked = []
    for question, answer in QUESTIONS.items():
        page, start = browser.new_page(viewport={"width": 1280, "height": 900}), time.monotonic()
        page.goto(url)
        visitor = Visitor(page)
        text = answer(visitor)
        asked.append((question, text, visitor.actions, time.monotonic() - start))
        page.close()
    return asked


def photograph(browser: Any, url: str, folder: Path) -> None:
    """Save pictures of the first screen of each view: a phone, a notebook, a large screen."""
    for width in WIDTHS:
        for theme in THEMES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            page.goto(url)
            label, other = page.evaluate("shown().slice(0, 2).map((row) => row.label)")
            for name, end in VIEWS.items():
                page.goto("about:blank")
                page.goto(url + end.format(label=label, other=other))
                page.screenshot(path=folder / f"{name}-{width}-{theme}.png")
            page.close()


def opened(browser: Any, url: str) -> float:
    """Seconds from opening a page to its last row, the shortest of three."""

    def once() -> float:
        page, start = browser.new_page(), time.monotonic()
        page.goto(url)
        page.locator("#matrix tbody tr").last.wait_for()
        took = time.monotonic() - start
        page.close()
        return took

    return min(once() for _ in range(3))


def many(cells: int, implementations: int = 100) -> Any:
    """A run of so many cells, of which one in ten is refused and one in fifty fails."""
    masks = ("none", "causal", "bool.bhqk", "win3", "prefix")
    needs = ((), ("causal",), ("mask-array",), ("window",), ("padding",))
    made = []
    for number in range(cells):
        one, case = number % implementations, number // implementations
        mask, dtype = case % len(masks), ("f32", "bf16", "f16")[case % 3]
        status = "unsupported" if case % 10 == 9 else "fail" if case % 50 == 24 else "pass"
        made.append(
            cell(
                f"sdpa/{masks[mask]}/mha/{dtype}/b2h3q5k{case}d8", f"torch:kernel-{one}", status,
                features=needs[mask], group=masks[mask].partition(".")[0], grade="exact",
                error_ratio=None if status == "unsupported" else 2.0 if status == "fail" else 0.5,
                kind="value" if status == "fail" else "", check=("values", "gradients")[case % 2],
                message={"unsupported": "does not declare sinks", "fail": "element [0, 1, 2, 3]: "
                         "expected 0.25, got 0.75, which is 2 times its bound"}.get(status, ""),
            )
        )  # fmt: skip
    return run(*made)


def page_of_many(cells: int, path: Path) -> Path:
    """The page of a run of so many cells."""
    frames = frames_of(many(cells))
    tables = CONFORMANCE.of(frames)
    render(tables, "html", path, overview=overview(frames, tables))
    return path


def main(arguments: list[str] | None = None) -> int:
    """Print answers, sizes and times; returns the exit code of `report`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", nargs="+", metavar="RECORDS")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="save pictures there")
    parser.add_argument("--cells", type=int, metavar="N", help="also a page of N cells")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        path = Path(place) / "page.html"
        if code := suite(["report", *options.records, "--format=html", f"--output={path}"]):
            return code
        for question, answer, actions, seconds in ask(browser, path.as_uri()):
            print(f"{question}\n    {answer}\n    {actions} actions, {seconds:.1f} s")
        pages = {"these records": path}
        if options.cells:
            pages[f"{options.cells} cells"] = page_of_many(options.cells, Path(place) / "many.html")
        for name, one in pages.items():
            size, seconds = one.stat().st_size / 1e6, opened(browser, one.as_uri())
            print(f"{name}: {size:.2f} MB, opens in {seconds:.2f} s")
        if options.output:
            photograph(browser, path.as_uri(), new_folder(options.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
