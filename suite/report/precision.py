"""How precise answers and gradients are, and which kernels gave them."""

from __future__ import annotations

import math

import pandas as pd

from suite.report.frames import by_operand, groups, labels
from suite.spec.vocabulary import GRADES

VALUES = "values"
"""The check that holds answers against the reference."""

GRADIENTS = ("gradients", "gradient_of_bias")
"""The checks that hold gradients against their reference."""


def accuracy(cells: pd.DataFrame) -> pd.DataFrame:
    """How precise the answers of the check `VALUES` are; index (implementation, dtype).

    Columns: numerics (the class declared); cells (judged on numbers); beyond (outside their bound);
    unmeasured (failed before any number could be compared); median, max (of the error ratio), case
    (of the max), rms (the largest), grade: the widest over the cells, "none" where no class holds,
    "" where nothing was graded. NaN or infinity where a number was due is an infinite error ratio
    and the grade "none". Cells that fail as expected count like any other.
    """
    judged = cells[(cells["check"] == VALUES) & (cells["status"] != "unsupported")]
    failed = judged["status"] != "pass"
    ratio = judged["error_ratio"].where(judged["kind"] != "non-finite", math.inf)
    ungraded = failed & judged["kind"].isin(("non-finite", "value")) & (judged["grade"] == "")
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[judged.index],
            "dtype": judged["dtype"],
            "numerics": judged["numerics"],
            "case": judged["case"],
            "ratio": ratio,
            "rms": judged["rms"],
            "grade": judged["grade"].mask(ungraded, "none"),
        }
    )
    rows = [_accuracy_of(key, block) for key, block in groups(frame, ["implementation", "dtype"])]
    columns = ["implementation", "dtype", "numerics", "grade", "cells", "beyond", "unmeasured"]
    columns += ["median", "max", "rms", "case"]
    return pd.DataFrame(rows, columns=columns).set_index(["implementation", "dtype"])


def _accuracy_of(key: tuple[str, str], block: pd.DataFrame) -> dict[str, object]:
    ratio = block["ratio"].dropna()
    return {
        "implementation": key[0],
        "dtype": key[1],
        **_class_of(block),
        "cells": len(ratio),
        "beyond": int((ratio > 1).sum()),
        "unmeasured": len(block) - len(ratio),
        "median": ratio.median(),
        "max": ratio.max(),
        "rms": block["rms"].max(),
        "case": block["case"].to_numpy()[block.index.get_loc(ratio.idxmax())] if len(ratio) else "",
    }


def _width(grade: str) -> float:
    """Where a grade stands; one that another version of the suite gave is widest but none."""
    return GRADES.index(grade) if grade in GRADES else GRADES.index("none") - 0.5


def gradients(cells: pd.DataFrame) -> pd.DataFrame:
    """How precise gradients are; index (implementation, dtype).

    Columns: numerics, grade (the widest), cells (differentiated), beyond (outside their bound), and the
    largest error ratio of the gradient by every operand and parameter; NaN where none was asked.
    """
    judged = cells[cells["check"].isin(GRADIENTS) & (cells["status"] != "unsupported")]
    ratios = by_operand(judged)
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[judged.index],
            "dtype": judged["dtype"],
            "numerics": judged["numerics"],
            "grade": judged["grade"],
            "beyond": judged["status"] != "pass",
        }
    ).join(ratios)
    rows = [
        {
            "implementation": key[0],
            "dtype": key[1],
            **_class_of(block),
            "cells": len(block),
            "beyond": int(block["beyond"].sum()),
            **block[ratios.columns].max().to_dict(),
        }
        for key, block in groups(frame, ["implementation", "dtype"])
    ]
    columns = ["implementation", "dtype", "numerics", "grade", "cells", "beyond", *ratios]
    return pd.DataFrame(rows, columns=columns).set_index(["implementation", "dtype"])


def kernels(cells: pd.DataFrame) -> pd.DataFrame:
    """Index (implementation, kernels): the cells of the check `VALUES` in which those ran."""
    compiled = cells[(cells["check"] == VALUES) & (cells["kernels"] != "")]
    keys = [labels(cells).loc[compiled.index], compiled["kernels"]]
    return compiled.groupby(keys, sort=False).size().rename("cells").to_frame()


def _class_of(block: pd.DataFrame) -> dict[str, str]:
    """The classes that cells were held to, and the widest that they reached."""
    return {
        "numerics": ", ".join(dict.fromkeys(n for n in block["numerics"] if n)),
        "grade": max((grade for grade in block["grade"] if grade), key=_width, default=""),
    }
