"""Settings of PyTorch that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backends.protocol import Setting

_SUBNORMAL = np.float32(1e-45)


def settings(torch: Any) -> Mapping[str, Setting]:
    """The settings by name. The default device is read as its type."""
    kernels = torch.backends.cuda

    def place(device: str) -> None:
        # None removes the mode through which all calls would go.
        torch.set_default_device(None if device == "cpu" else device)

    def flushes() -> bool:
        return bool(_SUBNORMAL * np.float32(1) == 0)

    def autocast(device: str) -> Setting:
        return Setting(
            lambda: torch.is_autocast_enabled(device),
            lambda on: torch.set_autocast_enabled(device, on),
        )

    return {
        "gradient mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
        "the default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
        "the default device": Setting(lambda: torch.get_default_device().type, place),
        "the number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
        "the flushing of subnormals": Setting(flushes, torch.set_flush_denormal),
        "the precision of float32 products": Setting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        ),
        "the choice of deterministic algorithms": Setting(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
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
