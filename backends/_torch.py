"""PyTorch: textbook attention, `scaled_dot_product_attention` in all its kernels, flex_attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from hashlib import sha256
from typing import Any

import numpy as np

from backends._torch_layers import MultiheadAttentionFast, layers
from backends.base import (
    Backend,
    BackendUnavailable,
    Implementation,
    Prepared,
    accepted_parameters,
    dense_arguments,
    dense_of,
    lacking,
    merged_bias,
    set_to,
    split_native,
)
from backends.clocks import COLD_BYTES, torch_compilations, torch_device_seconds, torch_peak
from backends.compilers import (
    by_torch_compile,
    over_batch,
    seen_by_profiler,
    with_constants,
)
from backends.differentiation import Step, by_autograd, step_by_autograd
from backends.sources import Dialect, call_source, function_source, textbook_source
from suite.spec.dtypes import DType
from suite.spec.problem import Inputs

SDPA = "torch.nn.functional.scaled_dot_product_attention"
FAST_EXP = {"bf16": 1.08e-4, "f16": 1.08e-4}
"""Relative error of the exponential in the CPU's flash kernel for 16-bit dtypes (`fexp_u20`: Malossi et
al. 2015, degree 3): 1 + f - p(f) for 2^f is off by 1.071e-4 at most over 0 <= f < 1."""

GRADIENT_BLOCKS = {"bf16": (32, 512), "f16": (32, 512)}
"""The backward pass of the CPU's flash kernel adds blocks of 32 rows or more, and of 512 keys, to
gradients in the case's dtype (`cpu_flash_attention_backward`: products with beta = 1)."""

NO_SOFTCAP = "scaled_dot_product_attention has no softcap"


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


