"""A user's rotary position embedding as an implementation; see docs/operators.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    scaling_parameters,
    table_length,
)


def rotation(inputs: Inputs) -> Rotation:
    """The rotation of the inputs' case."""
    return Rotation.of(inputs.case, inputs.sizes.D)


KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("base", ("rotary-base",), lambda inputs: rotation(inputs).base),
    Parameter("interleaved", (), lambda inputs: rotation(inputs).interleaved),
    Parameter("rotary_size", ("partial-rotation",), lambda inputs: rotation(inputs).size),
    Parameter(
        "scaling",
        ("rotary-scaling",),
        lambda inputs: scaling_parameters(rotation(inputs)),
        told=True,
    ),
    Parameter("max_positions", ("position-table",), lambda inputs: table_length(inputs.case)),
)
"""The keyword parameters of rotary embeddings."""

PAIRINGS = {False: "halves", True: "interleaved"}


class UserRotation(UserCallable):
    """A user's `function(query, position, ...)`, which returns the rotated query.

    query is (B, H, L, D), position (L,) or (B, L) of int32 (float32 if fractional). The function receives
    the `KEYWORDS` that it takes: `base`, `interleaved`, `rotary_size`, `scaling` (a dictionary as in
    models' configurations, or None) and `max_positions`, the number of positions in its table.

    A function without `interleaved` is judged in its observed pairing.
    """

    operator = ROTARY
    arrays = ("query", "position")
    table = KEYWORDS
    features = FEATURES | {"position-table"}

    def observed(self) -> dict[str, str]:
        if "interleaved" in self.binder.taken:
            return {}
        other = PAIRINGS[not self.follows_interleaved()]
        return {other: f"the function has no parameter interleaved, and its pairing is not {other}"}

    def follows_interleaved(self) -> bool:
        """True if the function keeps the lengths of neighbours better than those of halves, whatever
        the angles."""
        fmt = DTYPES[self.declared.dtypes[0]]
        case = Case.parse(f"rotary/none/mha/{fmt.name}/b2h3q17k1d16")
        inputs = draw(case)
        try:
            got = self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return False  # the cells report the error
        if got.shape != inputs.query.shape:
            return False
        shape, pair = got.shape[:-1], (got, inputs.query)
        far = [
            np.abs(np.subtract(*(np.linalg.norm(x.reshape(split), axis=axis) for x in pair))).max()
            for split, axis in (((*shape, 2, -1), -2), ((*shape, -1, 2), -1))
        ]
        return bool(far[1] < far[0])

    def call_of(self, inputs: Inputs) -> PreparedCall:
        backend, keywords = self.backend, self.binder.bind(inputs, inputs.needs)
        position = inputs.arrays["position"]
        whole = not (position % 1).any()
        arguments = {
            "query": backend.memory.operand(inputs.query, inputs, "bhld"),
            "position": backend.array(position.astype(np.int32 if whole else np.float32), None),
        }

        def call(query: Any, position: Any) -> Any:
            return self.called(query, position, **keywords)

        return PreparedCall(
            call,
            arguments,
            constants=(*asdict(rotation(inputs)).values(), keywords.get("max_positions")),
        )
