"""Tables of judged cells: elections, invariance of answers, differences of layers, and features that work
together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from attention_conformance.suite.report.conformance import BY_IMPLEMENTATION, UNSUPPORTED
from attention_conformance.suite.report.table import Columns, Table, across, same
from attention_conformance.suite.spec.vocabulary import INVARIANCE_GRADES, INVARIANT, VALUES

if TYPE_CHECKING:
    import pandas as pd

ELECTION = "election"
"""The check that asks election questions."""

PROBES = f"question != '' and check == '{ELECTION}'"
"""The cells that ask an election question. Other checks ask whether answers are consistent."""

DIFFERS = " *"
"""The mark of an answer that differs from the framework's own attention."""

NOT_ASKED = "-"


def by_dtype(answers: Mapping[str, str]) -> str:
    """The most frequent answer, with other answers by dtype: "zeros (f16: unmasked)".

    Dtypes without the question are left out.
    """
    put = {dtype: answer for dtype, answer in answers.items() if answer != UNSUPPORTED}
    if not put:
        return NOT_ASKED
    most = max(put.values(), key=list(put.values()).count)
    others = [f"{dtype}: {answer}" for dtype, answer in put.items() if answer != most]
    return f"{most} ({', '.join(others)})" if others else most


def _observed(rows: pd.DataFrame) -> pd.Series:
    """The observed answers, or the status if there is none."""
    observed = rows["observed"].where(rows["observed"] != "", rows["status"])
    return observed.mask(rows["status"] == UNSUPPORTED, UNSUPPORTED)


def _answer(rows: pd.DataFrame) -> str:
    return by_dtype(dict(zip(rows["dtype"], _observed(rows), strict=True)))


ELECTIONS = Table(
    "elections",
    "Observed answers to questions without a single right answer, by dtype if dtypes differ; - if the "
    "question cannot be asked; * marks an answer that differs from the framework's own attention.",
    rows=PROBES,
    by=BY_IMPLEMENTATION,
    columns=across("question", _answer),
)


def _marked(rows: pd.DataFrame) -> str:
    """The answer, with `DIFFERS` if the framework's own attention gives another one in any dtype."""
    both = (rows["observed"] != "") & (rows["native"] != "")
    differs = (both & (rows["observed"] != rows["native"])).any()
    return f"{_answer(rows)}{DIFFERS if differs else ''}"


def _native(rows: pd.DataFrame) -> str:
    rows = rows[rows["native"] != ""]
    return by_dtype(dict(zip(rows["dtype"], rows["native"], strict=True)))


def _beside_native(rows: pd.DataFrame) -> Columns:
    columns = across("label", _marked)(rows)
    native = {"the framework's own": _native} if (rows["native"] != "").any() else {}
    return {**columns, **native}


BY_QUESTION = Table(
    "elections",
    ELECTIONS.text,
    rows=PROBES,
    by={"question": "question"},
    columns=_beside_native,
)
"""`ELECTIONS` with a row per question; beside user functions the answers of the
framework's own attention."""

IDENTIFICATION = Table(
    "identification",
    "What implementations compute, measured by probes without a verdict: the command explain.",
    over="facts",
    by={"fact": "fact"},
    columns=across("label", lambda rows: rows["answer"].iloc[0]),
)

CHECKS_OF_INVARIANCE = {f"invariant_{kind}": name for kind, name in INVARIANT.items()}
"""The checks of `suite.test_invariance`, with their names in the table."""


def _worst(rows: pd.DataFrame) -> str:
    """The worst grade by dtype. A cell without a grade counts as its status, which is worse than every
    grade, except "unsupported", which is best."""
    grades = (UNSUPPORTED, *INVARIANCE_GRADES)
    severity = {grade: n for n, grade in enumerate(grades)}
    worst: dict[str, str] = {}
    for dtype, grade in zip(rows["dtype"], _observed(rows), strict=True):
        known = worst.setdefault(dtype, grade)
        worst[dtype] = max(known, grade, key=lambda g: severity.get(g, len(grades)))
    return by_dtype(worst)


INVARIANCE = Table(
    "invariance",
    "Whether answers depend on what is computed beside them: a second call, other samples, other rows, "
    "the number of threads, decoding one token at a time, padding, keys in two parts that are merged. "
    "The worst grade, by dtype where dtypes differ: bitwise the same; within bound, other bits as near "
    "as rounding explains; broken. - where it cannot be asked.",
    rows=f"check in {list(CHECKS_OF_INVARIANCE)}",
    by=BY_IMPLEMENTATION,
    columns=across("check", _worst, CHECKS_OF_INVARIANCE),
)

_CAPABILITIES = {
    "value-size": "Dv != D",
    "average": "averaged weights",
    "weights": "weights",
    "squeezed": "no batch axis",
}
"""Features that some layers lack, with their names in the table."""

_OF_LAYERS = {"average", "weights", "squeezed"}
"""Features that only cases of layers have."""


def _needing(features: set[str], cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of the check `VALUES` whose case needs one of these features."""
    needing = cells["features"].map(lambda needed: not features.isdisjoint(needed)).astype(bool)
    return cells[needing & (cells["check"] == VALUES)]


def _layers(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of layers, without checks of the consistency of elections.

    An operator is a layer if a case needs weights, or an input without a batch axis.
    """
    cells = cells[cells["operator"].isin(_needing(_OF_LAYERS, cells)["operator"])]
    judged = cells["label"].isin(cells["label"][cells["check"] == VALUES])
    return cells[judged].query(f"question == '' or {PROBES}")


def _capability(feature: str, rows: pd.DataFrame) -> str:
    """ "yes" if an answer is right, "no" if the layer is never asked, else the most frequent status."""
    statuses = _needing({feature}, rows)["status"]
    if statuses.empty or (statuses == "pass").any():
        return "" if statuses.empty else "yes"
    others = statuses[statuses != UNSUPPORTED]
    return "no" if others.empty else str(others.mode().iloc[0])


def _of_layer(rows: pd.DataFrame) -> Columns:
    questions = {question: question for question in rows["question"] if question}
    capabilities = {name: partial(_capability, key) for key, name in _CAPABILITIES.items()}
    return {**same("operator"), **across("question", _answer, questions)(rows), **capabilities}


LAYERS = Table(
    "layers",
    "Differences of layers: fully masked rows and samples, the meaning of True in a mask, the causal "
    "flag beside a mask, the returned weights while dropout is on, and supported features.",
    rows=_layers,
    by=BY_IMPLEMENTATION,
    columns=_of_layer,
)


def _of_pairs(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of the check `VALUES`, once for every feature that the case needs, and every two."""
    rows = cells[cells["check"] == VALUES]
    together = rows["features"].map(
        lambda needed: [
            " + ".join(some) for count in (1, 2) for some in combinations(sorted(needed), count)
        ]
    )
    return rows.assign(together=together).explode("together").dropna(subset="together")


def _verdict(rows: pd.DataFrame) -> str:
    """Refused if no cell was judged, right if all judged cells pass, else wrong, with numbers."""
    judged = rows["status"][rows["status"] != UNSUPPORTED]
    wrong = int((judged != "pass").sum())
    if not len(judged):
        return "refused"
    return f"wrong ({wrong} of {len(judged)})" if wrong else "right"


TOGETHER = Table(
    "together",
    "What works together: for every feature of a case, and every two, whether all judged cells of the "
    "check values are right, some are wrong, or all are refused.",
    rows=_of_pairs,
    by={"operator": "operator", "features": "together"},
    columns=across("label", _verdict),
    rare=True,
)
