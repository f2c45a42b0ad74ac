"""Promise: a right kernel is green whatever it elects, observed or promised, and red if it is held to
another answer than it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import read_elections
from attention_conformance.backends.declared import LOWEST_IN_FLOAT32
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.spec.elections import QUESTIONS, ElectionCase
from attention_conformance.suite.spec.operators import OPERATORS
from tests.electing import native
from tests.electing.kernel import Answers, completed
from tests.electing.table import ATTENTION, LAYER, NOBODY, Axes, contradicted, rows_of


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: `make` makes one of answers, for a backend; `like` is what --like says. `axes`
    are the answers that it can give."""

    make: Callable[[Answers], Any]
    backend: str
    axes: Axes
    like: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions that are put to the kind."""
        return OPERATORS[self.like or "sdpa"].questions.elections

    def kernel(self, answers: Answers, elect: Iterable[str] = ()) -> Implementation:
        """A kernel of these answers, of which some are promised in the words of --elect."""
        elections = read_elections(elect)
        if self.make is native.ElectingKernel:
            return native.ElectingKernel(KernelBackend("numpy", ()), answers, elections)
        pytest.importorskip({"tf": "keras"}.get(self.backend, self.backend))
        backend = registry.load(self.backend)
        said = {"elections": elections}
        function = self.make(answers)
        return registry.callable_implementation(backend, function, "electing", said, self.like)[0]

    def promises(self, answers: Answers) -> list[str]:
        """All that a kernel of these answers is asked, in the words of --elect."""
        every = {n: answer for n, answer in completed(answers).items() if n in self.asked}
        words = [f"{question}={answer}" for question, answer in every.items() if answer]
        if every.get("lowest-row") == "":
            words += [f"lowest-row={dt}:{answer}" for dt, answer in LOWEST_IN_FLOAT32.items()]
        return words


def without(axes: Axes, question: str, *answers: str) -> Axes:
    """The axes without some answers to a question."""
    return {**axes, question: tuple(answer for answer in axes[question] if answer not in answers)}


# An operation that has no gradient gives none in NumPy, and raises in torch.
QUIET = without(ATTENTION, "lse-gradient", "raises")

KINDS = {
    "torch": Kind(native.of_torch, "torch", ATTENTION),
    "numpy": Kind(native.ElectingKernel, "numpy", QUIET),
    "layer": Kind(native.layer_of_torch, "torch", LAYER, "multi-head"),
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
    assert {f"{q}={a}" for q, a in missing if not {a, f"{q}={a}"} & NOBODY.keys()} == (
        {"lse-gradient=raises"} if kind.axes is QUIET else set()
    )


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
    never = {question for (question, _), failed in red.items() if not failed}
    assert never <= ({q for q in kind.asked if "gradient" in q} if name == "numpy" else set())


BOTTOM_RIGHT = {
    "causal-alignment": "bottom-right", "fully-masked-row": "uniform", "minus-inf-row": "uniform",
}  # fmt: skip
"""Rows before the first key average all values."""


def test_bottom_right_is_right_in_torch() -> None:
    expect_right(KINDS["torch"], [BOTTOM_RIGHT], "smoke")


@pytest.mark.seldom
@pytest.mark.parametrize("name", ["numpy", "layer"])
def test_every_answer_at_smoke(name: str) -> None:
    """Kernels of a kind share their oracles, so that those that align bottom-right are asked here."""
    kind = KINDS[name]
    expect_right(kind, [*rows_of(kind.axes, few=True), BOTTOM_RIGHT], "smoke")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_two_answers_at_standard(name: str) -> None:
    kind = KINDS[name]
    expect_right(kind, rows_of(kind.axes), "standard")
