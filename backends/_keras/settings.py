"""Settings of Keras that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.protocol import Setting


def settings(keras: Any) -> Mapping[str, Setting]:
    """The settings by name."""
    config = keras.config

    def choose_flash(on: bool | None) -> None:
        # Without a setting Keras chooses; it has no function to remove the setting.
        (config.enable_flash_attention if on else config.disable_flash_attention)()

    return {
        "Keras' floatx": Setting(config.floatx, config.set_floatx),
        "Keras' dtype policy": Setting(lambda: config.dtype_policy().name, config.set_dtype_policy),
        "Keras' choice of flash attention": Setting(
            config.is_flash_attention_enabled, choose_flash
        ),
    }
