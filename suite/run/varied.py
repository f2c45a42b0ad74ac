"""Cells in sizes that the seed draws: a function cannot know them from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.recipes import generator
from attention_conformance.suite.spec.sizes import Sizes


def varied(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Each supported cell of plain attention again, in other sizes, the nearest within claimed limits, as
    far as its case has any."""
    for cell in cells:
        case, implementation = cell.case, cell.implementation
        if not isinstance(case, Case) or not case.operator.is_default:
            continue
        if cell.check.unsupported(implementation, case) is not None:
            continue
        try:
            other = Case.parse(replace(case, sizes=drawn(case, cell.seed)).id)
        except ValueError:
            continue  # for example a mask that names lengths
        other = implementation.nearest_supported(other) or other
        if other.sizes != case.sizes and implementation.unsupported(other) is None:
            yield Cell(cell.check, other, implementation, cell.seed)


def drawn(case: Case, seed: int) -> Sizes:
    """Sizes for a case: half to twice its own. Sizes of 0 and 1 stay, and equal lengths and head sizes
    stay equal."""
    numbers, s = generator(f"{case.id}/sizes", seed), case.sizes

    def near(size: int) -> int:
        return size if size < 2 else int(numbers.integers(max(2, size // 2), 2 * size + 1))

    batch, heads, queries, keys, width, values = map(near, (s.B, s.Hkv, s.Lq, s.Lk, s.D, s.Dv))
    return Sizes(
        batch, heads * s.group, heads, queries, queries if s.Lq == s.Lk else keys,
        width, width if s.D == s.Dv else values,
    )  # fmt: skip
