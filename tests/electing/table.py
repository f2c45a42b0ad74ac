"""The table of elections and answers: kernels in which every answer meets every other that fits.

The rows are a covering array of strength 2: what one answer excuses, another must not hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attention_conformance.suite.judge.elections.lse import AGREES
from attention_conformance.suite.spec.covering import Row, covering_array, each_value
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.operator import MODES
from tests.electing.kernel import Answers, completed

Axes = Mapping[str, Sequence[str]]
"""Answers by question; "uniform, scores" is that to a question, and to the one of its gradient."""

EMPTY = ("zeros, nothing", "nan, nan", "nan, nothing", "uniform, values", "uniform, scores",
         "uniform, nothing", "raises, raises")  # fmt: skip
"""Rows without keys, and where their cotangents go."""

KEYS = {
    "causal-alignment": ("top-left", "bottom-right", "raises"),
    "causal-with-mask": ("intersect", "raises", "causal-ignored", "mask-ignored"),
    "lowest-row": ("", "uniform", "unmasked", "minus-inf-row"),
}
"""Of what attends. A row of lowest numbers may be what one of -inf is."""

ATTENTION: Axes = {
    "fully-masked-row": (*EMPTY, "unmasked, scores"),
    "minus-inf-row": EMPTY,
    **KEYS,
    "no-keys": ("zeros", "nan", "raises"),
    "nan-in-masked-key": ("blocked, blocked", "blocked, leaks", "leaks, leaks"),
    "nan-in-masked-value": ("blocked, blocked", "leaks, leaks"),
    "nan-in-query": ("nan", "zeros"),
    "value-size": ("accepted", "raises"),
    "integer-mask": ("raises", "cast-to-bool", "added"),
    "subnormal-output": ("kept", "flushed"),
    "lse-of-empty-row": ("minus-inf", "lowest", "all-keys", "zero", "plus-inf", "nan", "raises"),
    "lse-gradient": ("flows", "nothing", "raises"),
    "score-overflow": ("finite", "nan"),
}
"""Plain attention."""

LAYER: Axes = {
    "fully-masked-row": (*EMPTY, "unmasked, scores"),
    "padded-sample": ("zeros", "nan", "uniform", "unmasked", "raises"),
    "minus-inf-row": ("zeros", "nan", "uniform", "raises"),
    **KEYS,
    "causal-alone": ("hides", "ignored", "raises"),
    "mask-polarity": ("attends", "hides"),
    "returned-weights": ("before-dropout", "after-dropout"),
    "nan-in-masked-key": ("blocked", "leaks"),
    "nan-in-masked-value": ("blocked", "leaks"),
}
"""Layers of multi-head attention."""


NOBODY = {
    **{
        f"{question}={answer}": "functions of tests/functions/ambient.py, or frameworks, give it"
        for question in MODES
        for answer in QUESTIONS[question].options
    },
    "lowest-row=weighted": "`log_sum_exp` of tests/functions/of_torch.py gives it",
    "mask-polarity=raises": "a layer that refuses boolean masks has no parameter for them",
}
"""Answers that this kernel does not give, with the reason."""


def valid(row: Row) -> bool:
    """Whether one kernel can give these answers."""
    rows, lse = row.get("fully-masked-row"), row.get("lse-of-empty-row")
    if rows is None or lse is None:
        return True
    whole = (rows == "raises, raises") == (lse == "raises")
    return whole and (lse != "all-keys" or rows == "unmasked, scores")


def rows_of(axes: Axes, few: bool = False) -> list[Answers]:
    """Kernels by their answers: every two that fit together, or with `few` every one."""
    rows = covering_array(axes, valid, spread=list(axes))
    return [
        answers_of({n: str(v) for n, v in row.items()})
        for row in (each_value(rows) if few else rows)
    ]


def answers_of(row: Mapping[str, str]) -> Answers:
    """A row of a table as answers by question."""
    answers: dict[str, str] = {}
    for question, value in row.items():
        answer, _, gradient = value.partition(", ")
        answers[question] = answers["minus-inf-row"] if answer == "minus-inf-row" else answer
        if gradient:
            answers[f"{question}-gradient"] = gradient
    return answers


def contradicted(answers: Answers) -> set[str]:
    """The checks that fail a kernel which gives these answers and promises none of them: two that nobody
    gives together, or one that is a mistake unless it is promised."""
    every = completed(answers)
    flags = every["causal-with-mask"], every["causal-alone"]
    checks = (
        {"mask_beside_flag"} if {*flags} & {"causal-ignored", "mask-ignored", "ignored"} else set()
    )
    if every["lse-of-empty-row"] not in AGREES[every["fully-masked-row"]] + ("minus-inf",):
        checks.add("lse_of_empty_rows")
    if every["fully-masked-row"] != every["minus-inf-row"]:
        checks.add("forms_of_empty_rows")
    return checks
