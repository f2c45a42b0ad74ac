"""MLX's arrays on the CPU, and its VJP and JVP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import Gradients, PreparedCall
from attention_conformance.backends.protocol import Backend, needed
from attention_conformance.suite.spec.dtypes import DType


class MlxEngine(Backend):
    """MLX with the CPU as its default device. MLX computes arrays when they are read. Subclasses list the
    implementations."""

    name = "mlx"
    modules = ("mlx",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import mlx.core
        self.mlx: Any = mlx.core
        self.mlx.set_default_device(self.mlx.cpu)

    @property
    def versions(self) -> dict[str, str]:
        lm = {"mlx-lm": version("mlx-lm")} if find_spec("mlx_lm") else {}
        return {"mlx": version("mlx")} | lm

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is None:
            return self.mlx.array(np.ascontiguousarray(values))
        wide = dtype.working
        kind = getattr(self.mlx, dtype.long_name)
        return self.mlx.array(np.array(values, wide, order="C"), dtype=kind)

    def to_numpy(self, array: Any) -> np.ndarray:
        if array.dtype == self.mlx.bfloat16:  # NumPy has no bfloat16
            array = array.astype(self.mlx.float32)
        values = np.array(array)
        return values if values.dtype.kind in "biu" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.mlx.array)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("mlx.core.")

    def device_name(self, array: Any) -> str:
        return "cpu"

    def sync(self, outputs: Any) -> None:
        """Compute these outputs: MLX computes arrays only when they are read."""
        self.mlx.eval(outputs)

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        output, operands = prepared.output_function(wrt)
        if self.dtype_name(cotangent) != self.dtype_name(out := output(*operands)):
            return out, {}  # wrong dtype of the answer: vjp would refuse the cotangent
        (out,), gradients = self.mlx.vjp(output, operands, [cotangent])
        return out, dict(zip(wrt, gradients, strict=True))

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        output, operands = prepared.output_function([*tangents])
        return self.mlx.jvp(output, operands, [*tangents.values()])[1][0]
