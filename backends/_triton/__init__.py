"""Triton: user kernels and a control, with torch's arrays.

On a CPU kernels run in Triton's interpreter. triton and torch are imported when the backend is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from attention_conformance.backends._torch.autograd import Gradients, Pullback
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.kernels import SDPA
from attention_conformance.backends._triton import interpreter
from attention_conformance.backends._triton.attention import Eager, EagerUnmended
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.kernel import FrameworkFunction, Kernel
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import (
    BackendUnavailable,
    Implementation,
    UsageError,
    needed,
)
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import DEVICES

BFLOAT16 = DTYPES["bf16"]

BFLOAT16_NOT_ASKED = (
    "bfloat16 is not tested: Triton's interpreter multiplies its bit patterns (finding "
    "triton-interpreter-dot); the claim mended_interpreter lets the suite mend that"
)


class TritonBackend(TorchEngine):
    """Triton on torch's tensors: on "cpu" in Triton's interpreter, on "cuda" compiled."""

    name = "triton"
    modules = distributions = ("triton", "torch")
    devices = DEVICES

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device == "cpu":
            # Triton reads the variable when a kernel is decorated, its own library's kernels included.
            os.environ["TRITON_INTERPRET"] = "1"
        with needed():
            import triton  # noqa: F401
        if device == "cpu":
            if not interpreter.is_used():
                raise BackendUnavailable(
                    "triton was imported before TRITON_INTERPRET=1 was set: judge the backend alone"
                )
            interpreter.patch_interpreter()

    def implementations(self) -> list[Implementation]:
        controls = [EagerUnmended(self)] if self.device == "cpu" else []
        return [Eager(self), *controls]

    def function(
        self, function: Callable[..., object], name: str, claims: Claims
    ) -> Implementation:
        return UserKernel(self, function, name, claims, SDPA, FrameworkFunction(self, SDPA))

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        with prepared.within():
            return super().vjp(prepared, wrt, cotangent)

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        output, pull = super().pullback(prepared, wrt)
        return output, prepared.inside(pull)


class UserKernel(UserFunction):
    """A user's function with torch's signature that launches Triton kernels.

    In the interpreter bfloat16 is tested only with the claim `mended_interpreter`. Raises UsageError if
    no dtype is left.
    """

    def __init__(
        self,
        backend: TritonBackend,
        function: Callable[..., Any],
        name: str,
        claims: Claims,
        native: Kernel,
        beside: Implementation,
    ) -> None:
        interpreted = backend.device == "cpu"
        self.mended = interpreted and claims.values.get("mended_interpreter", False)
        bfloat16_left_out = interpreted and not self.mended and BFLOAT16.name in claims.dtypes
        if bfloat16_left_out:
            remaining_dtypes = tuple(n for n in claims.dtypes if n != BFLOAT16.name)
            if not remaining_dtypes:
                raise UsageError(BFLOAT16_NOT_ASKED)
            claims = replace(claims, dtypes=remaining_dtypes)
        super().__init__(backend, function, name, claims, native, beside)
        self.notes = (BFLOAT16_NOT_ASKED,) if bfloat16_left_out else ()
        self.remarks = (*self.notes, *self.remarks)

    def rebind(self, binding: Binding) -> None:
        super().rebind(binding)
        self.remarks = (*self.notes, *self.remarks)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)
        return call.under(interpreter.mended) if self.mended else call
