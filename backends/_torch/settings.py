"""Settings of PyTorch that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import set_to
from attention_conformance.backends.protocol import Ambient, Setting

_SUBNORMAL = np.float32(1e-45)


TWO_DEVICE_FUNCTIONS = ("copy_", "to", "type_as", "expand_as", "view_as", "reshape_as")
"""Functions that PyTorch allows to take arrays of two devices."""


@contextmanager
def _on_meta(torch: Any) -> Iterator[None]:
    """A context in which the default device is meta, and calls with arrays of two devices raise.

    PyTorch itself raises only in some functions; others read memory that arrays on meta lack.
    """

    class OneDevice(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs, name = kwargs or {}, function.__name__
            checked = args[:2] if name == "__setitem__" else (args, kwargs)  # the value is copied
            arrays = [x for x in tree_leaves(checked) if isinstance(x, torch.Tensor)]
            mixes = any(x.is_meta for x in arrays) and any(x.ndim and not x.is_meta for x in arrays)
            if mixes and name not in TWO_DEVICE_FUNCTIONS:
                raise RuntimeError(
                    f"{name} is given arrays of the default device and of another one"
                )
            return function(*args, **kwargs)

    tree_leaves = torch.utils._pytree.tree_leaves
    with torch.device("meta"), OneDevice():
        yield


def settings(torch: Any, own_device: str) -> Mapping[str, Setting]:
    """Returns PyTorch's settings by name, each with its modes: other values under which calls must give
    the same answers.

    - Autocast has modes only on `own_device`, the device of the backend.
    - The default device is read as its type, without an index.
    - The mode of deterministic algorithms is "warn": an algorithm that is not deterministic warns, and
      does not raise, because it depends on the machine which algorithms are deterministic.
    - `torch.vmap` is missing: it is tested as a compiler (see `TorchCompilers`).
    """
    kernels = torch.backends.cuda

    def set_default_device(device: str) -> None:
        # None removes the mode through which all calls would go.
        torch.set_default_device(None if device == "cpu" else device)

    def flushes() -> bool:
        return bool(_SUBNORMAL * np.float32(1) == 0)

    def autocast(device: str) -> Setting:
        dtypes = {"bfloat16": "bf16", "float16": "f16"} if device == own_device else {}
        return Setting(
            lambda: torch.is_autocast_enabled(device),
            lambda on: torch.set_autocast_enabled(device, on),
            {
                f"torch.autocast to {name}": Ambient(
                    partial(torch.autocast, device, dtype=getattr(torch, name)),
                    short,
                    "autocast",
                )
                for name, short in dtypes.items()
            },
        )

    # `use_deterministic_algorithms` imports the compiler, which takes a second.
    debug_mode = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    default = torch.get_default_dtype, torch.set_default_dtype
    no_gradients = {
        "torch.inference_mode": Ambient(torch.inference_mode, forward_only=True),
        "torch.no_grad": Ambient(torch.no_grad, forward_only=True),
    }
    float64, bfloat16 = (
        Ambient(partial(set_to, dtype, *default), question="wider-default-dtype")
        for dtype in (torch.float64, torch.bfloat16)
    )
    meta_device = Ambient(partial(_on_meta, torch), question="other-default-device")
    deterministic = Ambient(partial(set_to, "warn", *debug_mode))

    def modes(stack: Callable[[], list[Any]], pop: Callable[[], object]) -> Setting:
        """Returns the setting of the modes on a stack, without the default device. Writing it pops the
        modes that a call entered and did not exit."""

        def names() -> tuple[str, ...]:
            device = torch.utils._device.DeviceContext
            return tuple(type(mode).__name__ for mode in stack() if type(mode) is not device)

        def pop_newer(before: tuple[str, ...]) -> None:
            while len(names()) > len(before):
                pop()

        return Setting(names, pop_newer)

    c, overrides, dispatch = torch._C, torch.overrides, torch.utils._python_dispatch
    return {
        "gradient mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled, no_gradients),
        "the default dtype": Setting(
            *default, {"default dtype float64": float64, "default dtype bfloat16": bfloat16}
        ),
        "the default device": Setting(
            lambda: torch.get_default_device().type,
            set_default_device,
            {"default device meta": meta_device},
        ),
        "the modes of functions": modes(
            overrides._get_current_function_mode_stack, c._pop_torch_function_stack
        ),
        "the modes of operators": modes(
            dispatch._get_current_dispatch_mode_stack, partial(c._pop_torch_dispatch_stack, None)
        ),
        "the number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
        "the flushing of subnormals": Setting(flushes, torch.set_flush_denormal),
        "the precision of float32 products": Setting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        ),
        "the choice of deterministic algorithms": Setting(
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            {"deterministic algorithms": deterministic},
        ),
        "autocast on cpu": autocast("cpu"),
        "autocast on cuda": autocast("cuda"),
        "the choice of flash kernels": Setting(kernels.flash_sdp_enabled, kernels.enable_flash_sdp),
        "the choice of memory-efficient kernels": Setting(
            kernels.mem_efficient_sdp_enabled, kernels.enable_mem_efficient_sdp
        ),
        "the choice of math kernels": Setting(kernels.math_sdp_enabled, kernels.enable_math_sdp),
        "the choice of cuDNN kernels": Setting(kernels.cudnn_sdp_enabled, kernels.enable_cudnn_sdp),
    }
