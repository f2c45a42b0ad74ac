"""PyTorch as a backend: textbook code, its attention in all kernels, flex_attention and its layers."""

from __future__ import annotations

from collections.abc import Callable

from backends._torch.attention import (
    Eager,
    EagerPermuted,
    Sdpa,
    SdpaCudnn,
    SdpaEfficient,
    SdpaFlash,
    SdpaFunction,
    SdpaMath,
)
from backends._torch.engine import TorchEngine
from backends._torch.flex import Flex
from backends._torch.layers import MultiheadAttentionFast, layers
from backends._torch.packed import FlexPacked, NestedSdpa
from backends.claims import Claims
from backends.protocol import Implementation
from backends.sources import Dialect

DIALECT = Dialect(
    imports="import torch",
    array="torch.tensor({values}, dtype=torch.{dtype})",
    plain="torch.tensor({values})",
    transpose="{array}.permute{order}",
    values="{array}.detach().double().numpy()",
    gradients="""{names} = (array.requires_grad_() for array in ({names}))
{source}
gradients = torch.autograd.grad(output, ({names}), cotangent, allow_unused=True)""",
    compiled={
        name: f'torch.compile({{function}}, backend="{name}", dynamic=False, fullgraph=True)'
        for name in ("inductor", "aot_eager")
    },
)


class TorchBackend(TorchEngine):
    """PyTorch on "cpu" or "cuda"."""

    name = "torch"
    native = "sdpa"
    dialect = DIALECT
    devices = ("cpu", "cuda")
    timed_compilers = ("inductor",)
    compilers = ("inductor", "aot_eager", "export", "vmap")
    layer_compilers = ("aot_eager",)

    def implementations(self) -> list[Implementation]:
        of_attention: list[Implementation] = [
            Eager(self), Sdpa(self), SdpaMath(self), SdpaFlash(self)
        ]  # fmt: skip
        if self.device == "cuda":
            of_attention += [SdpaEfficient(self), SdpaCudnn(self)]
        return [*of_attention, Flex(self), *layers(self), NestedSdpa(self), FlexPacked(self)]

    def for_compilers(self) -> list[Implementation]:
        return [EagerPermuted(self)]

    def lacking_compiled(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        flex = isinstance(implementation, Flex)
        if isinstance(implementation, MultiheadAttentionFast):
            return {"compiled": "whether the fast path is taken is not seen in a compiled call"}
        if compiler == "vmap":
            missing = {"empty-batch": "nothing can be mapped over an empty batch"}
            if flex:
                missing["compiled"] = "flex_attention has no rule for vmap"
            if isinstance(implementation, EagerPermuted):
                missing["compiled"] = "keys without a batch axis in front are not mapped"
            return missing
        if compiler == "inductor" and flex and self.device == "cpu":
            return {"float64": "flex_attention's template for the CPU takes no float64"}
        if compiler == "export":
            return {
                "gradient": "the exported program is that of inference",
                "other-shapes": "the program is exported for the shapes it was given",
            }
        return {}

    def function(
        self, function: Callable[..., object], name: str, claims: Claims
    ) -> Implementation:
        return SdpaFunction(self, function, name, claims)