class TorchBackend(Backend):
    """PyTorch on "cpu" or "cuda"."""

    name = "torch"
    dialect = DIALECT
    devices = ("cpu", "cuda")
    has_strides = True
    has_threads = True
    timed_compilers = ("inductor",)
    compilers = ("inductor", "aot_eager", "export", "vmap")
    layer_compilers = ("aot_eager",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import torch
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        self.torch = torch
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable("torch sees no CUDA device")
        # TF32 products would turn float32 cases into another numerics class on recent GPUs.
        torch.set_float32_matmul_precision("highest")

    @property
    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def implementations(self) -> list[Implementation]:
        found: list[Implementation] = [Eager(self), Sdpa(self), SdpaMath(self), SdpaFlash(self)]
        if self.device == "cuda":
            found += [SdpaEfficient(self), SdpaCudnn(self)]
        return [*found, Flex(self), *layers(self)]

    def for_compilers(self) -> list[Implementation]:
        return [EagerPermuted(self)]

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is None:
            return self.torch.tensor(values, device=self.device)
        made = self.torch.tensor(values.astype(dtype.carrier))
        return made.to(device=self.device, dtype=getattr(self.torch, dtype.long_name))

    def to_numpy(self, array: Any) -> np.ndarray:
        array = array.detach().cpu()
        return (array.double() if array.is_floating_point() else array).numpy()

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
        strides = [
            7 if n == 1 else step for n, step in zip(array.shape, array.stride(), strict=True)
        ]
        return array.as_strided(array.shape, strides)

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        return by_autograd(self.torch, prepared, wrt, cotangent)

    def step(self, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_autograd(self.torch, prepared, direction, wrt)

    def sync(self, outputs: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def compilations(self, prepared: Prepared) -> int:
        return torch_compilations()

    def copied(self, array: Any) -> Callable[[], Any]:
        return array.clone

    def peak_bytes(self, call: Callable[[], Any], prepared: Prepared) -> int | None:
        return torch_peak(self.torch, self.device, call)

    def device_seconds(self, call: Callable[[], Any]) -> float | None:
        return torch_device_seconds(self.torch, call) if self.device == "cuda" else None

    def cool(self) -> None:
        if self.device == "cuda":
            self.torch.zeros(COLD_BYTES, dtype=self.torch.uint8, device="cuda")

    def threads(self, count: int) -> AbstractContextManager[None]:
        torch = self.torch
        return set_to(count, torch.get_num_threads, torch.set_num_threads)

    def settled(self, layer: Any, dtype: DType) -> Any:
        if not isinstance(layer, self.torch.nn.Module):
            return layer
        return layer.to(device=self.device, dtype=getattr(self.torch, dtype.long_name)).eval()

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        torch = self.torch
        if hasattr(prepared.function, "ahead"):
            # As its documentation has it: compiled with the call, a block mask costs a second more.
            # Where it cannot be built, the call says so.
            with suppress(Exception):
                prepared.function.ahead()
        if compiler == "vmap":
            vmap = torch.func.vmap
            return over_batch(vmap, torch.movedim, self.is_array, prepared, batch)
        if compiler == "export":
            return with_constants(self._exported, self.is_array, prepared)
        return by_torch_compile(torch, self, prepared, compiler)

    def signature(self, array: Any) -> tuple[Any, ...]:
        return (*super().signature(array), array.stride())

    def _exported(self, function: Callable[..., Any]) -> Callable[..., Any]:
        torch = self.torch

        class Module(torch.nn.Module):  # type: ignore[name-defined, misc]
            def forward(self, arrays: Any) -> Any:
                return function(arrays)

        made: dict[str, Any] = {}

        def call(arrays: Any) -> Any:
            if "program" not in made:
                detached = {n: a.detach() for n, a in arrays.items()}
                made["program"] = torch.export.export(Module(), (detached,)).module()
            return made["program"](arrays)

        return call

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

    def witness(self, prepared: Prepared) -> str:
        return seen_by_profiler(self.torch, prepared)

    def function(self, function: Callable[..., Any], name: str, numerics: str) -> Implementation:
        known = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        accepted = accepted_parameters(function, known, 3, SDPA)
        return SdpaFunction(self, function, name, numerics, accepted)


class Eager(Implementation):
    """matmul, softmax, matmul as textbooks write it; hidden scores are -inf."""

    backend: TorchBackend

    name = "eager"
    numerics = "eager"
    lacks = {
        "native-causal": "textbook code has no causal flag",
        "native-window": "textbook code has no window",
    }
    elections = {
        "fully-masked-row": "nan",
        "fully-masked-row-gradient": "nan",
        "minus-inf-row": "nan",
        "no-keys": "zeros",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-key-gradient": "leaks",
        "nan-in-masked-value-gradient": "leaks",
        "nan-in-masked-value": "leaks",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "nan",
        "value-size": "accepted",
        "integer-mask": "raises",
        # In bfloat16 that hangs on the CPU: oneDNN's products flush with AVX512_BF16, and not without.
        "subnormal-output": {"f64": "kept", "f32": "kept", "f16": "kept"},
        "score-overflow": "nan",
    }

    def prepare(self, inputs: Inputs) -> Prepared:
        torch, backend = self.backend.torch, self.backend
        scale, softcap = inputs.effective_scale, inputs.softcap

        def attention(query, key, value, mask, bias):  # type: ignore[no-untyped-def]
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key = key.repeat_interleave(groups, dim=1)  # (B, H, Lk, D)
                value = value.repeat_interleave(groups, dim=1)
            scores = query @ key.transpose(-2, -1) * scale  # (B, H, Lq, Lk)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            return torch.softmax(scores, dim=-1) @ value  # (B, H, Lq, Dv)

        source = textbook_source(
            attention, "import torch", scale=repr(scale), softcap=repr(softcap)
        )
        arguments = dense_arguments(backend, inputs)
        return Prepared(attention, arguments, source=source, constants=(scale, softcap))


class EagerPermuted(Eager):
    """`Eager` with keys handed in as (Lk, H, B, D) and permuted to (B, H, D, Lk) in one step.

    For compilers alone: a rewrite that looks for `key.transpose` must not take this for it, least of
    all where all sizes coincide.
    """

    name = "eager-permuted"
    lacks = {
        **Eager.lacks,
        "grouped-heads": "a twin of the textbook for rewrites by pattern, without grouped heads",
        "gradient": "a twin of the textbook for rewrites by pattern, in inference",
    }

    def prepare(self, inputs: Inputs) -> Prepared:
        made = super().prepare(inputs)
        torch, scale, softcap = self.backend.torch, inputs.effective_scale, inputs.softcap
        key = made.arguments["key"].permute(2, 1, 0, 3).contiguous()

        def attention(query, key, value, mask, bias):  # type: ignore[no-untyped-def]
            scores = query @ key.permute(2, 1, 3, 0) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            return torch.softmax(scores, dim=-1) @ value

        arguments = made.arguments | {"key": key}
        return Prepared(attention, arguments, constants=made.constants)


class Sdpa(Implementation):
    """`scaled_dot_product_attention` as torch dispatches it."""

    backend: TorchBackend

    name = "sdpa"
    numerics = "fused"
    lacks = {
        "softcap": NO_SOFTCAP,
        "native-window": "scaled_dot_product_attention has no window",
    }
    elections = {
        "fully-masked-row": "zeros",
        "fully-masked-row-gradient": "nothing",
        "minus-inf-row": "zeros",
        "no-keys": "zeros",
        "nan-in-masked-key-gradient": "leaks",
        "nan-in-masked-value-gradient": "leaks",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "nan-in-masked-key": "leaks",
        "nan-in-masked-value": "leaks",
        "nan-in-attended-value": "reaches-them",
        # The CPU's flash kernel hides a NaN query behind zeros (pytorch#141128).
        "nan-in-query": "zeros",
        "value-size": "accepted",
        "integer-mask": "raises",
        # In bfloat16 that hangs on the CPU: with AMX tiles the flash kernel's products flush.
        "subnormal-output": {"f64": "kept", "f32": "kept", "f16": "kept"},
        "score-overflow": "finite",
    }
    merges_mask_into_bias = True
    exp_error = FAST_EXP
    gradient_blocks = GRADIENT_BLOCKS
    kernel: str | None = None

    def prepare(self, inputs: Inputs) -> Prepared:
        torch, backend = self.backend.torch, self.backend
        query, key, value = backend.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        # The flag and a mask exclude each other by torch's contract, so that the flag is used alone.
        alone = inputs.mask is not None and len(inputs.mask.parts) == 1 and inputs.bias is None
        native, rest = split_native(inputs, causal=alone or inputs.form == "flag-and-mask")
        if "causal" in native:
            arguments["is_causal"] = True
        if inputs.bias is not None:
            merged = merged_bias(inputs)
            arguments["attn_mask"] = backend.array(merged, inputs.dtype)  # type: ignore[arg-type]
        else:
            mask = dense_of(inputs, rest)
            if mask is not None:
                arguments["attn_mask"] = backend.array(mask, None)
        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        if query.shape[1] != key.shape[1]:
            arguments["enable_gqa"] = True
        operands = {n: n for n in ("query", "key", "value")}
        operands["mask" if inputs.bias is None else "bias"] = "attn_mask"
        function = torch.nn.functional.scaled_dot_product_attention
        return Prepared(
            function,
            arguments,
            operands=operands,
            within=self.forced,
            source=self.source(arguments),
            constants=(),
        )

    def source(self, arguments: Mapping[str, Any]) -> str:
        """The call as text (see `Prepared`)."""
        call = call_source(SDPA, arguments)
        if self.kernel is None:
            return f"import torch\n{call}"
        return (
            "import torch\nfrom torch.nn.attention import SDPBackend, sdpa_kernel\n"
            f"with sdpa_kernel(SDPBackend.{self.kernel}):\n    {call}"
        )

    def forced(self) -> AbstractContextManager[Any]:
        """The context in which the kernel is forced; none where torch chooses."""
        if self.kernel is None:
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        forced = ExitStack()
        # torch explains on the warning channel why a kernel refuses; the error follows.
        forced.enter_context(warnings.catch_warnings(action="ignore"))
        forced.enter_context(sdpa_kernel(getattr(SDPBackend, self.kernel)))
        return forced


class SdpaMath(Sdpa):
    """The kernel of separate operations in float32 inside."""

    name = "sdpa-math"
    numerics = "exact"
    kernel = "MATH"
    exp_error = {}
    gradient_blocks = {}
    elections = Sdpa.elections | {
        "causal-with-mask": "raises",
        "nan-in-query": "nan",
        "subnormal-output": "kept",
    }


class SdpaFlash(Sdpa):
    """The fused kernel: flash attention on CPU and CUDA."""

    name = "sdpa-flash"
    kernel = "FLASH_ATTENTION"
    lacks = Sdpa.lacks | {
        "value-size": "the flash kernel requires values of the keys' size",
        "inner-stride": "the fused kernels require the last axis to have stride 1",
        "gradient-of-bias": "the flash kernel has no gradient of a mask or bias",
    }
    elections = Sdpa.elections | {"value-size": "raises"}


class SdpaEfficient(Sdpa):
    """CUDA's memory-efficient kernel."""

    name = "sdpa-efficient"
    kernel = "EFFICIENT_ATTENTION"


class SdpaCudnn(Sdpa):
    """cuDNN's kernel."""

    name = "sdpa-cudnn"
    kernel = "CUDNN_ATTENTION"


class Flex(Implementation):
    """`flex_attention` without compilation: score_mod for bias and softcap, a block mask for masks."""

    backend: TorchBackend

    name = "flex"
    numerics = "eager"
    lacks: Mapping[str, str] = {
        "native-causal": "flex_attention has no causal flag",
        "native-window": "flex_attention has no window",
        "mask-array": "flex_attention takes masks and biases as functions of indices",
    }
    elections = {
        "fully-masked-row": "zeros",
        "minus-inf-row": "zeros",
        "no-keys": "raises",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "nan",
        "value-size": "accepted",
        "subnormal-output": Eager.elections["subnormal-output"],  # the same matrix product
        "score-overflow": "finite",
    }

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        if backend.device == "cpu":
            missing = {"gradient": "flex_attention has no backward pass on CPU"}
            self.lacks = {**self.lacks, **missing}

    def prepare(self, inputs: Inputs) -> Prepared:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        query, key, value = backend.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        dense = dense_of(inputs, split_native(inputs)[1])
        mask_mod = None
        if dense is not None:
            full = np.broadcast_to(dense, (s.B, s.H, s.Lq, s.Lk))
            allowed = backend.array(full, None)

            def mask_mod(b, h, i, j):  # type: ignore[no-untyped-def]
                return allowed[b, h, i, j]

        softcap = inputs.softcap
        if inputs.bias is not None:
            shape = (s.B, s.H, s.Lq, s.Lk)
            arguments["bias"] = backend.array(np.broadcast_to(inputs.bias, shape), inputs.dtype)

        def modified(bias: Any) -> Callable[..., Any]:
            def score_mod(score, b, h, i, j):  # type: ignore[no-untyped-def]
                if softcap is not None:
                    score = softcap * torch.tanh(score / softcap)
                return score if bias is None else score + bias[b, h, i, j]

            return score_mod

        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        if s.H != s.Hkv:
            arguments["enable_gqa"] = True

        uncompiled = _uncompiled(flex_attention)
        built: list[Any] = []

        def block_mask() -> Any:
            sizes = (s.B, s.H, s.Lq, s.Lk)
            return create_block_mask(mask_mod, *sizes, device=backend.device)

        def call(bias: Any = None, **arguments: Any) -> Any:
            if mask_mod is not None:
                arguments["block_mask"] = built[0] if built else block_mask()
            if bias is not None or softcap is not None:
                arguments["score_mod"] = modified(bias)
            arrays = [bias, *(arguments[name] for name in ("query", "key", "value"))]
            traced = torch.compiler.is_compiling()
            if traced or any(array is not None and array.requires_grad for array in arrays):
                return flex_attention(**arguments)
            return uncompiled(**arguments)

        def ahead() -> None:
            if mask_mod is not None and not built:
                built.append(block_mask())

        call.ahead = ahead  # type: ignore[attr-defined]
        hidden = None if dense is None else sha256(full.tobytes()).hexdigest()
        source = _flex_source(inputs, arguments)
        return Prepared(call, arguments, source=source, constants=(softcap, hidden))


def _flex_source(inputs: Inputs, arguments: Mapping[str, Any]) -> str:
    s = inputs.sizes
    shape = (s.B, s.H, s.Lq, s.Lk)
    lines = [
        "import torch",
        "import torch.nn.attention.flex_attention as flex",
        "# Its documented switch for debugging: without it every call traces its closures anew.",
        "flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True",
    ]
    given = [name for name in arguments if name != "bias"]
    more = []
    if inputs.dense_mask is not None:
        lines += [
            f"allowed = torch.tensor(np.broadcast_to(mask, {shape}).copy())",
            "block_mask = flex.create_block_mask(",
            f'    lambda b, h, i, j: allowed[b, h, i, j], {", ".join(map(str, shape))}, device="cpu"',
            ")",
        ]
        more.append("block_mask=block_mask")
    if inputs.bias is not None or inputs.softcap is not None:
        lines += ["", "def score_mod(score, b, h, i, j):"]
        if inputs.softcap is not None:
            cap = repr(inputs.softcap)
            lines.append(f"    score = {cap} * torch.tanh(score / {cap})")
        added = "" if inputs.bias is None else " + bias[b, h, i, j]"
        lines += [f"    return score{added}", ""]
        more.append("score_mod=score_mod")
    return "\n".join([*lines, call_source("flex.flex_attention", given, *more)])


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """flex_attention with the switch its documentation gives for debugging turned on.

    Without it every call traces its closures anew through torch.compile with the eager backend, 0.35 s
    a call, to run the very same operator. (The switch warns of wrong gradients: what is differentiated
    goes the long way.)
    """
    import torch.nn.attention.flex_attention as module

    def call(**arguments: Any) -> Any:
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        try:
            return function(**arguments)
        finally:
            module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False

    return call


class SdpaFunction(Sdpa):
    """A user's function with the signature of `scaled_dot_product_attention`."""

    may_be_forward_only = True
    elections = {}
    exp_error = {}
    gradient_blocks = {}

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        name: str,
        numerics: str,
        accepted: frozenset[str],
    ) -> None:
        super().__init__(backend)
        self.judged, self.name, self.numerics, self.accepted = function, name, numerics, accepted
        missing = {
            "attn_mask": ("mask", "bias", "window", "padding", "bias-with-mask"),
            "scale": ("scale",),
            "enable_gqa": ("grouped-heads",),
            "is_causal": ("native-causal",),
        }
        lacks = dict(Sdpa.lacks) | lacking(accepted, missing)
        if not accepted & {"is_causal", "attn_mask"}:
            lacks["causal"] = "the function has neither is_causal nor attn_mask"
        self.lacks = lacks

    def prepare(self, inputs: Inputs) -> Prepared:
        made = super().prepare(inputs)
        arguments = dict(made.arguments)
        if "is_causal" in arguments and "is_causal" not in self.accepted:
            del arguments["is_causal"]
            mask = inputs.dense_mask
            arguments["attn_mask"] = self.backend.array(mask, None)  # type: ignore[arg-type]

        def call(query, key, value, **rest):  # type: ignore[no-untyped-def]
            return self.judged(query, key, value, **rest)

        source = function_source(self.judged, self.name, arguments)
        return Prepared(call, arguments, operands=made.operands, source=source, constants=())
