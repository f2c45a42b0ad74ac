"""Promise: a layer's output, and the weights it returns, lie within the reference's derived bound."""

from __future__ import annotations

from suite.judge.cell import check
from suite.judge.layers import LayerCell
from suite.spec.compiled_catalogue import compiled_layers
from suite.spec.layer_catalogue import layer_cases


@check(layer_cases, LayerCell, compiled=compiled_layers)
def test_layer_values(cell: LayerCell) -> None:
    prepared = cell.prepare(cell.inputs)
    cell.judge(cell.read(cell.call(prepared), cell.inputs, prepared.layout))
    if cell.implementation.mode == "compiled":
        cell.measured.kernels = cell.implementation.backend.witness(prepared)
