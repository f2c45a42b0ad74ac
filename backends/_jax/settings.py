"""Flags of JAX that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attention_conformance.backends.protocol import Setting

FLAGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_disable_jit",
    "jax_debug_nans", "jax_debug_infs", "jax_default_device",
)  # fmt: skip


def settings(jax: Any) -> Mapping[str, Setting]:
    """The flags of this release by name."""

    def setting(flag: str) -> Setting:
        return Setting(lambda: getattr(jax.config, flag), partial(jax.config.update, flag))

    return {flag: setting(flag) for flag in FLAGS if hasattr(jax.config, flag)}
