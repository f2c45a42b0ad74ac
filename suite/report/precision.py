"""Tables of judged cells: how precise answers and gradients are, and which kernels gave them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from suite.report.table import Columns, Table
from suite.spec.vocabulary import GRADES, VALUES

if TYPE_CHECKING:
    import pandas as pd

GRADIENTS = ("gradients", "gradient_of_bias")
"""The checks that hold gradients against their reference."""

BY_DTYPE = {"implementation": "label", "dtype": "dtype"}


def _classes(rows: pd.DataFrame) -> str:
    """The numerics classes that cells were held to."""
    return ", ".join(dict.fromkeys(filter(None, rows["numerics"])))


def _widest(rows: pd.DataFrame) -> str:
    """The widest grade; one that another version of the suite gave is wider than all but "none"."""
    width = {"none": len(GRADES)} | {grade: n for n, grade in enumerate(GRADES) if grade != "none"}
    unknown = len(GRADES) - 0.5
    return max(filter(None, rows["grade"]), key=lambda grade: width.get(grade, unknown), default="")


def _number(condition: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], int]:
    return lambda rows: int(condition(rows).sum())


def _measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of the check `VALUES` that were asked. An answer that is not finite where it should be
    has an infinite error ratio, and the grade "none"; so has a wrong answer without a grade."""
    rows = cells.query(f"check == '{VALUES}' and status != 'unsupported'")
    wrong = (rows["status"] != "pass") & rows["kind"].isin(["non-finite", "value"])
    return rows.assign(
        error_ratio=rows["error_ratio"].where(rows["kind"] != "non-finite", math.inf),
        grade=rows["grade"].mask(wrong & (rows["grade"] == ""), "none"),
    )


def _worst_case(rows: pd.DataFrame) -> str:
    measured = rows[rows["error_ratio"].notna()]
    return "".join(measured.nlargest(1, "error_ratio")["case"])


ACCURACY = Table(
    "accuracy",
    "The check values: error ratio = max |error| / bound of the declared numerics class; the grade is "
    "the narrowest class whose bounds hold for all cells (exact, fused and eager coincide for f32 and "
    "f64); beyond counts the cells outside their bound.",
    rows=_measured,
    by=BY_DTYPE,
    columns={
        "numerics": _classes,
        "grade": _widest,
        "cells": ("error_ratio", "count"),
        "beyond": _number(lambda rows: rows["error_ratio"] > 1),
        "unmeasured": _number(lambda rows: rows["error_ratio"].isna()),
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
        "rms": ("rms", "max"),
        "case": _worst_case,
    },
)


_RATIO = "ratio of "


def _differentiated(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of the checks `GRADIENTS` that were asked, with a column for every error ratio."""
    from suite.report.frames import expanded

    rows = cells[cells["check"].isin(GRADIENTS) & (cells["status"] != "unsupported")]
    return rows.join(expanded(rows["ratios"]).add_prefix(_RATIO))


def _of_gradients(rows: pd.DataFrame) -> Columns:
    ratios = [str(name) for name in rows.filter(like=_RATIO)]
    return {
        "numerics": _classes,
        "grade": _widest,
        "cells": len,
        "beyond": _number(lambda rows: rows["status"] != "pass"),
        **{name.removeprefix(_RATIO): (name, "max") for name in ratios},
    }


OF_GRADIENTS = Table(
    "gradients",
    "The checks gradients and gradient_of_bias: the largest error ratio of the gradient by each operand "
    "and parameter, in the bound that is derived for the declared class, and the widest grade.",
    rows=_differentiated,
    by=BY_DTYPE,
    columns=_of_gradients,
)

KERNELS = Table(
    "kernels",
    "Which kernels compiled implementations ran, in their framework's own words, with the number of "
    "cells.",
    rows=f"check == '{VALUES}' and kernels != ''",
    by={"implementation": "label", "kernels": "kernels"},
    columns={"cells": len},
)
