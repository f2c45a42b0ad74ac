"""Textbook attention in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._tensorflow.engine import FLUSHED, NUMERICS, TensorflowEngine
from backends._tensorflow.operations import operations
from backends.declared import TEXTBOOK_FEATURES, Declared
from backends.textbook.attention import TextbookAttention


class Eager(TextbookAttention):
    """Textbook attention: matmul, softmax, matmul; masked scores are the dtype's lowest number."""

    backend: TensorflowEngine

    spelled = staticmethod(operations)
    imports = "import numpy as np\nimport tensorflow as tf"
    declared = Declared(
        numerics=NUMERICS,
        features=TEXTBOOK_FEATURES | {"no-heads"},
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
        },
        elections={
            "fully-masked-row": "uniform",
            "fully-masked-row-gradient": "values",
            "minus-inf-row": "nan",
            "lowest-row": "uniform",
            "no-keys": "zeros",
            "lse-of-empty-row": "lowest",
            "lse-gradient": "flows",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "raises",
            "subnormal-output": FLUSHED,
            "score-overflow": "nan",
        },
    )

    @property
    def framework(self) -> dict[str, Any]:
        return {"np": np, "tf": self.backend.tf}
