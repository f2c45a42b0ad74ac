"""`equinox.nn.RotaryPositionalEmbedding`: halves of whole heads, rows numbered from 0.

The module takes one sequence (L, D); samples and heads are mapped over. It takes no positions: a query at
a later one follows as many rows of zeros, as in a sequence that is turned whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._jax.engine import JaxEngine
from backends.declared import ROTARY_FEATURES, Declared
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.inputs import Inputs
from suite.spec.operators.rotary import ROTARY, Rotation

LONGEST = 2**17
"""The rows of the longest sequence that is turned here."""


class EquinoxRotary(Implementation):
    """The module in the query's dtype, operation by operation.

    Sine and cosine of all instances lie in one table of equinox, which each cell finds empty.
    """

    backend: JaxEngine

    name = "rotary"
    operator = ROTARY
    declared = Declared(
        numerics="eager",
        features=ROTARY_FEATURES,
        refusals={
            "interleaved": "equinox turns components half a head apart",
            "partial-rotation": "equinox turns whole heads",
            "positions": "equinox takes no positions",
            "gathered-positions": "equinox numbers the rows of a sequence from 0",
            "rotary-scaling": "equinox scales no frequencies",
        },
    )
    table: str = ""
    """The dtype of sine and cosine; "" is the query's."""

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("offset") + case.sizes.Lq > LONGEST:
            return "equinox numbers the rows of a sequence from 0: a position far out needs as many rows"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import equinox

        jax, jnp, s = self.backend.jax, self.backend.numpy, inputs.sizes
        rotation = Rotation.of(inputs.case, s.D)
        first = int(np.min(inputs.arrays["position"], initial=LONGEST)) if s.Lq else 0
        if not np.array_equal(inputs.arrays["position"], first + np.arange(s.Lq)):
            raise ValueError("rows are numbered one after the other here")
        dtype = jnp.dtype(self.table or inputs.dtype.long_name)

        def call(query: Any) -> Any:
            module = equinox.nn.RotaryPositionalEmbedding(s.D, theta=rotation.base, dtype=dtype)
            turn = jax.vmap(jax.vmap(module))
            whole = jnp.pad(query, ((0, 0), (0, 0), (first, 0), (0, 0)))
            return turn(whole)[:, :, first:]

        arguments = {"query": self.backend.operand(inputs.query, inputs, "bhld")}
        return self.called(
            PreparedCall(call, arguments, constants=(rotation, s.D, first, str(dtype)))
        )

    def called(self, prepared: PreparedCall) -> PreparedCall:
        """The call as it is made."""
        return prepared

    def end_of_cell(self, passed: bool) -> bool:
        import equinox

        # What a cell finds in the table would hang on the cells before it.
        equinox.clear_caches()
        return super().end_of_cell(passed)


class EquinoxRotaryJit(EquinoxRotary):
    """The same through `jax.jit`, which computes the table as it compiles."""

    name = "rotary-jit"

    def called(self, prepared: PreparedCall) -> PreparedCall:
        return self.backend.jitted(self, prepared)


class EquinoxRotarySingle(EquinoxRotary):
    """Sine and cosine in float32, the default of a JAX without float64. The answer is rounded once, and
    each product of a gradient."""

    name = "rotary-float32"
    declared = EquinoxRotary.declared.but(
        numerics={"f32": "exact", "bf16": "eager", "f16": "eager"}, dtypes=("f32", "bf16", "f16")
    )
    table = "float32"
