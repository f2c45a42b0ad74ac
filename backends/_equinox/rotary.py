"""`equinox.nn.RotaryPositionalEmbedding`: halves of whole heads, rows numbered from 0.

The module takes one sequence (L, D); samples and heads are mapped. It takes no positions, so the call
puts rows of zeros before a query at a later position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import FEATURES, ROTARY, Rotation

LONGEST = 2**17
"""The largest number of rows that a call rotates."""


class EquinoxRotary(Implementation):
    """The module with sine and cosine of the dtype `table`, or "" of the query's, perhaps by `jax.jit`.

    All instances share one table of sine and cosine in equinox, which is empty before each cell.
    """

    backend: JaxEngine

    operator = ROTARY
    declared = Declared(
        numerics="eager",
        features=FEATURES,
        refusals={
            "interleaved": "equinox rotates components half a head apart",
            "partial-rotation": "equinox rotates whole heads",
            "positions": "equinox has no argument for positions",
            "gathered-positions": "equinox numbers the rows of a sequence from 0",
            "rotary-scaling": "equinox has no scaled frequencies",
        },
    )

    def __init__(
        self, backend: JaxEngine, name: str, declared: Declared | None = None, table: str = "",
        jit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(backend, name, declared)
        self.table, self.jit = table, jit

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("offset") + case.sizes.Lq > LONGEST:
            return (
                "equinox numbers the rows of a sequence from 0: a large position needs as many rows"
            )
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import equinox

        jax, jnp, s = self.backend.jax, self.backend.numpy, inputs.sizes
        rotation = Rotation.of(inputs.case, s.D)
        first = int(np.min(inputs.arrays["position"], initial=LONGEST)) if s.Lq else 0
        if not np.array_equal(inputs.arrays["position"], first + np.arange(s.Lq)):
            raise ValueError("equinox numbers rows consecutively")
        dtype = jnp.dtype(self.table or inputs.dtype.long_name)

        def call(query: Any) -> Any:
            module = equinox.nn.RotaryPositionalEmbedding(s.D, theta=rotation.base, dtype=dtype)
            turn = jax.vmap(jax.vmap(module))
            whole = jnp.pad(query, ((0, 0), (0, 0), (first, 0), (0, 0)))
            return turn(whole)[:, :, first:]

        arguments = {"query": self.backend.memory.operand(inputs.query, inputs, "bhld")}
        constants = (rotation, s.D, first, str(dtype))
        prepared = PreparedCall(call, arguments, constants=constants)
        return self.backend.jitted(self, prepared) if self.jit else prepared

    def begin_cell(self) -> None:
        import equinox

        # Otherwise the table's content would depend on earlier cells.
        equinox.clear_caches()


def rotaries(backend: JaxEngine) -> list[EquinoxRotary]:
    """The module operation by operation, through `jax.jit`, where the compiler computes the table, and
    with sine and cosine in float32, as in JAX without float64."""
    # The answer, and each product of a gradient, is rounded once.
    single = EquinoxRotary.declared.but(
        numerics={"f32": "exact", "bf16": "eager", "f16": "eager"}, dtypes=("f32", "bf16", "f16")
    )
    return [
        EquinoxRotary(backend, "rotary"),
        EquinoxRotary(backend, "rotary-jit", jit=True),
        EquinoxRotary(backend, "rotary-float32", single, table="float32"),
    ]
