"""`scaled_dot_product_attention` with each of its kernels forced."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._torch.attention import Sdpa, native_arguments, passed_as
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.declared import AS_CLASS
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs


class Forced(Sdpa):
    """`scaled_dot_product_attention` with one kernel, or an error."""

    @property
    def later(self) -> frozenset[str]:
        """Variations, on a CPU: `sdpa` uses one of the same two kernels and is asked all variations."""
        return frozenset({"variations"} if self.backend.device == "cpu" else ())


class SdpaMath(Forced):
    """The math kernel: separate operations, in float32 for 16-bit dtypes."""

    name = "sdpa-math"
    kernel = "MATH"
    declared = Sdpa.declared.but(numerics="exact", rounding=AS_CLASS).electing(
        {"causal-with-mask": "raises", "nan-in-query": "nan", "subnormal-output": "kept"}
    )


class SdpaFlash(Forced):
    """The flash kernel on CPU and CUDA."""

    name = "sdpa-flash"
    kernel = "FLASH_ATTENTION"
    declared = Sdpa.declared.electing({"value-size": "raises"}).refusing(
        {
            "value-size": "the flash kernel requires values of the keys' size",
            "inner-stride": "the fused kernels require the last axis to have stride 1",
            "gradient-of-bias": "the flash kernel has no gradient of a mask or bias",
        }
    )

    def __init__(self, backend: TorchEngine) -> None:
        declared = self.declared
        if backend.device == "cpu":
            answers = {"lse-of-empty-row": "zero", "lse-gradient": "raises"}
            lacks = {"dropout": "the flash kernel of the CPU has no dropout"}
            declared = declared.taking("lse").electing(answers).but(dropout="").refusing(lacks)
        super().__init__(backend, declared=declared)

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("lse") and 0 in (case.sizes.Lq, case.sizes.Lk):
            # Finding flash-operator-without-rows: the process would die.
            return "without rows torch's flash operator divides by zero and ends the process"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        if not inputs.feature("lse"):
            return super().prepare(inputs)
        backend = self.backend
        arguments = native_arguments(backend, inputs)
        grouped = arguments.pop("enable_gqa", False)
        mask = arguments.get("attn_mask")
        if mask is not None and mask.dtype == backend.torch.bool:
            # The operator takes only an additive mask; sdpa converts a boolean one.
            added = backend.torch.zeros_like(mask, dtype=arguments["query"].dtype)
            arguments["attn_mask"] = added.masked_fill(~mask, -float("inf"))
        operator = backend.torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            if grouped:
                groups = query.shape[1] // key.shape[1]
                key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
            return operator(query, key, value, **rest)

        return attention_call(call, arguments, inputs, operands=passed_as(inputs), constants=())


class SdpaEfficient(Forced):
    """CUDA's memory-efficient kernel."""

    name = "sdpa-efficient"
    kernel = "EFFICIENT_ATTENTION"


class SdpaCudnn(Forced):
    """cuDNN's kernel."""

    name = "sdpa-cudnn"
    kernel = "CUDNN_ATTENTION"
