"""PyTorch as an engine: arrays, memory, devices and derivatives, for all backends on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.backends._torch import settings
from attention_conformance.backends._torch.autograd import by_autograd, pullback
from attention_conformance.backends._torch.compilers import TorchCompilers
from attention_conformance.backends._torch.profiler import TorchProfiler
from attention_conformance.backends.memory import Shape
from attention_conformance.backends.prepared import Gradients, PreparedCall, Pullback
from attention_conformance.backends.protocol import Backend, BackendUnavailable, Setting, needed
from attention_conformance.suite.spec.dtypes import Code, DType


class TorchEngine(TorchCompilers, TorchProfiler, Backend):
    """Arrays of PyTorch; subclasses list the implementations."""

    has_strides = True
    distributions: tuple[str, ...] = ("torch",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import torch
        self.torch: Any = torch
        # Methods before a user's file is imported, which may replace them.
        tensor = torch.Tensor
        self._steps_to_cpu = (tensor.detach, tensor.resolve_conj, tensor.resolve_neg, tensor.cpu)
        self._to_double, self._to_numpy = tensor.double, tensor.numpy
        c = torch._C
        self._mode_counts = c._len_torch_function_stack, c._len_torch_dispatch_stack
        self._disabled_modes = c.DisableTorchFunction, c._DisableTorchDispatch
        # A user's file, which is imported later, may replace these, too.
        self._synchronize = torch.cuda.synchronize
        self._is_profiled = c._autograd._profiler_enabled
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable("torch sees no CUDA device")
        # With TF32 products float32 cases on recent GPUs would have another numerics class.
        torch.set_float32_matmul_precision("highest")

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is None:
            return self.torch.tensor(values, device=self.device)
        array = self.torch.tensor(values.astype(dtype.carrier))
        return array.to(device=self.device, dtype=getattr(self.torch, dtype.long_name))

    def to_numpy(self, array: Any) -> np.ndarray:
        # A mode that user code entered and did not exit would intercept the calls.
        with ExitStack() as stack:
            for count, disabled in zip(self._mode_counts, self._disabled_modes, strict=True):
                if count():
                    stack.enter_context(disabled())
            for step in self._steps_to_cpu:
                array = step(array)
            return self._to_numpy(self._to_double(array) if array.is_floating_point() else array)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device_name(self, array: Any) -> str:
        return array.device.type

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        return by_autograd(prepared, wrt, cotangent)

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        """See `Backend.pullback`. As in a model, operands are no leaves."""
        return pullback(prepared, wrt, passes_leaves=False)

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        return settings.settings(self.torch, self.device)

    def reseed(self, seed: int = 0) -> None:
        if self.torch.compiler.is_compiling():
            self.torch.manual_seed(seed)
            return
        # torch.manual_seed also records stack traces for absent devices, 1.5 ms per call.
        self.torch.default_generator.manual_seed(seed)
        if self.device == "cuda":
            self.torch.cuda.manual_seed_all(seed)

    # Layouts and layers.

    def overwrite(self, array: Any, values: Any) -> bool:
        import torch

        with torch.no_grad():
            array.copy_(values)
        return True

    def layer_parameters(self, layer: Any) -> tuple[Any, ...]:
        import torch

        return tuple(layer.parameters()) if isinstance(layer, torch.nn.Module) else ()

    def layer_variables(self, layer: Any) -> dict[str, tuple[Any, str]]:
        import torch

        if not isinstance(layer, torch.nn.Module):
            return super().layer_variables(layer)
        linear = {
            f"{path}.weight".lstrip(".")
            for path, part in layer.named_modules()
            if isinstance(part, torch.nn.Linear)
        }
        return {path: (p, "oi" if path in linear else "") for path, p in layer.named_parameters()}

    def transpose(self, array: Any, *axes: int) -> Any:
        return array.permute(*axes)

    def view(self, flat: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        return flat.as_strided(shape, strides, offset)

    def alias(self, array: Any) -> Any:
        return array.detach()

    def arranged_and_base(
        self, values: np.ndarray, dtype: DType | None, arrangement: str
    ) -> tuple[Any, Any]:
        """Returns the array of `arranged`, and the array that it is a view of. In the arrangement
        "negative" the array is PyTorch's lazy negation of the array of -values. It leaves no gaps in
        memory, so it is returned twice."""
        if arrangement != "negative":
            return super().arranged_and_base(values, dtype, arrangement)
        import torch

        # PyTorch's strides are never negative. Its negative views are lazy: `x.conj().imag` is one. Of
        # masks and 8-bit numbers there are none.
        if dtype is None or isinstance(dtype, Code):
            return super().arranged_and_base(values, dtype, "contiguous")
        array = torch._neg_view(self.arranged(-values, dtype, "contiguous"))
        return array, array

    def placed_layer(self, make: Callable[[], Any], dtype: DType, training: bool = False) -> Any:
        import torch

        layer = make()
        if not isinstance(layer, torch.nn.Module):
            return layer
        placed = layer.to(device=self.device, dtype=getattr(torch, dtype.long_name))
        return placed.train(training)
