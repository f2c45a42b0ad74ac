"""The command `same` of `python -m suite`: whether two functions give the same bits.

    python -m suite same train.py:attention serve.py:attention --backend=torch
    python -m suite same sdpa-math sdpa-flash --backend=torch --level=smoke

Both are asked the cases of the checks `values` and `gradients`, with the same arguments, and every bit of
outputs and gradients is compared. A policy that is trained by one function and sampled by another needs
this certificate.

Exit codes: 0 if all bits of all cells are equal; 1 if some differ, or if no cell is asked of both; 2 if
the arguments cannot be used, or if a cell takes too long.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.protocol import BackendUnavailable, Implementation, TimeOver, UsageError
from backends.threads import limit_threads
from suite.checks import all_checks
from suite.judge import leaks
from suite.judge.cell import Cell
from suite.judge.check import Check
from suite.judge.comparison import first
from suite.judge.derivative import asked_of, vjp
from suite.judge.verdict import Deviation, NotApplicable
from suite.run.explain import TAKEN, all_but, divide_names, named
from suite.run.options import Options
from suite.run.process import limited
from suite.spec.case import Case
from suite.spec.inputs import Inputs, draw

CHECKS = ("values", "gradients")
"""The checks whose cells are asked."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class SameOptions(Options):
    """The options of `same`; `function` and `implementation` are its arguments."""

    fixed = all_but(*TAKEN, "level", "seed", "dtype")


@dataclass(frozen=True)
class Comparison:
    """One cell of two functions: `difference` says where their bits differ; "" if all are equal."""

    check: str
    case: str
    difference: str


def add_same_parser(commands: Any) -> None:
    """Add `same` to the subparsers of `argparse`; sets `run`."""
    parser = commands.add_parser(
        "same",
        help="whether two functions give the same bits: outputs and gradients, case by case",
        description="Compares outputs and gradients of two functions bit by bit over the cases of a "
        "level. Exit code 1 if any bit differs.",
    )
    parser.add_argument(
        "name", nargs=2, metavar="NAME", help="an implementation (sdpa-flash) or PATH.py:NAME"
    )
    SameOptions.declare(parser.add_argument)
    parser.set_defaults(run=_same)


def _same(arguments: argparse.Namespace) -> int:
    divide_names(arguments)
    options = SameOptions.of_arguments(arguments)
    try:
        options.check()
        limit_threads(options.threads)
        both = dict(named(options))
        if len(both) < 2:
            raise UsageError(f"name two functions, got {arguments.name[0]} twice")
        one, other = both.values()
        if one.operator is not other.operator:
            raise UsageError(f"{one} computes {one.operator}, and {other} {other.operator}")
        found, left_out = [], 0
        for cells in pairs(one, other, options):
            with limited(options.cell_timeout, cells[0].case.id):
                compared = compare(*cells)
            found += [] if compared is None else [compared]
            left_out += compared is None
    except (UsageError, BackendUnavailable, TimeOver) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(said([*both], found, left_out)))
    return 0 if found and not any(c.difference for c in found) else 1


def pairs(
    one: Implementation, other: Implementation, options: Options
) -> Iterator[tuple[Cell, Cell]]:
    """The cells of a level that both support, one of each with the same inputs."""
    for name in CHECKS:
        check = all_checks()[name]
        cells = check.cells(options.level, (one, other), options.seed)
        for case in {c.case.id: c.case for c in cells}.values():
            asked = not options.dtype or case.dtype.name in options.dtype
            refused = any(check.unsupported(i, case) for i in (one, other))
            if isinstance(case, Case) and asked and not refused:
                inputs = draw(case, options.seed)
                yield (
                    _cell(check, case, one, options.seed, inputs),
                    _cell(check, case, other, options.seed, inputs),
                )


def _cell(
    check: Check, case: Case, implementation: Implementation, seed: int, inputs: Inputs
) -> Cell:
    """A cell whose inputs are not those that the implementation's own causal flag means."""
    cell = Cell(check, case, implementation, seed)
    cell.__dict__["inputs"] = inputs
    return cell


def compare(one: Cell, other: Cell) -> Comparison | None:
    """The bits of two cells of one case; None if neither function answers, or if one may refuse."""
    try:
        answers = [answered(cell) for cell in (one, other)]
    except NotApplicable:
        return None
    named = [answer for answer in answers if isinstance(answer, str)]
    if len(named) == 2:
        return None
    name, case = one.check.name, one.case.id
    if named:
        which = "the first" if isinstance(answers[0], str) else "the second"
        return Comparison(name, case, f"{which} fails: {named[0]}")
    return Comparison(name, case, difference(*answers))  # type: ignore[arg-type]


def answered(cell: Cell) -> Arrays | str:
    """All outputs of a cell, and gradients if its check asks for them; or the message of a failure.
    Raises NotApplicable."""
    with leaks.undone(cell.implementation.backend):
        try:
            if cell.check.name == "values":
                return dict(cell.run().arrays)
            prepared, names = asked_of(cell)
            answer, gradients = vjp(cell, wrt=names, prepared=prepared)
        except Deviation as deviation:
            return deviation.message
    return {**answer.arrays, **{f"gradient of {n}": g for n, g in gradients.items()}}


def difference(one: Arrays, other: Arrays) -> str:
    """Where the bits of arrays differ; "" if all are equal. NaN equals NaN."""
    for name, got in one.items():
        if name not in other or got.shape != other[name].shape:
            return f"{name}: only the first has it in shape {got.shape}"
        want = other[name]
        equal = (got == want) & (np.signbit(got) == np.signbit(want))
        apart = ~(equal | np.isnan(got) & np.isnan(want))
        if apart.any():
            at = first(apart)
            return (
                f"{name} at {at}: {float(got[at])!r} and {float(want[at])!r}; {int(apart.sum())} of "
                f"{apart.size} elements differ, by {np.nanmax(np.abs(got - want)[apart]):.3g} at most"
            )
    return "" if one.keys() == other.keys() else f"{', '.join(other.keys() - one.keys())}: missing"


def said(names: Sequence[str], found: Sequence[Comparison], left_out: int) -> list[str]:
    """The certificate in a few lines."""
    if not found:
        return [f"{names[0]} and {names[1]}: no cell is asked of both"]
    same = [c for c in found if not c.difference]
    counts = []
    for check in CHECKS:
        of = [c for c in found if c.check == check]
        counts += [f"{check} {sum(not c.difference for c in of)} of {len(of)}"] if of else []
    lines = [
        f"{names[0]} and {names[1]} are bitwise the same in {len(same)} of {len(found)} cells "
        f"({', '.join(counts)})"
    ]
    lines += [f"not answered by both: {left_out} cells"] if left_out else []
    differing = next((c for c in found if c.difference), None)
    if differing is not None:
        lines += [
            f"first difference: {differing.check} {differing.case}",
            f"  {differing.difference}",
        ]
    return lines
