"""How TensorFlow compiles a prepared call: `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attention_conformance.backends.compilers import with_constants
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Compilers


class TensorflowCompilers(Compilers):
    """`tf.function`, alone ("function") and through XLA ("xla")."""

    ambient = {"function": "traced"}

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        import tensorflow as tf

        def through(function: Callable[..., Any]) -> Callable[..., Any]:
            return tf.function(function, jit_compile=compiler == "xla")

        return with_constants(through, self.backend.is_array, prepared)
