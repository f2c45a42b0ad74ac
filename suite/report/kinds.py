"""Kinds of results: what a path holds, and which tables are made of it.

The one place that knows them: the commands, their help, captions and errors ask here. `build` beside it
makes the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from suite.records import cells, speed
from suite.records.lines import is_of


@dataclass(frozen=True)
class Kind:
    """One kind of results.

    `accepts` says whether a path holds such results. `tables` are the names of its tables, in their
    order, with what they say; the `rare` ones are made only where they are asked for by name, or for
    files of data.
    """

    name: str
    title: str
    accepts: Callable[[Path], bool]
    rare: tuple[str, ...]
    tables: dict[str, str] = field(hash=False)

    def chosen(self, names: Iterable[str] | None = None) -> list[str]:
        """The tables of these names in their order; without names all but the rare ones.

        Raises KeyError with the valid names.
        """
        wanted = set(self.tables) - set(self.rare) if names is None else set(names)
        if unknown := sorted(wanted - set(self.tables)):
            raise KeyError(f"unknown table {unknown[0]!r}; valid: {', '.join(self.tables)}")
        return [name for name in self.tables if name in wanted]


def _is_sweep(path: Path) -> bool:
    """Whether a path is the folder of a sweep; a file is none, which needs no PyArrow to be known."""
    if not path.is_dir():
        return False
    from suite.records.sweeps import is_sweep

    return is_sweep(path)


CONFORMANCE = Kind(
    name="records of conformance",
    title="Attention conformance",
    accepts=partial(is_of, form=cells.FORM),
    rare=("cells",),
    tables={
        "runs": "What was run: versions, machine, options.",
        "statuses": (
            "Cells per status. The score is pass / asked; what is unsupported was not asked, and "
            "coverage is asked / all cells. - where nothing was asked."
        ),
        "unsupported": "Why cells were not asked, by reason.",
        "conformance": (
            "Cells passed / asked in every group of cases, with what else became of them in "
            "brackets; what is unsupported was not asked."
        ),
        "accuracy": (
            "The check values: error ratio = max |error| / bound of the declared numerics "
            "class; the grade is the narrowest class whose bounds hold for all cells (exact, "
            "fused and eager coincide for f32 and f64); beyond counts the cells outside their "
            "bound."
        ),
        "gradients": (
            "The checks gradients and gradient_of_bias: the largest error ratio of the gradient "
            "by each operand and parameter, in the bound that is derived for the declared "
            "class, and the widest grade."
        ),
        "kernels": (
            "Which kernels compiled implementations ran, in their framework's own words, with "
            "the number of cells."
        ),
        "elections": (
            "Answers as observed where the field has no single right one, by dtype where dtypes "
            "differ; - where the question cannot be put; * where the framework's own attention "
            "answers otherwise."
        ),
        "invariance": (
            "Whether answers hang on what is computed beside them: a second call, other "
            "samples, other rows, the number of threads, decoding one token at a time, keys in "
            "two parts that are merged. The worst grade, by dtype where dtypes differ: bitwise "
            "the same; within bound, other bits as near as rounding explains; broken. - where "
            "it cannot be asked."
        ),
        "layers": (
            "What each layer does where layers differ: rows and samples without keys, what True "
            "means in a mask, the causal flag beside a mask, which weights it returns while "
            "dropout is on, and what it can be asked for."
        ),
        "explained": (
            "Failures by check, kind and implementation: what separates them from the cells of the "
            "same check that pass, and the smallest case."
        ),
        "only_here": "Failures of exactly one implementation where at least one other passes.",
        "everywhere": "Failures of every implementation that supports the case, at least two.",
        "failures": "Every cell that crashed, broke or failed, expected or not.",
        "slowest": "The cells that took longest to judge.",
        "cells": "One row per cell, as recorded.",
    },
)

SPEED = Kind(
    name="records of speed",
    title="Attention speed",
    accepts=partial(is_of, form=speed.FORM),
    rare=("samples",),
    tables={
        "speed": (
            "What was timed, for answers judged right: the median of a call and its quartiles "
            "in ms, shares of the machine's best matrix product and copy, the first call, the "
            "most memory held."
        ),
        "speedup": "Seconds of the baseline over those of each implementation: 2 is twice as fast.",
        "exactness": "The largest error ratio beside the share of the best matrix product.",
        "cost_law": (
            "T(L) = a + b L + c L^2 of the sweep, with 95 % intervals: a and b in microseconds, "
            "c in nanoseconds a pair of a query and a key."
        ),
        "refused": "Times that were not kept, and why.",
        "samples": "Every sample, in seconds.",
    },
)

SWEEPS = Kind(
    name="a folder of a sweep",
    title="Attention conformance: sweeps",
    accepts=_is_sweep,
    rare=(),
    tables={
        "swept": "What was swept: runs that differ in their seeds, and what they took.",
        "by_release": "Cells per status and release, over all seeds. The score is pass / asked, coverage "
        "asked / all cells.",
        "by_seed": "Cells per status and seed.",
        "rates": (
            "How often cells that were asked fail, with exact 95 % intervals of independent draws; what "
            "is known counts beside it. Cells of one case over seeds are not independent: where a fault "
            "hangs on the case, the intervals are too narrow."
        ),
        "false_alarms": (
            "Failures of the control a million cells, with exact 95 % intervals: where it fails, the "
            "suite is wrong."
        ),
        "tightness": (
            "How near answers come to their bounds: quantiles of max |error| / bound over the cells and "
            "seeds of the check values; beyond counts those outside."
        ),
        "tightness_of_checks": (
            "The same quantiles by check and numerics class, over all implementations."
        ),
        "failing": (
            "Failures by implementation, check and kind, the most frequent first, with the worst."
        ),
        "some_seeds": (
            "Cells that fail, or are known to, with some seeds and not with others: what hangs on the "
            "values. Known is with how many a failure is expected; seed is the smallest that fails."
        ),
        "searched": (
            "Searches by all that distinguishes them but the seed: cases judged, problems of the corpus "
            "asked, and cells by status."
        ),
        "found": (
            "What searches found, each cause once: the smallest case, and the name of the files in "
            "search/findings."
        ),
    },
)

ASV = Kind(
    name="a folder of asv's results",
    title="Attention speed",
    accepts=Path.is_dir,
    rare=("asv",),
    tables={
        "asv_history": "asv's values, a column per commit: seconds, bytes, or what the benchmark counts.",
        "asv": "asv's results, in asv's units; value NaN where a benchmark failed or has no value.",
    },
)

KINDS = (CONFORMANCE, SPEED, SWEEPS, ASV)
"""Every kind, in the order of a report."""

TABLES = {name: text for kind in KINDS for name, text in kind.tables.items()}
"""Every table, with what it says."""


def kind_of(path: Path) -> Kind:
    """What a path holds; conformance, whose loader says what is wrong, where it is nothing known."""
    return next((kind for kind in KINDS if kind.accepts(path)), CONFORMANCE)
