"""Promise: a right kernel is green whatever it elects, observed or promised, and red if it is held to
another answer than it gives. Answers that nobody gives fail, each alone or together. The page of
elections says what the questions are, and what implementations declare."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import read_elections
from attention_conformance.backends.declared import LOWEST_IN_FLOAT32
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import installed, modules, registered
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.run.elections import declared_answers, page, section
from attention_conformance.suite.spec.elections import QUESTIONS, ElectionCase
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import BROKEN
from tests.electing import native
from tests.electing.kernel import Answers, completed
from tests.electing.table import ATTENTION, LAYER, NOBODY, Axes, contradicted, rows_of
from tests.test_claims import judged, plan, wrong


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: `make` makes one of answers; `like` is what --like says. `axes` are the answers
    that it can give."""

    make: Callable[[Answers], Any]
    axes: Axes
    like: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions that are put to the kind."""
        return OPERATORS[self.like or "sdpa"].questions.elections

    def kernel(self, answers: Answers, elect: Iterable[str] = ()) -> Implementation:
        """A kernel of these answers, of which some are promised in the words of --elect."""
        backend, said = registry.load("torch"), {"elections": read_elections(elect)}
        function = self.make(answers)
        return registry.callable_implementation(backend, function, "electing", said, self.like)[0]

    def promises(self, answers: Answers) -> list[str]:
        """All that a kernel of these answers is asked, in the words of --elect."""
        every = {n: answer for n, answer in completed(answers).items() if n in self.asked}
        words = [f"{question}={answer}" for question, answer in every.items() if answer]
        if every.get("lowest-row") == "":
            words += [f"lowest-row={dt}:{answer}" for dt, answer in LOWEST_IN_FLOAT32.items()]
        return words


KINDS = {
    "function": Kind(native.of_torch, ATTENTION),
    "layer": Kind(native.layer_of_torch, LAYER, "multi-head"),
}


def failures(
    kernels: Sequence[Implementation], level: str, names: Iterable[str] = all_checks()
) -> list[dict[str, str]]:
    """The checks that fail of each kernel, each with its first failure. Cases are outermost, so that each
    needs its oracle once for all kernels."""
    failed: dict[Implementation, dict[str, str]] = {kernel: {} for kernel in kernels}
    for name in names:
        for cell in all_checks()[name].cells(level, kernels):
            verdict = judge(cell)
            if verdict.status not in ("pass", "unsupported"):
                message = f"{cell.case.id}: {verdict.status}, {verdict.message}"
                failed[cell.implementation].setdefault(name, message)
    return list(failed.values())


def expect_right(kind: Kind, rows: Sequence[Answers], level: str) -> None:
    """Kernels of these answers are green if they promise them. If they promise none, the checks fail that
    find answers which nobody gives together, and no other."""
    promised = [kind.kernel(answers, kind.promises(answers)) for answers in rows]
    observed = [kind.kernel(answers) for answers in rows]
    failed = failures([*promised, *observed], level)
    messages = [f"promised {a}: {f}" for a, f in zip(rows, failed, strict=False) if f]
    for answers, found in zip(rows, failed[len(rows) :], strict=True):
        if answers.get("mask-polarity") == "hides":  # masks of persons' layers are documented
            right = "values" in found
        else:
            right = found.keys() == contradicted(answers)
        messages += [] if right else [f"observed {answers}: {found}"]
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize("name", KINDS)
def test_every_answer_is_one_that_a_kernel_gives(name: str) -> None:
    """What can be promised by --elect, some right kernel keeps."""
    kind = KINDS[name]
    given = {(q, answer) for row in rows_of(kind.axes) for q, answer in completed(row).items()}
    given |= {("lowest-row", answer) for answer in LOWEST_IN_FLOAT32.values()}
    missing = {(q, answer) for q in kind.asked for answer in QUESTIONS[q].options} - given
    assert not {f"{q}={a}" for q, a in missing if not {a, f"{q}={a}"} & NOBODY.keys()}


def put(kernel: Implementation, question: str) -> set[str]:
    """What becomes of the cells that put a question to a kernel."""
    cells = all_checks()["election"].cells("standard", [kernel])
    asked = (
        c for c in cells if isinstance(c.case, ElectionCase) and c.case.question.name == question
    )
    return {judge(cell).status for cell in asked}


@pytest.mark.parametrize("name", KINDS)
def test_held_to_another_answer_a_kernel_is_red(name: str) -> None:
    kind = KINDS[name]
    red: dict[tuple[str, str], bool] = {}
    for row in rows_of(kind.axes):
        for question, answer in completed(row).items():
            if not answer or question not in kind.asked or red.get((question, answer)):
                continue
            others = [option for option in QUESTIONS[question].options if option != answer]
            if not others:
                continue
            rest = [p for p in kind.promises(row) if not p.startswith(f"{question}=")]
            statuses = put(kind.kernel(row, [*rest, f"{question}={others[0]}"]), question)
            assert "pass" not in statuses, (question, row)
            red[question, answer] = "fail" in statuses
    assert all(red.values()), red


def test_a_row_of_minus_inf_may_be_derived_through_equal_scores() -> None:
    """As of a kernel that clamps -inf to the lowest number."""
    answers = {"minus-inf-row": "uniform", "minus-inf-row-gradient": "scores"}
    assert put(KINDS["function"].kernel(answers), "minus-inf-row-gradient") <= {
        "pass",
        "unsupported",
    }


BOTTOM_RIGHT = {
    "causal-alignment": "bottom-right", "fully-masked-row": "uniform", "minus-inf-row": "uniform",
}  # fmt: skip
"""Rows before the first key average all values."""


@pytest.mark.seldom
@pytest.mark.parametrize("name", KINDS)
def test_every_answer_at_smoke(name: str) -> None:
    """Kernels of a kind share their oracles, so that those that align bottom-right are asked here."""
    kind = KINDS[name]
    expect_right(kind, [*rows_of(kind.axes, few=True), BOTTOM_RIGHT], "smoke")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_two_answers_at_standard(name: str) -> None:
    kind = KINDS[name]
    expect_right(kind, rows_of(kind.axes), "standard")


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
    text = page(declared_answers(name))
    assert any(rows(text, question, name) for question in QUESTIONS)
    for question in QUESTIONS:
        assert rows(text, question, name) == rows(PAGE, question, name)


@pytest.mark.slow
def test_the_page_is_that_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    if missing := set(registered()) - set(installed()):
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    assert main(["elections"]) == 0
    assert capsys.readouterr().out == PAGE


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("rows_of_two_kinds", "forms_of_empty_rows", "fully-masked-row is zeros, minus-inf-row is"),
        ("nan_gradients", "gradient_of_finite_rows", "a finite fully masked row has NaN gradients"),
        ("other_dtype", "one_answer_in_all_dtypes", "is zeros in bf16 and nan in"),
        (
            "lse_of_empty_is_zero",
            "lse_of_empty_rows",
            "lse-of-empty-row is zero, fully-masked-row is",
        ),
        ("empty_is_42", "election", "fully masked rows are neither zeros, nor NaN"),
    ],
)
def test_what_nobody_elects_fails(name: str, check: str, message: str) -> None:
    """Only answers that nobody gives cannot be promised."""
    failures = wrong(judged(plan(name, "faulty.py"), check))
    said = [text for text in failures if message in text]
    assert said, failures
    assert any("--elect" in text for text in said) == (check != "election")


def test_a_drop_in_is_free_where_frameworks_answer_by_accident() -> None:
    of = plan("healthy_stand_in", "faulty.py", dtype=("f32", "bf16"), drop_in=True)
    verdicts = judged(of, "election")
    assert not wrong(verdicts)
    answers = {cell.case.id: verdict.measured for cell, verdict in verdicts}
    leak = answers["elect/nan-in-masked-value/f32"]
    assert (leak.observed, leak.native) == ("blocked", "leaks")


RERUN = ("contract", "stateless", "invariant_rerun")
BATCH = ("invariant_batch", "invariant_rerun")
PADDING = ("invariant_padding",)


@pytest.mark.parametrize(
    ("name", "claim", "checks", "said"),
    [
        ("varying", (), RERUN, "not-deterministic"),
        ("varying", ("deterministic=False",), RERUN, ""),
        ("order_of_sums_by_batch", (), BATCH, ""),
        ("order_of_sums_by_batch", ("bitwise=batch,rows",), BATCH,
         "alone and in a batch of 3, promised bit by bit: element"),
        ("order_of_sums_by_place", ("bitwise=padding",), PADDING, ""),
        ("order_of_sums_by_padding", (), PADDING, ""),
        ("order_of_sums_by_padding", ("bitwise=padding",), PADDING,
         "22 keys padded to 28 and padded to 34, promised bit by bit: element"),
    ],
)  # fmt: skip
def test_bits_are_held_to_what_is_claimed(
    name: str, claim: tuple[str, ...], checks: tuple[str, ...], said: str
) -> None:
    verdicts = judged(plan(name, "faulty.py", dtype=("f32",), claim=claim), *checks)
    failing = [verdict for _, verdict in verdicts if verdict.status in BROKEN]
    assert bool(failing) == bool(said), failing
    assert not said or any(said in f"{v.kind}: {v.message}" for v in failing), failing
    if name == "order_of_sums_by_place":
        assert [verdict.measured.observed for _, verdict in verdicts] == ["bitwise"]
