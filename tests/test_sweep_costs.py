"""What cells take, as batches are sized by it."""

from __future__ import annotations

import numpy as np

from suite.sweep.costs import USUAL, Costs, batch_end


def test_batches_are_sized_by_what_cells_took() -> None:
    kinds = [("values", "torch")] * 4 + [("gradients", "torch")] * 4
    costs = Costs(kinds)
    assert np.array_equal(costs.of(0, 8), [USUAL] * 8)
    costs.learn(0, [1.0, 3.0])
    assert np.array_equal(costs.of(0, 8), [1.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    costs.learn(4, [10.0])
    assert np.array_equal(costs.of(2, 8), [2.0, 2.0, 10.0, 10.0, 10.0, 10.0])
    costs.learn(0, [3.0])
    assert costs.of(0, 1) == [2.0]
    places = [(n // 2, 0) for n in range(8)]
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 8.0, 8.0, 1.0, 1.0])
    assert batch_end(seconds, places, 0, 2.0, 100) == 2
    assert batch_end(seconds, places, 0, 2.5, 100) == 4, "neighbours stay together"
    assert batch_end(seconds[4:], places[4:], 4, 2.5, 100) == 6, "one place at least"
    assert batch_end(seconds, places, 0, 1e9, 3) == 4, "at most"
    assert batch_end(seconds, places, 0, 1e9, 100) == 8
