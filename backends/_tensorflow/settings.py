"""Settings of TensorFlow that a call may change, and that affect later calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends.protocol import Setting


def settings(tf: Any) -> Mapping[str, Setting]:
    """The settings by name."""
    config = tf.config
    narrow = config.experimental
    return {
        "TF32 products": Setting(
            narrow.tensor_float_32_execution_enabled, narrow.enable_tensor_float_32_execution
        ),
        "the running of functions": Setting(
            config.functions_run_eagerly, config.run_functions_eagerly
        ),
        "the compiling of functions": Setting(
            config.optimizer.get_jit, lambda on: config.optimizer.set_jit(on or False)
        ),
    }
