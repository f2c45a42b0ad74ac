"""Keras on an engine: what the backends share whose process has Keras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from backends._keras.ops import SIGNATURE, import_keras
from backends._keras.settings import settings
from backends.claims import Claims
from backends.protocol import Backend, Implementation, Setting
from backends.registry import KERAS_ENGINES
from backends.user.function import UserFunction


class WithKeras(Backend):
    """A backend in whose process Keras is, on the engine that `KERAS_ENGINES` names. It stands before the
    engine's own class."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.keras: Any = import_keras(KERAS_ENGINES[self.name])

    def begin_cell(self) -> None:
        """Names of layers begin anew. Keras counts them up in a process, and TensorFlow keeps a kernel
        for every name of a variable: new ones took a fifth of the time of judging layers. No public
        function does this alone; where a release keeps it elsewhere, names go on."""
        super().begin_cell()
        begin_anew = getattr(sys.modules.get("keras.src.utils.naming"), "reset_uids", None)
        if begin_anew is not None:
            begin_anew()

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        return {**super().settings, **settings(self.keras)}


class KerasBackend(WithKeras):
    """Keras on an engine; a person's function is called as Keras' own."""

    native = "keras-ops"

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, SIGNATURE)
