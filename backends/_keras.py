"""Keras on its other engines: the same `keras.ops.dot_product_attention` on PyTorch and on JAX.

Arrays are made and read by Keras itself; the engine is imported for what Keras has no word for:
gradients, and JAX's float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from backends._keras_layers import layers
from backends._keras_ops import KerasFunction, KerasOps, import_keras
from backends.base import Backend, Implementation, Prepared, set_to
from backends.clocks import torch_compilations, torch_peak
from backends.compilers import by_jit, by_torch_compile, seen_by_profiler, seen_in_program
from backends.differentiation import (
    Step,
    by_autograd,
    by_transform,
    step_by_autograd,
    step_by_transform,
)
from backends.sources import Dialect
from suite.spec.dtypes import DType
from suite.spec.problem import Inputs


def _dialect(engine: str, more: str = "", **engines_own: Any) -> Dialect:
    made = Dialect(
        imports=f'import os\nos.environ["KERAS_BACKEND"] = "{engine}"\nimport keras\nimport {engine}'
        + more,
        array='keras.ops.convert_to_tensor({values}.astype("{carrier}"), dtype="{dtype}")',
        plain="keras.ops.convert_to_tensor({values}, dtype=str({values}.dtype))",
        transpose="keras.ops.transpose({array}, {order})",
        values="keras.ops.convert_to_numpy({array}).astype(np.float64)",
        gradients="",
    )
    return replace(made, **engines_own)


ON_TORCH = _dialect(
    "torch",
    values="{array}.detach().double().numpy()",
    gradients="""{names} = (array.requires_grad_() for array in ({names}))
{source}
gradients = torch.autograd.grad(output, ({names}), cotangent, allow_unused=True)""",
    compiled={
        name: f'torch.compile({{function}}, backend="{name}", dynamic=False)'
        for name in ("inductor", "aot_eager")
    },
)

ON_JAX = _dialect(
    "jax",
    more='\njax.config.update("jax_enable_x64", True)',
    array='jax.numpy.asarray({values}.astype(jax.numpy.dtype("{dtype}")))',
    gradients="""

def call({names}):
{indented}
    return output


