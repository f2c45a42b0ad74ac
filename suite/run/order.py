"""The order of cells in workers: neighbours share work.

pytest-xdist hands each worker runs of neighbours. A reference is computed once for all cells of a case,
and a program compiled once for all cells of an implementation, where one process judges them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.judge.cell import Cell

if TYPE_CHECKING:
    import pytest


class Order:
    """Places of cells that are given one after another: cells of backends that compile every shape by
    implementation and then by case, all others by case; each kind where its first cell was."""

    def __init__(self) -> None:
        self._ranks: dict[object, int] = {}

    def place(self, cell: Cell) -> tuple[int, int]:
        """Where a cell belongs; cells of one place share work."""
        implementation, case = cell.implementation, self._rank(cell.case.id)
        if implementation.backend.compiles_shapes:
            return self._rank(implementation.backend.name, implementation.name), case
        return case, case

    def _rank(self, *key: object) -> int:
        return self._ranks.setdefault(key, len(self._ranks))


def sort_for_workers(items: list[pytest.Item]) -> None:
    """Sort items in place by the `Order` of their cells. Other items stay in front."""
    order = Order()

    def place(item: pytest.Item) -> tuple[int, int]:
        call = getattr(item, "callspec", None)
        cell = call.params.get("cell") if call else None
        return order.place(cell) if isinstance(cell, Cell) else (-1, -1)

    items.sort(key=place)
