"""The PyTorch backend: textbook code, PyTorch's attention in all kernels, flex_attention, layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version

from attention_conformance.backends._torch.attention import EAGER, EagerPermuted, operations
from attention_conformance.backends._torch.compilers import (
    OPSETS,
    by_onnx,
    exported,
    exporters,
)
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.flex import Flex
from attention_conformance.backends._torch.kernels import ON_CPU, ON_CUDA, SDPA
from attention_conformance.backends._torch.layers import FAST, layers
from attention_conformance.backends._torch.operators import CustomOperator, overload_of
from attention_conformance.backends._torch.packed import (
    FlexPacked,
    FlexPaged,
    FlexWrite,
    NestedSdpa,
)
from attention_conformance.backends._torch.rings import rings
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Declared, Implementation
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.spec.vocabulary import DEVICES


class TorchBackend(TorchEngine):
    """PyTorch on "cpu" or "cuda"."""

    name = "torch"
    modules = ("torch",)
    native = "sdpa"
    devices = DEVICES
    compilers = ("inductor", "aot_eager", "export", "vmap")
    timed_compilers = ("inductor",)
    layer_compilers = ("aot_eager",)

    @property
    def versions(self) -> dict[str, str]:
        exported = ("onnxruntime", "onnxscript") if self.exporters else ()
        return super().versions | {name: version(name) for name in exported}

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        """The names of the compilers that export to ONNX; () on CUDA, or if a needed package is not
        installed."""
        return exporters() if self.device == "cpu" else ()

    def implementations(self) -> list[Implementation]:
        kernels = ON_CUDA if self.device == "cuda" else ON_CPU
        return [
            TextbookAttention(self, operations(self.torch), EAGER),
            *(FrameworkFunction(self, kernel) for kernel in kernels),
            Flex(self),
            *layers(self),
            NestedSdpa(self),
            FlexPacked(self),
            FlexPaged(self),
            FlexWrite(self),
            *rings(self),
        ]

    def function(
        self, function: Callable[..., object], name: str, claims: Claims
    ) -> Implementation:
        kind = UserFunction if overload_of(function) is None else CustomOperator
        return kind(self, function, name, claims, SDPA)

    # Compilers, and the exporter to ONNX if that is installed.

    def compilers_of(self, implementation: Implementation) -> tuple[str, ...]:
        # An exported model runs no kernel of torch, so implementations that force one are not exported.
        is_eager = implementation.textbook and implementation.name == "eager"
        exports = is_eager or getattr(implementation, "row", None) is SDPA
        return super().compilers_of(implementation) + (self.exporters if exports else ())

    def only_compiled(self) -> list[Implementation]:
        return [EagerPermuted(self)]

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        if compiler in self.exporters:
            return exported(self, prepared, partial(by_onnx, OPSETS[compiler]))
        return super().compiled(prepared, compiler, batch)

    def declared_through(self, implementation: Implementation, compiler: str) -> Declared:
        declared = super().declared_through(implementation, compiler)
        if compiler not in self.exporters or "causal-with-mask" not in declared.elections:
            return declared
        # ONNX Runtime stores scores in float16. torch forbids the causal flag beside a mask, and so does
        # the exporter.
        numerics = {"f64": "fused", "f32": "fused", "bf16": "eager", "f16": "eager"}
        rounding = replace(declared.rounding, exp_error={})
        return declared.but(numerics=numerics, rounding=rounding).electing(
            {"causal-with-mask": "raises"}
        )

    def lacking_through(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        is_flex = isinstance(implementation, Flex)
        if compiler in self.exporters:
            return {
                "gradient": "the exported model has no gradients",
                "other-shapes": "the model is exported for fixed shapes",
                "bfloat16": "ONNX Runtime has few bfloat16 kernels for the CPU",
            }
        if getattr(implementation, "row", None) is FAST:
            return {"compiled": "a compiled call does not show whether the fast path is taken"}
        if compiler == "vmap":
            lacking = {"empty-batch": "vmap cannot map over an empty batch"}
            if is_flex:
                lacking["compiled"] = "flex_attention has no rule for vmap"
            if isinstance(implementation, EagerPermuted):
                lacking["compiled"] = "vmap is asked only with the batch axis of keys in front"
            return lacking
        if compiler == "inductor" and is_flex and self.device == "cpu":
            return {"float64": "flex_attention's CPU template has no float64"}
        if compiler == "export":
            return {
                "gradient": "the exported program has no gradients",
                "other-shapes": "the program is exported for fixed shapes",
            }
        return {}
