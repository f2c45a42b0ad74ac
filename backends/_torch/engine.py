"""PyTorch as an engine: arrays, devices, derivatives, compilers and clocks, for all
backends on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any

import numpy as np

from backends._torch import clocks, settings
from backends._torch.autograd import Gradients, by_autograd, step_by_autograd
from backends._torch.compilers import by_export, by_torch_compile, raised_inside
from backends.compilation import over_batch
from backends.prepared import PreparedCall, set_to
from backends.protocol import Backend, BackendUnavailable, Setting, Step
from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs


class TorchEngine(Backend):
    """Arrays of PyTorch; subclasses list the implementations."""

    has_strides = True
    has_threads = True
    one_graph = True
    """Whether `torch.compile` must make one graph of a call."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import torch
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        self.torch: Any = torch
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable("torch sees no CUDA device")
        # With TF32 products float32 cases on recent GPUs would have another numerics class.
        torch.set_float32_matmul_precision("highest")

    @property
    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is None:
            return self.torch.tensor(values, device=self.device)
        array = self.torch.tensor(values.astype(dtype.carrier))
        return array.to(device=self.device, dtype=getattr(self.torch, dtype.long_name))

    def to_numpy(self, array: Any) -> np.ndarray:
        array = array.detach().cpu()
        return (array.double() if array.is_floating_point() else array).numpy()

    def overwrite(self, array: Any, values: Any) -> bool:
        with self.torch.no_grad():
            array.copy_(values)
        return True

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device_name(self, array: Any) -> str:
        return array.device.type

    def transpose(self, array: Any, *axes: int) -> Any:
        return array.permute(*axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def restrided(self, array: Any) -> Any:
        steps = zip(array.shape, array.stride(), strict=True)
        return array.as_strided(array.shape, [7 if n == 1 else step for n, step in steps])

    def placed(self, layer: Any, dtype: DType, training: bool = False) -> Any:
        if not isinstance(layer, self.torch.nn.Module):
            return layer
        placed = layer.to(device=self.device, dtype=getattr(self.torch, dtype.long_name))
        return placed.train(training)

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        return by_autograd(prepared, wrt, cotangent)

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_autograd(prepared, direction, wrt)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        torch = self.torch
        if prepared.ahead is not None:
            # The block mask is made before compilation, as in torch's documentation: to compile it takes
            # a second. If it cannot be made, the call raises.
            with suppress(Exception):
                prepared.ahead()
        if compiler == "vmap":
            return over_batch(torch.func.vmap, torch.movedim, self.is_array, prepared, batch)
        if compiler == "export":
            return by_export(self, prepared)
        return by_torch_compile(self, prepared, compiler, self.one_graph)

    def raised_inside(self, error: BaseException) -> BaseException:
        return raised_inside(error)

    def signature(self, array: Any) -> tuple[Any, ...]:
        return (*super().signature(array), array.stride())

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        return settings.settings(self.torch)

    def reseed(self, seed: int = 0) -> None:
        self.torch.default_generator.manual_seed(seed)
        if self.device == "cuda":
            self.torch.cuda.manual_seed_all(seed)

    def seeded(self, function: Callable[..., Any], inputs: Inputs) -> Callable[..., Any]:
        """The function; with dropout every call first sets the seed of `inputs`."""
        if not (inputs.training and inputs.rate):
            return function

        def seeded(*tensors: Any, **arguments: Any) -> Any:
            if self.torch.compiler.is_compiling():
                self.torch.manual_seed(inputs.dropout_seed)
            else:
                # torch.manual_seed also records stack traces for absent devices, 1.5 ms per call.
                self.reseed(inputs.dropout_seed)
            return function(*tensors, **arguments)

        return seeded

    def threads(self, count: int) -> AbstractContextManager[None]:
        torch = self.torch
        return set_to(count, torch.get_num_threads, torch.set_num_threads)

    def kernels(self, prepared: PreparedCall) -> str:
        return clocks.kernels(prepared)

    def sync(self, outputs: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def compilations(self, prepared: PreparedCall) -> int:
        return clocks.compilations()

    def copied(self, array: Any) -> Callable[[], Any]:
        return array.clone

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        return clocks.peak_bytes(self.device, call)

    def device_seconds(self, call: Callable[[], Any]) -> float | None:
        return clocks.device_seconds(call) if self.device == "cuda" else None

    def empty_caches(self) -> None:
        if self.device == "cuda":
            clocks.empty_caches()
