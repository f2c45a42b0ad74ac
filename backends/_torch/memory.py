"""How PyTorch's tensors lie in memory."""

from __future__ import annotations

from typing import Any

from backends.memory import Memory
from suite.spec.dtypes import DType


class TorchMemory(Memory):
    """Tensors with strides, and modules on a device."""

    has_strides = True

    def overwrite(self, array: Any, values: Any) -> bool:
        import torch

        with torch.no_grad():
            array.copy_(values)
        return True

    def transpose(self, array: Any, *axes: int) -> Any:
        return array.permute(*axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def restrided(self, array: Any) -> Any:
        steps = zip(array.shape, array.stride(), strict=True)
        return array.as_strided(array.shape, [7 if n == 1 else step for n, step in steps])

    def placed(self, layer: Any, dtype: DType, training: bool = False) -> Any:
        import torch

        if not isinstance(layer, torch.nn.Module):
            return layer
        placed = layer.to(device=self.backend.device, dtype=getattr(torch, dtype.long_name))
        return placed.train(training)
