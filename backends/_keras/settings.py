"""Settings of Keras that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attention_conformance.backends.prepared import set_to
from attention_conformance.backends.protocol import Ambient, Setting


def settings(keras: Any, policies: bool) -> Mapping[str, Setting]:
    """The settings by name; mixed policies are modes if `policies` says so."""
    config = keras.config

    def choose_flash(on: bool | None) -> None:
        # Without a setting Keras chooses; it has no function to remove the setting.
        (config.enable_flash_attention if on else config.disable_flash_attention)()

    def policy() -> str:
        name: str = config.dtype_policy().name
        return name

    mixed = {
        f"Keras' policy {name}": Ambient(
            partial(set_to, name, policy, config.set_dtype_policy), dtype, "autocast"
        )
        for name, dtype in (("mixed_bfloat16", "bf16"), ("mixed_float16", "f16"))
    }

    return {
        "Keras' floatx": Setting(config.floatx, config.set_floatx),
        "Keras' dtype policy": Setting(policy, config.set_dtype_policy, mixed if policies else {}),
        "Keras' choice of flash attention": Setting(
            config.is_flash_attention_enabled, choose_flash
        ),
    }
