"""Shared code of backends with Keras in their process."""

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


class WithKeras(Backend):
    """A backend with Keras on an engine; a base class before the engine's."""

    engine_of_keras: str

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.keras: Any = import_keras(self.engine_of_keras)

    def reseed(self, seed: int = 0) -> None:
        """Restart the numbering of layer names, too, since TensorFlow makes a kernel for every new
        variable name.

        This uses a private attribute of Keras; in a release without it the numbering continues.
        """
        super().reseed(seed)
        begin_anew = getattr(sys.modules.get("keras.src.utils.naming"), "reset_uids", None)
        if begin_anew is not None:
            begin_anew()

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        own = super().settings
        # What a policy does to a function is not asked where the engine has a mixed precision of its own.
        casts = any(m.question == "autocast" for one in own.values() for m in one.modes.values())
        return {**own, **settings(self.keras, policies=not casts)}


class KerasBackend(WithKeras):
    """Keras on an engine; user functions have the signature of Keras' function."""

    native = "keras-ops"

    def layers(self) -> list[Implementation]:
        """All layers of Keras on the engine."""
        rows = (
            row for made in (multi_head, single_head, norms) for row in made(self.engine_of_keras)
        )
        return [FrameworkLayer(self, row) for row in rows]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, KERAS_OPS)
