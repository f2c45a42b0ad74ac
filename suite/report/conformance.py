"""What passed and what did not: scores, counts by group, and the failures themselves."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from suite.report.frames import labels, order
from suite.spec.vocabulary import STATUSES

FAILING = ("crash", "error", "fail", "known")
"""The statuses of cells that did not do what was asked, the gravest first."""

UNSUPPORTED = "unsupported"
"""The status of cells that an implementation was not asked."""

_WHERE = ["check", "case"]


class Tally(str):
    """Cells passed / asked of a group as text, with what else became of them; what is unsupported was not
    asked. `status` is the gravest one among them, "pass" where all of the group passed, and "unsupported"
    where the others are unsupported."""

    status: str

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Tally:
        """The tally of these cells per status."""
        others = [status for status in (*FAILING, UNSUPPORTED) if counts.get(status)]
        passed, trials = counts.get("pass", 0), sum(counts.values()) - counts.get(UNSUPPORTED, 0)
        listed = ", ".join(f"{counts[status]} {status}" for status in others)
        tally = cls(f"{passed}/{trials} ({listed})" if others else f"{passed}/{trials}")
        tally.status = others[0] if others else "pass"
        return tally


def statuses(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation; columns score, coverage, cells (how many), and a count per status.

    The score is pass / asked, coverage asked / all cells; all but unsupported cells are asked. NaN where
    nothing was asked: what implements nothing has no score, and no coverage.
    """
    label = labels(cells)
    counts = pd.crosstab(label, cells["status"]) if len(cells) else pd.DataFrame()
    counts = counts.reindex(index=order(label), columns=list(STATUSES), fill_value=0).astype(int)
    total = counts.sum(axis=1)
    trials = total - counts[UNSUPPORTED]
    shares = pd.DataFrame(
        {"score": counts["pass"] / trials, "coverage": trials / total, "cells": total}
    )
    return shares.join(counts)


def unsupported(cells: pd.DataFrame) -> pd.DataFrame:
    """Why cells were not asked, a row per reason, the most frequent first; index reason.

    Columns: cells (how many), implementations (those that give the reason, the first one of many), and
    one of the cells by check and case.
    """
    refused = cells.assign(implementation=labels(cells))[cells["status"] == UNSUPPORTED]
    by_reason = refused.groupby("message", sort=False)
    columns = {
        "cells": by_reason.size(),
        "implementations": by_reason["implementation"].agg(_listed),
        **{name: by_reason[name].first() for name in _WHERE},
    }
    table = pd.concat(columns, axis=1).rename_axis("reason")
    return table.sort_values("cells", ascending=False, kind="stable")


def _listed(names: pd.Series) -> str:
    """The different names; of more than three the first, and how many more."""
    first, *others = dict.fromkeys(names)
    return ", ".join([first, *others]) if len(others) < 3 else f"{first} and {len(others)} more"


def conformance_long(cells: pd.DataFrame) -> pd.DataFrame:
    """Columns implementation, group, status, cells: the counts, one row each, none of them 0."""
    keys = [labels(cells), cells["group"].replace("", "other"), cells["status"]]
    return cells.groupby(keys, sort=False).size().rename("cells").reset_index()


def conformance(cells: pd.DataFrame) -> pd.DataFrame:
    """`conformance_long` for people: index implementation, the columns of `statuses`, then groups.

    An entry is a `Tally`: "passed/asked", followed in brackets by the cells that crashed, broke or
    failed; what is then left is unsupported. Empty where the group was not asked.
    """
    long = conformance_long(cells)
    totals = statuses(cells)
    groups = long["group"].drop_duplicates()
    entries = pd.DataFrame("", index=totals.index, columns=list(groups), dtype=object)
    for (label, group), block in long.groupby(["implementation", "group"], sort=False):
        entries.loc[label, group] = Tally.of(
            dict(zip(block["status"], block["cells"], strict=True))
        )
    return pd.concat([totals, entries], axis=1)


def failures(cells: pd.DataFrame) -> pd.DataFrame:
    """Every cell whose status is one of `FAILING`, the gravest first."""
    failing = cells.assign(implementation=labels(cells))[cells["status"].isin(FAILING)]
    failing = failing.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")
    columns = ["status", "implementation", *_WHERE, "kind", "error_ratio", "message"]
    return failing[columns].reset_index(drop=True)


def only_here(cells: pd.DataFrame) -> pd.DataFrame:
    """Failures that occur in exactly one implementation while at least one other passes.

    The columns of `failures`, with `passed`, the number of implementations that pass.
    """
    per_cell = _outcomes(cells)
    alone = per_cell[(per_cell["failing"] == 1) & (per_cell["passed"] > 0)]
    alone_here = failures(cells).merge(alone["passed"].reset_index(), on=_WHERE)
    return alone_here[[*alone_here.columns.drop(["passed", "message"]), "passed", "message"]]


def everywhere(cells: pd.DataFrame) -> pd.DataFrame:
    """Check and case that fail in every implementation that supports them, at least two.

    Columns check, case, implementations (how many), kinds, and the message of one of them.
    """
    per_cell = _outcomes(cells)
    all_fail = per_cell[(per_cell["failing"] == per_cell["supported"]) & (per_cell["failing"] > 1)]
    shared = failures(cells).merge(all_fail["failing"].reset_index(), on=_WHERE)
    grouped = shared.groupby(_WHERE, sort=False)
    kinds = grouped["kind"].agg(lambda kind: ", ".join(dict.fromkeys(k for k in kind if k)))
    parts = {"implementations": grouped["failing"].first(), "kinds": kinds}
    parts["message"] = grouped["message"].first()
    return pd.concat(parts, axis=1).reset_index()


def _outcomes(cells: pd.DataFrame) -> pd.DataFrame:
    """By check and case: in how many implementations it is supported, fails, and passes throughout.

    An implementation that was asked with several seeds fails where any of them does.
    """
    frame = cells.assign(
        implementation=labels(cells),
        supported=cells["status"] != "unsupported",
        failing=cells["status"].isin(FAILING),
    )
    each = frame.groupby([*_WHERE, "implementation"], sort=False)[["supported", "failing"]].any()
    each["passed"] = each["supported"] & ~each["failing"]
    return each.groupby(_WHERE, sort=False).sum().astype(int)


def slowest(cells: pd.DataFrame, count: int = 20) -> pd.DataFrame:
    """The `count` cells that took longest to judge, conversion and oracle included."""
    longest = cells.assign(implementation=labels(cells)).nlargest(count, "seconds")
    return longest[["seconds", "implementation", *_WHERE, "status"]].reset_index(drop=True)
