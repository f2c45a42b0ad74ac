"""Ambient modes of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from backends.ambient import Ambient
from backends.prepared import set_to
from suite.spec.dtypes import DTYPES


def ambient(torch: Any, device: str) -> Mapping[str, Ambient]:
    """The modes by name.

    `torch.vmap` is a compiler (see `TorchCompilers`). An algorithm that is not deterministic only warns:
    which algorithms are, depends on the machine.
    """
    deterministic = partial(
        set_to,
        True,
        torch.are_deterministic_algorithms_enabled,
        partial(torch.use_deterministic_algorithms, warn_only=True),
    )
    float64 = partial(set_to, torch.float64, torch.get_default_dtype, torch.set_default_dtype)

    def autocast(dtype: str) -> Ambient:
        to = getattr(torch, DTYPES[dtype].long_name)
        return Ambient(partial(torch.autocast, device, dtype=to), dtype, may_raise=True)

    return {
        "torch.inference_mode": Ambient(torch.inference_mode),
        "torch.no_grad": Ambient(torch.no_grad),
        "torch.autocast to bfloat16": autocast("bf16"),
        "torch.autocast to float16": autocast("f16"),
        "default dtype float64": Ambient(float64, may_raise=True),
        "default device meta": Ambient(partial(torch.device, "meta"), may_raise=True),
        "deterministic algorithms": Ambient(deterministic),
    }
