"""A person's own rotary position embedding as an implementation; see docs/rotary.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from backends.claims import Claims
from backends.declared import ROTARY_FEATURES
from backends.prepared import PreparedCall
from backends.protocol import Backend, Implementation
from backends.user import Keywords, check_unused, named_once
from suite.spec.case import Case
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs, draw
from suite.spec.operators.rotary import ROTARY, Rotation, scaling_parameters, table_length

KEYWORDS = {
    "base": "rotary-base",
    "interleaved": "",
    "rotary_size": "partial-rotation",
    "scaling": "rotary-scaling",
    "max_positions": "position-table",
}
"""What a function may be told, by keyword, and the feature that it lacks where it does not take it."""

ARRAYS = ("query", "position")
"""What a function is handed by place."""

PAIRINGS = {False: "halves", True: "interleaved"}


class UserRotation(Implementation):
    """A person's `function(query, position, ...)`: query (B, H, L, D), position (L,) or (B, L) of int32;
    it returns the turned query. Of `KEYWORDS` it is passed those that it takes: `base`, `interleaved`,
    `rotary_size`, `scaling`, a dictionary as models' configurations have it, or None, and
    `max_positions`, how many positions its table must have.

    One that does not take `interleaved` is judged in the pairing that it was seen to follow. Raises
    TypeError where the signature does not fit, and UsageError for parameters that nobody passes, unless
    the claims allow them.
    """

    operator = ROTARY

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        self.judged, self.signature = (
            function,
            Keywords.of(function, name, ARRAYS, KEYWORDS),
        )
        if not claims.allow_unused:
            check_unused(f"function {name}", self.signature.unused, KEYWORDS, self.signature.taken)
        lacking = {
            feature: f"the function has no parameter {word}"
            for word, feature in KEYWORDS.items()
            if feature and word not in self.signature.taken
        }
        self.argument_names = named_once(ARRAYS, self.signature.names)
        features = ROTARY_FEATURES | {"position-table"}
        super().__init__(backend, name, claims.declared(features, refusals=lacking))
        if "interleaved" not in self.signature.taken:
            other = PAIRINGS[not self.follows_interleaved()]
            self.declared = self.declared.refusing(
                {
                    other: f"the function has no parameter interleaved, and pairs otherwise than {other}"
                }
            )

    def follows_interleaved(self) -> bool:
        """Whether the function turns neighbours: where its answer is nearer to theirs than to halves'."""
        fmt = DTYPES[self.declared.dtypes[0]]
        case = Case.parse(f"rotary/none/mha/{fmt.name}/b2h3q17k1d16")
        inputs = draw(case)
        try:
            got = self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return False  # what it raises is said of the cells
        if got.shape != inputs.query.shape:
            return False
        far = [np.abs(got - expected(inputs, pairing)).max() for pairing in (False, True)]
        return bool(far[1] < far[0])

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, taken = self.backend, self.signature.taken
        rotation = Rotation.of(inputs.case, inputs.sizes.D)
        told = {
            "base": rotation.base,
            "interleaved": rotation.interleaved,
            "rotary_size": rotation.size,
            "scaling": scaling_parameters(rotation),
            "max_positions": table_length(inputs.case),
        }
        keywords = {word: told[word] for word in KEYWORDS if word in taken}
        position = inputs.arrays["position"]
        whole = not (position % 1).any()
        arguments = {
            "query": backend.operand(inputs.query, inputs, "bhld"),
            "position": backend.array(position.astype(np.int32 if whole else np.float32), None),
        }

        def call(query: Any, position: Any) -> Any:
            return self.judged(query, position, **keywords)

        return PreparedCall(call, arguments, constants=(*asdict(rotation).values(),))


def expected(inputs: Inputs, interleaved: bool) -> np.ndarray:
    """The plain rotation of a query in either pairing, in float64."""
    query, size = inputs.query, inputs.sizes.D
    angle = inputs.arrays["position"][:, None] * Rotation.of(inputs.case, size).base ** (
        -np.arange(0, size, 2) / size
    )
    turned = query.copy()
    places = slice(0, None, 2), slice(1, None, 2)
    one, two = places if interleaved else (slice(0, size // 2), slice(size // 2, None))
    turned[..., one] = query[..., one] * np.cos(angle) - query[..., two] * np.sin(angle)
    turned[..., two] = query[..., two] * np.cos(angle) + query[..., one] * np.sin(angle)
    return turned
