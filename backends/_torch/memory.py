"""How PyTorch's tensors lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.backends.memory import Memory, Shape
from attention_conformance.suite.spec.dtypes import Code, DType


class TorchMemory(Memory):
    """Tensors with strides, and modules on a device."""

    has_strides = True

    def overwrite(self, array: Any, values: Any) -> bool:
        import torch

        with torch.no_grad():
            array.copy_(values)
        return True

    def parameters(self, layer: Any) -> tuple[Any, ...]:
        import torch

        return tuple(layer.parameters()) if isinstance(layer, torch.nn.Module) else ()

    def variables(self, layer: Any) -> dict[str, tuple[Any, str]]:
        import torch

        if not isinstance(layer, torch.nn.Module):
            return super().variables(layer)
        linear = {
            f"{path}.weight".lstrip(".")
            for path, part in layer.named_modules()
            if isinstance(part, torch.nn.Linear)
        }
        return {
            path: (one, "oi" if path in linear else "") for path, one in layer.named_parameters()
        }

    def transpose(self, array: Any, *axes: int) -> Any:
        return array.permute(*axes)

    def view(self, flat: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        return flat.as_strided(shape, strides, offset)

    def alias(self, array: Any) -> Any:
        return array.detach()

    def within(self, values: np.ndarray, dtype: DType | None, how: str) -> tuple[Any, Any]:
        if how != "negative":
            return super().within(values, dtype, how)
        import torch

        # PyTorch's strides are never negative. Its negative views are lazy: `x.conj().imag` is one. Of
        # masks and 8-bit numbers there are none.
        if dtype is None or isinstance(dtype, Code):
            return super().within(values, dtype, "contiguous")
        array = torch._neg_view(self.arranged(-values, dtype, "contiguous"))
        return array, array

    def made(self, make: Callable[[], Any], dtype: DType, training: bool = False) -> Any:
        import torch

        layer = make()
        if not isinstance(layer, torch.nn.Module):
            return layer
        placed = layer.to(device=self.backend.device, dtype=getattr(torch, dtype.long_name))
        return placed.train(training)
