"""The tables of judged cells, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from suite.records.cells import Run
from suite.report import conformance, explanation, frames, precision, semantics
from suite.report.kinds import CONFORMANCE

_OF_CELLS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "cells": frames.recorded,
    "statuses": conformance.statuses,
    "unsupported": conformance.unsupported,
    "conformance": conformance.conformance,
    "accuracy": precision.accuracy,
    "gradients": precision.gradients,
    "kernels": precision.kernels,
    "elections": semantics.elections,
    "invariance": semantics.invariance,
    "layers": semantics.layers,
    "explained": explanation.explained,
    "only_here": conformance.only_here,
    "everywhere": conformance.everywhere,
    "failures": conformance.failures,
    "slowest": conformance.slowest,
}


def tables_of_cells(
    loaded: Run | Sequence[Run], names: Iterable[str] | None = None
) -> dict[str, pd.DataFrame]:
    """The tables of `suite.report.kinds.CONFORMANCE` called `names`; without names all but the rare ones.

    Raises KeyError with the valid names.
    """
    wanted = CONFORMANCE.chosen(names)
    frame = frames.cells(loaded)
    return {
        name: frames.runs(loaded) if name == "runs" else _OF_CELLS[name](frame) for name in wanted
    }
