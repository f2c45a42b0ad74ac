"""How PyTorch's tensors lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.memory import Memory, Shape
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

    def view(self, flat: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        return flat.as_strided(shape, strides, offset)

    def arranged(self, values: np.ndarray, dtype: DType | None, how: str) -> Any:
        if how != "negative":
            return super().arranged(values, dtype, how)
        import torch

        # PyTorch's strides are never negative. Its negative views are lazy: `x.conj().imag` is one.
        if dtype is None:
            return super().arranged(values, dtype, "contiguous")
        return torch._neg_view(super().arranged(-values, dtype, "contiguous"))

    def placed(self, layer: Any, dtype: DType, training: bool = False) -> Any:
        import torch

        if not isinstance(layer, torch.nn.Module):
            return layer
        placed = layer.to(device=self.backend.device, dtype=getattr(torch, dtype.long_name))
        return placed.train(training)
