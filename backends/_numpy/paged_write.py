"""Writing into pages by definition: token by token."""

from __future__ import annotations

from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import written
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import slots_first
from attention_conformance.suite.spec.operators.paged_write import FEATURES, PAGED_WRITE


class TokenByToken(Implementation):
    """Every token is copied to its slot in copies of the pools."""

    name = "token-by-token"
    operator = PAGED_WRITE
    declared = Declared(
        numerics="exact",
        features=FEATURES,
        refusals={"gradient": "NumPy differentiates nothing"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        def call(**arrays: Rounded) -> tuple[Rounded, Rounded]:
            made = []
            for name in ("key", "value"):
                cache = arrays[f"{name}_cache"].values.copy()
                paged = slots_first(inputs.case, cache)
                for token, slot in zip(
                    arrays[name].values, arrays["slot_mapping"].values, strict=True
                ):
                    if slot >= 0:
                        paged[divmod(slot, paged.shape[1])] = token
                made.append(Rounded(cache, inputs.dtype))
            return made[0], made[1]

        return PreparedCall(call, written(self.backend, inputs), inputs.outputs)
