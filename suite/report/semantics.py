"""Tables of judged cells: elections, invariance of answers, and features that work together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from attention_conformance.suite.report.conformance import BY_IMPLEMENTATION, UNSUPPORTED
from attention_conformance.suite.report.table import (
    Groups,
    Table,
    first_entry,
    per_value,
    value_counts,
)
from attention_conformance.suite.spec.vocabulary import (
    INVARIANCE_GRADES,
    INVARIANT,
    STATUSES,
    VALUES,
)

if TYPE_CHECKING:
    import pandas as pd

ELECTION = "election"
"""The check that asks election questions."""

PROBES = f"question != '' and check == '{ELECTION}'"
"""The cells that ask an election question. Checks of the consistency of answers also name questions."""

DIFFERS = " *"
"""The mark of an answer that differs from the framework's own attention."""

NOT_ASKED = "-"


def by_dtype(answers: Mapping[str, str]) -> str:
    """Returns the most frequent answer, with other answers by dtype: "zeros (f16: unmasked)".

    Dtypes without the question are left out.
    """
    supported = {dtype: answer for dtype, answer in answers.items() if answer != UNSUPPORTED}
    if not supported:
        return NOT_ASKED
    usual = max(supported.values(), key=list(supported.values()).count)
    exceptions = [f"{dtype}: {answer}" for dtype, answer in supported.items() if answer != usual]
    return f"{usual} ({', '.join(exceptions)})" if exceptions else usual


def _with_answers(condition: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Returns a function that selects the rows of a frame by a condition, and adds two columns: `answer`,
    the observed answer or else the status; and `differs`, True if the framework's own attention gives
    another answer."""

    def rows(frame: pd.DataFrame) -> pd.DataFrame:
        rows = frame.query(condition)
        observed = rows["observed"].where(rows["observed"] != "", rows["status"])
        native = (rows["observed"] != "") & (rows["native"] != "")
        return rows.assign(
            answer=observed.mask(rows["status"] == UNSUPPORTED, UNSUPPORTED),
            differs=native & (rows["observed"] != rows["native"]),
        )

    return rows


def _answers(
    groups: Groups, column: str = "answer", choose: Callable[[str, str], str] = lambda old, new: new
) -> pd.Series:
    """Returns a text for each group: its answers by dtype (see `by_dtype`), from a column of the frame.
    If a dtype has several answers, `choose(old, new)` returns the one that counts."""
    import pandas as pd

    index = groups.size().index
    answers: list[dict[str, str]] = [{} for _ in index]
    rows = groups.obj
    for group, dtype, answer in zip(groups.ngroup(), rows["dtype"], rows[column], strict=True):
        if answer:
            texts = answers[group]
            texts[dtype] = choose(texts[dtype], answer) if dtype in texts else answer
    return pd.Series([*map(by_dtype, answers)], index, dtype=object)


ELECTIONS = Table(
    "elections",
    "Observed answers to questions without a single right answer, by dtype if dtypes differ; - if the "
    "question cannot be asked; * marks an answer that differs from the framework's own attention.",
    rows=_with_answers(PROBES),
    by=BY_IMPLEMENTATION,
    columns={"answers": per_value("question", _answers)},
)


def _marked_answers(groups: Groups) -> pd.Series:
    """Returns a text for each group: its answers, with the mark `DIFFERS` if the framework's own
    attention gives another answer in some dtype."""
    return _answers(groups) + groups["differs"].any().map({True: DIFFERS, False: ""})


def _native_answers(groups: Groups) -> pd.DataFrame:
    """Returns a column with the answers of the framework's own attention; no column if there are none."""
    native = _answers(groups, "native").to_frame("the framework's own")
    return native if (groups.obj["native"] != "").any() else native[[]]


BY_QUESTION = Table(
    "elections",
    ELECTIONS.text,
    rows=_with_answers(PROBES),
    by={"question": "question"},
    columns={"answers": per_value("label", _marked_answers), "native": _native_answers},
)
"""`ELECTIONS` with a row per question; beside user functions the answers of the
framework's own attention."""

IDENTIFICATION = Table(
    "identification",
    "What implementations compute, measured by probes without a verdict: the command explain.",
    over="facts",
    by={"fact": "fact"},
    columns={"answers": per_value("label", first_entry("answer"))},
)

CHECKS_OF_INVARIANCE = {f"invariant_{kind}": name for kind, name in INVARIANT.items()}
"""The checks of `suite.test_invariance`, with their names in the table."""


_SEVERITY = {grade: n for n, grade in enumerate((UNSUPPORTED, *INVARIANCE_GRADES))}


def _worse(first: str, second: str) -> str:
    """Returns the worse of two grades of invariance. A text that is no grade is a status: "unsupported"
    counts as best, every other status as worst."""
    return max(first, second, key=lambda grade: _SEVERITY.get(grade, len(_SEVERITY)))


INVARIANCE = Table(
    "invariance",
    "Whether answers depend on what is computed beside them: a second call, other samples, other rows, "
    "the number of threads, decoding one token at a time, padding, keys in two parts that are merged. "
    "The worst grade, by dtype where dtypes differ: bitwise the same; within bound, other bits as near "
    "as rounding explains; broken. - where it cannot be asked.",
    rows=_with_answers(f"check in {list(CHECKS_OF_INVARIANCE)}"),
    by=BY_IMPLEMENTATION,
    columns={"grades": per_value("check", partial(_answers, choose=_worse), CHECKS_OF_INVARIANCE)},
)


def _with_feature_pairs(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the cells of the check `VALUES`, each repeated for every feature and every pair of features
    of its case. The column `together` names them."""
    rows = cells[cells["check"] == VALUES]
    together = rows["features"].map(
        lambda needed: [
            " + ".join(pair) for count in (1, 2) for pair in combinations(sorted(needed), count)
        ]
    )
    return rows.assign(together=together).explode("together").dropna(subset="together")


def _verdicts(groups: Groups) -> pd.Series:
    """Returns a text for each group: "refused" if no cell was judged, "right" if all judged cells pass,
    else "wrong (2 of 7)"."""
    numbers = value_counts("status", STATUSES)(groups)
    judged = numbers.drop(columns=UNSUPPORTED).sum(axis=1)
    wrong = judged - numbers["pass"]
    texts = "wrong (" + wrong.astype(str) + " of " + judged.astype(str) + ")"
    return texts.where(wrong > 0, "right").where(judged > 0, "refused")


TOGETHER = Table(
    "together",
    "What works together: for every feature of a case, and every two, whether all judged cells of the "
    "check values are right, some are wrong, or all are refused.",
    rows=_with_feature_pairs,
    by={"operator": "operator", "features": "together"},
    columns={"verdicts": per_value("label", _verdicts)},
    rare=True,
)
