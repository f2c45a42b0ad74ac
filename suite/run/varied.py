"""Cells in sizes that the seed draws: a function cannot know them from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.recipes import generator
from attention_conformance.suite.spec.sizes import Sizes


def cells_in_drawn_sizes(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yields, for each supported cell of plain attention, a cell in drawn sizes, or in the nearest sizes
    within claimed limits. Cells whose case allows no other sizes are skipped."""
    for cell in cells:
        case, implementation = cell.case, cell.implementation
        if not isinstance(case, Case) or not case.operator.is_default:
            continue
        if cell.check.unsupported(implementation, case) is not None:
            continue
        try:
            other_case = Case.parse(replace(case, sizes=drawn_sizes(case, cell.seed)).id)
        except ValueError:
            continue  # for example a mask that names lengths
        other_case = implementation.nearest_supported(other_case) or other_case
        if other_case.sizes != case.sizes and implementation.unsupported(other_case) is None:
            yield Cell(cell.check, other_case, implementation, cell.seed)


def drawn_sizes(case: Case, seed: int) -> Sizes:
    """Returns random sizes for a case, each from half to twice its own. Sizes 0 and 1 are not changed.
    Equal lengths stay equal, and so do equal head sizes."""
    random, s = generator(f"{case.id}/sizes", seed), case.sizes

    def near_size(size: int) -> int:
        return size if size < 2 else int(random.integers(max(2, size // 2), 2 * size + 1))

    batch, heads, queries, keys, width, values = map(near_size, (s.B, s.Hkv, s.Lq, s.Lk, s.D, s.Dv))
    return Sizes(
        batch, heads * s.group, heads, queries, queries if s.Lq == s.Lk else keys,
        width, width if s.D == s.Dv else values,
    )  # fmt: skip
