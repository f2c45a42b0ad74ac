"""Promise: a layer's output, and the weights it returns, lie within the reference's derived bound."""

from __future__ import annotations

from suite.judge.cell import check
from suite.judge.layers import LayerCell
from suite.spec.layer_catalogue import layer_cases


@check(layer_cases, LayerCell)
def test_layer_values(cell: LayerCell) -> None:
    cell.judge(cell.run())