output, pull = jax.vjp(call, {names})
gradients = pull(cotangent)""",
    compiled={"jit": "jax.jit({function})"},
)


class KerasBackend(Backend):
    """Keras on one engine, on the CPU."""

    engine: str

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.keras = import_keras(self.engine)

    @property
    def versions(self) -> dict[str, str]:
        from importlib.metadata import version

        return {"keras": self.keras.__version__, self.engine: version(self.engine)}

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        values = np.ascontiguousarray(values if dtype is None else values.astype(dtype.carrier))
        return self.keras.ops.convert_to_tensor(
            values, dtype=dtype.long_name if dtype else str(values.dtype)
        )

    def to_numpy(self, array: Any) -> np.ndarray:
        values = self.keras.ops.convert_to_numpy(array)
        return values if values.dtype.kind in "bi" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return bool(self.keras.ops.is_tensor(value))

    def dtype_name(self, array: Any) -> str:
        return self.keras.backend.standardize_dtype(array.dtype)

    def transpose(self, array: Any, *axes: int) -> Any:
        return self.keras.ops.transpose(array, axes)

    def function(self, function: Callable[..., Any], name: str, numerics: str) -> Implementation:
        return KerasFunction(self, function, name, numerics)


class KerasTorchBackend(KerasBackend):
    """Keras on PyTorch."""

    name = "keras-torch"
    engine = "torch"
    dialect = ON_TORCH
    has_strides = True
    has_threads = True
    compilers = ("inductor", "aot_eager")
    # Keras breaks its attention into two graphs (keras#23327), and dynamo keeps the second one by
    # Keras' own code: all programs would be one function with eight signatures at most.
    shares_programs = False

    def implementations(self) -> list[Implementation]:
        return [KerasTorchOps(self), *layers(self)]

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        import torch

        return by_autograd(torch, prepared, wrt, cotangent)

    def step(self, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
        import torch

        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_autograd(torch, prepared, direction, wrt)

    def compilations(self, prepared: Prepared) -> int:
        return torch_compilations()

    def copied(self, array: Any) -> Callable[[], Any]:
        return array.clone

    def peak_bytes(self, call: Callable[[], Any], prepared: Prepared) -> int | None:
        import torch

        return torch_peak(torch, self.device, call)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def restrided(self, array: Any) -> Any:
        steps = zip(array.shape, array.stride(), strict=True)
        return array.as_strided(array.shape, [7 if n == 1 else step for n, step in steps])

    def threads(self, count: int) -> AbstractContextManager[None]:
        import torch

        return set_to(count, torch.get_num_threads, torch.set_num_threads)

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        import torch

        return by_torch_compile(torch, self, prepared, compiler, one_graph=False)

    def witness(self, prepared: Prepared) -> str:
        import torch

        return seen_by_profiler(torch, prepared)

    def device_name(self, array: Any) -> str:
        return array.device.type


class KerasJaxBackend(KerasBackend):
    """Keras on JAX."""

    name = "keras-jax"
    narrow_reductions = True
    engine = "jax"
    dialect = ON_JAX
    compiles_shapes = True
    compilers = layer_compilers = ("jit",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        import jax

        # float64 is silently float32 otherwise; see the JAX adapter.
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax = jax

    def implementations(self) -> list[Implementation]:
        return [KerasJaxOps(self), *layers(self)]

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is not None:
            values = values.astype(self.jax.numpy.dtype(dtype.long_name))
        return self.jax.numpy.asarray(np.ascontiguousarray(values))

    def operand(self, values: np.ndarray, inputs: Inputs, layout: str) -> Any:
        # JAX arrays have no strides that a caller could choose: a layout is a shape.
        if values.ndim == 4 and layout == "blhd":
            values = values.swapaxes(1, 2)
        return self.array(values, inputs.dtype)

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        return by_transform(self.jax, prepared, wrt, cotangent)

    def step(self, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_transform(self.jax, prepared, direction, wrt)

    def sync(self, outputs: Any) -> None:
        self.jax.block_until_ready(outputs)

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        return by_jit(self.jax, self, prepared)

    def witness(self, prepared: Prepared) -> str:
        return seen_in_program(self.jax, self, prepared)

    def device_name(self, array: Any) -> str:
        return {"gpu": "cuda"}.get(platform := next(iter(array.devices())).platform, platform)


class KerasTorchOps(KerasOps):
    """`keras.ops.dot_product_attention` on PyTorch: it calls scaled_dot_product_attention."""

    numerics = "fused"
    # The exponential of torch's CPU flash kernel, which is called underneath.
    exp_error = {"bf16": 1.08e-4, "f16": 1.08e-4}
    gradient_blocks = {"bf16": (32, 512), "f16": (32, 512)}
    lacks = KerasOps.lacks | {
        "bias-with-mask": "on torch keras.ops takes a bias or a mask, not both",
    }
    elections = {
        # The mask becomes a bias of -0.7 max; in float16 that is -45853, which does not absorb the
        # scores in float32 arithmetic: a fully masked row attends as if nothing were masked.
        "fully-masked-row": {
            "f64": "uniform",
            "f32": "uniform",
            "bf16": "uniform",
            "f16": "unmasked",
        },
        "fully-masked-row-gradient": "scores",
        "nan-in-masked-key-gradient": "leaks",
        "nan-in-masked-value-gradient": "leaks",
        "minus-inf-row": "zeros",
        "no-keys": "zeros",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "nan-in-masked-key": "leaks",
        "nan-in-masked-value": "leaks",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "zeros",
        "value-size": "accepted",
        "integer-mask": "cast-to-bool",
        # float64 is cast to float32, where 2^-1024 is zero.
        # In bfloat16 that hangs on the CPU, as it does in torch.
        "subnormal-output": {"f64": "flushed", "f32": "kept", "f16": "kept"},
        "score-overflow": "finite",
    }


class KerasJaxOps(KerasOps):
    """`keras.ops.dot_product_attention` on JAX: it calls jax.nn, or its own copy where that raises."""

    # Softmax runs in float32 whatever the dtype.
    numerics = {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"}
    lacks = KerasOps.lacks | {
        "value-size": "on jax keras.ops requires values of the keys' size",
    }
    elections = {
        "fully-masked-row": "uniform",
        "minus-inf-row": "nan",
        "no-keys": "zeros",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "nan",
        "value-size": "raises",
        "integer-mask": "cast-to-bool",
        "subnormal-output": {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"},
        "score-overflow": "finite",
    }
