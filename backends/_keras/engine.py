"""Shared code of all backends with Keras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from attention_conformance.backends._keras.multi_head import multi_head
from attention_conformance.backends._keras.norms import norms
from attention_conformance.backends._keras.ops import KERAS_OPS, import_keras
from attention_conformance.backends._keras.single_head import single_head
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.prepared import set_to
from attention_conformance.backends.protocol import Ambient, Backend, Implementation, Setting
from attention_conformance.backends.user.function import UserFunction


def settings(keras: Any, mixed: bool) -> Mapping[str, Setting]:
    """Returns Keras' settings by name. `mixed`: mixed policies are modes of the dtype policy."""
    config = keras.config

    def set_flash_attention(enabled: bool | None) -> None:
        # Without a setting Keras chooses; it has no function to remove the setting.
        (config.enable_flash_attention if enabled else config.disable_flash_attention)()

    def policy_name() -> str:
        name: str = config.dtype_policy().name
        return name

    modes = {
        f"Keras' policy {name}": Ambient(
            partial(set_to, name, policy_name, config.set_dtype_policy), dtype, "autocast"
        )
        for name, dtype in (("mixed_bfloat16", "bf16"), ("mixed_float16", "f16"))
    }

    return {
        "Keras' floatx": Setting(config.floatx, config.set_floatx),
        "Keras' dtype policy": Setting(
            policy_name, config.set_dtype_policy, modes if mixed else {}
        ),
        "Keras' choice of flash attention": Setting(
            config.is_flash_attention_enabled, set_flash_attention
        ),
    }


class WithKeras(Backend):
    """A mixin for a backend with Keras on an engine. It must stand before the engine among the base
    classes."""

    engine_of_keras: str

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.keras: Any = import_keras(self.engine_of_keras)

    def reseed(self, seed: int = 0) -> None:
        """Also restart the numbering of layer names, because TensorFlow makes a kernel for every new
        variable name.

        This uses a private attribute of Keras. In a release without it the numbering continues.
        """
        super().reseed(seed)
        reset_names = getattr(sys.modules.get("keras.src.utils.naming"), "reset_uids", None)
        if reset_names is not None:
            reset_names()

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        settings_of_engine = super().settings
        # Mixed policies are tested only if the engine itself has no mixed precision.
        modes = [mode for one in settings_of_engine.values() for mode in one.modes.values()]
        has_autocast = any(mode.question == "autocast" for mode in modes)
        return {**settings_of_engine, **settings(self.keras, mixed=not has_autocast)}


class KerasBackend(WithKeras):
    """Keras on an engine. Users' functions have the signature of Keras' function."""

    native = "keras-ops"

    def layers(self) -> list[Implementation]:
        """Returns all layers of Keras on the engine."""
        tables = (multi_head, single_head, norms)
        layer_rows = (row for table in tables for row in table(self.engine_of_keras))
        return [FrameworkLayer(self, row) for row in layer_rows]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, KERAS_OPS)
