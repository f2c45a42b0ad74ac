"""The page of elections says what the questions are, and what implementations declare."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attention_conformance.backends.registry import installed, modules, registered
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.run.elections import Elected, declared, page, section
from attention_conformance.suite.spec.elections import QUESTIONS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "data" / "elections.md").read_text(
    encoding="utf-8"
)


def rows(text: str, question: str, backend: str) -> list[str]:
    """The rows of a backend below a question."""
    block = text.split(f"## {question}\n")[1].split("\n## ")[0]
    return [line for line in block.splitlines() if f"| {backend} |" in line]


def test_every_question_is_there_with_its_answers() -> None:
    assert PAGE.startswith(page({}).split("## ")[0])
    for question in QUESTIONS.values():
        assert section(question, {}) in PAGE


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_answers_are_those_declared(name: str) -> None:
    if not all(importlib.util.find_spec(module) for module in modules(name)):
        pytest.skip(f"needs {name}")
    text = page(declared(name))
    assert any(rows(text, question, name) for question in QUESTIONS)
    for question in QUESTIONS:
        assert rows(text, question, name) == rows(PAGE, question, name)


def test_voters_are_told_apart_by_answer_and_dtype() -> None:
    elected: Elected = {
        "a:one": {"nan-in-query": {"f32": "nan", "f16": "zeros"}},
        "a:two": {"nan-in-query": {"f32": "nan", "f16": "nan"}},
        "b:one": {"no-keys": {"f32": "zeros"}},
    }
    assert section(QUESTIONS["nan-in-query"], elected).splitlines()[4:] == [
        "| answer | backend | implementations |",
        "|---|---|---|",
        "| nan | a | `one` (f32), `two` |",
        "| zeros | a | `one` (f16) |",
    ]


@pytest.mark.slow
def test_the_page_is_that_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    if missing := set(registered()) - set(installed()):
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    assert main(["elections"]) == 0
    assert capsys.readouterr().out == PAGE
