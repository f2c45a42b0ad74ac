"""The order of cells in workers: neighbours share work.

pytest-xdist hands each worker runs of neighbours. A reference is computed once for all cells of a case,
and a program compiled once for all cells of an implementation, where one process judges them.
"""

from __future__ import annotations

import pytest

from suite.judge.cell import Cell


def sort_for_workers(items: list[pytest.Item]) -> None:
    """Sort items in place: cells of backends that compile every shape by implementation and then by case,
    all others by case. Each comes where the first of its kind was. Other items stay in front."""
    ranks: dict[object, int] = {}

    def rank(*key: object) -> int:
        return ranks.setdefault(key, len(ranks))

    def place(item: pytest.Item) -> tuple[int, int]:
        call = getattr(item, "callspec", None)
        cell = call.params.get("cell") if call else None
        if not isinstance(cell, Cell):
            return -1, -1
        implementation, case = cell.implementation, rank(cell.case.id)
        if implementation.backend.compiles_shapes:
            return rank(implementation.backend.name, implementation.name), case
        return case, case

    items.sort(key=place)
