"""What implementations elect where the field has no single right answer, and whether answers vary."""

from __future__ import annotations

import pandas as pd

from suite.report.frames import groups, labels, order
from suite.report.precision import VALUES
from suite.spec.vocabulary import INVARIANCE_GRADES

INVARIANT = {
    "invariant_rerun": "a second call",
    "invariant_batch": "batch",
    "invariant_rows": "rows",
    "invariant_threads": "threads",
    "invariant_decode": "prefill and decode",
    "invariant_split": "split keys",
    "invariant_segments": "packed segments",
}
"""The checks of `suite.test_invariance`, with what they are called in the table."""

_CAPABILITIES = {
    "value-size": "Dv != D",
    "average": "averaged weights",
    "weights": "weights",
    "squeezed": "no batch axis",
}
"""Features of cases that layers differ in, with what they are called in the table."""

_OF_LAYERS = {"average", "weights", "squeezed"}
"""Features that only cases of layers need."""


ELECTION = "election"
"""The check that puts the questions; others ask whether answers hang together."""

DIFFERS = " *"
"""Follows an answer that is not the one of the framework's own attention."""


def probes_of(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that put a question."""
    return cells[(cells["question"] != "") & (cells["check"] == ELECTION)]


def by_question(cells: pd.DataFrame) -> pd.DataFrame:
    """`elections` with a row per question; beside persons' functions the answers of their frameworks' own
    attention, with `DIFFERS` behind every answer that is another one."""
    table = elections(cells).T.rename_axis("question")
    probes = probes_of(cells)
    probes = probes[probes["native"] != ""]
    own = {
        question: dict(zip(block["dtype"], block["native"], strict=True))
        for question, block in probes.groupby("question", sort=False)
    }
    if not own:
        return table
    named = labels(cells)[probes.index]
    differing = ~probes["observed"].isin([""]) & (probes["observed"] != probes["native"])
    for question, name in {*zip(probes["question"][differing], named[differing], strict=True)}:
        table.loc[question, name] = f"{table.loc[question, name]}{DIFFERS}"
    table["the framework's own"] = [_answer(own.get(name, {})) for name in table.index]
    return table


def elections(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation, columns questions: the observed answer.

    Where dtypes differ: "zeros (f16: unmasked)", the answer of most first. "-" where the question
    is not put to the implementation in any dtype; a dtype in which it is not put is left out. A
    probe that gave no answer shows its status. Empty where the records hold no such cell.
    """
    probes = probes_of(cells)
    answer = probes["observed"].where(probes["observed"] != "", probes["status"])
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[probes.index],
            "question": probes["question"],
            "dtype": probes["dtype"],
            "answer": answer.mask(probes["status"] == "unsupported", "unsupported"),
        }
    )
    table = pd.DataFrame(
        "",
        index=order(frame["implementation"]),
        columns=list(frame["question"].drop_duplicates()),
        dtype=object,
    )
    for (label, question), block in groups(frame, ["implementation", "question"]):
        answers = dict(zip(block["dtype"], block["answer"], strict=True))
        table.loc[label, question] = _answer(answers)
    return table


def invariance(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation, columns what is asked beside what; the worst grade of the checks `INVARIANT`.

    Where dtypes differ: "bitwise (bf16: within bound)", the grade of most first. "-" where nothing was
    asked in any dtype. A cell that observed no grade counts as its status, worse than every grade.
    Empty where the records hold no such cell.
    """
    probes = cells[cells["check"].isin(INVARIANT)]
    grade = probes["observed"].where(probes["observed"] != "", probes["status"])
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[probes.index],
            "kind": probes["check"].map(INVARIANT),
            "dtype": probes["dtype"],
            "grade": grade.mask(probes["status"] == "unsupported", "unsupported"),
        }
    )
    kinds = [kind for kind in INVARIANT.values() if (frame["kind"] == kind).any()]
    table = pd.DataFrame("", index=order(frame["implementation"]), columns=kinds, dtype=object)
    for (label, kind), block in groups(frame, ["implementation", "kind"]):
        worst = {
            str(dtype): max(grades, key=_severity)
            for dtype, grades in block.groupby("dtype", sort=False)["grade"]
        }
        table.loc[label, kind] = _answer(worst)
    return table


def _severity(grade: str) -> int:
    """How bad a grade of invariance is: what was not asked is best, what is no grade worst."""
    grades = ("unsupported", *INVARIANCE_GRADES)
    return grades.index(grade) if grade in grades else len(grades)


def _answer(by_dtype: dict[str, str]) -> str:
    answers_put = {dtype: answer for dtype, answer in by_dtype.items() if answer != "unsupported"}
    if not answers_put:
        return "-"
    answers = list(answers_put.values())
    most = max(answers, key=answers.count)
    others = ", ".join(
        f"{dtype}: {answer}" for dtype, answer in answers_put.items() if answer != most
    )
    return f"{most} ({others})" if others else most


def layers(cells: pd.DataFrame) -> pd.DataFrame:
    """What each layer does where layers differ; index implementation, empty without layers.

    A layer implements an operator that is asked for weights, or for an input without a batch axis.
    Columns: operator; every election question that is put to a layer; and what becomes of values of
    another size than keys (Dv != D), of averaged weights and of those of every head, and of a batch axis
    left out: "yes" where an answer of the check `VALUES` was right, "no" where it is not asked, else its
    status.
    """
    judged = cells[cells["check"] == VALUES]
    operators = judged["operator"][
        [not _OF_LAYERS.isdisjoint(needs) for needs in judged["features"]]
    ]
    cells = cells[cells["operator"].isin(operators)]
    if cells.empty:
        return pd.DataFrame(index=pd.Index([], name="implementation"))
    judged = cells[cells["check"] == VALUES].assign(label=labels(cells))
    table = elections(cells).reindex(order(judged["label"])).astype(object).fillna("")
    table.insert(0, "operator", judged.groupby("label", sort=False)["operator"].first())
    for feature, name in _CAPABILITIES.items():
        block = judged[[feature in needs for needs in judged["features"]]]
        by_label = {n: _capability(rows) for n, rows in block.groupby("label", sort=False)}
        table[name] = pd.Series(by_label, dtype=object)
    table = table.fillna("")
    said = (table.drop(columns="operator") != "").any(axis=1)
    return table[said].rename_axis("implementation")


def _capability(rows: pd.DataFrame) -> str:
    if (rows["status"] == "pass").any():
        return "yes"
    others = rows["status"][rows["status"] != "unsupported"]
    return "no" if others.empty else str(others.mode().iloc[0])
