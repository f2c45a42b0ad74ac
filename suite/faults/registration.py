"""Faults of operators that are registered with a framework: what they say of themselves is not so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.persons import Persons
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED


class Registered(Persons):
    """An operator, whose shapes, writes and memory are checked as frameworks do."""

    features = Persons.features | {REGISTERED}

    def fake_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """The shape of the output that the operator says without values."""
        return inputs.output_shape("output")

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        prepared = self.prepare(inputs)
        arrays = {name: prepared.arguments[name].values for name in OPERANDS}
        before = {name: array.copy() for name, array in arrays.items()}
        output = prepared().values
        broken = {}
        if output.shape != self.fake_shape(inputs):
            broken["fake"] = f"says shape {self.fake_shape(inputs)}, returns {output.shape}"
        for name, array in arrays.items():
            if not np.array_equal(array, before[name]):
                broken["schema"] = f"writes to {name}, and does not say so"
            if np.shares_memory(array, output):
                broken["alias"] = f"returns memory of {name}, and does not say so"
        return broken


def fake_has_the_shape_of_queries(right: Registered, inputs: Inputs) -> tuple[int, ...]:
    s = inputs.sizes
    return (s.B, s.H, s.Lq, s.D)


def writes_unsaid(right: Registered, call: Call) -> np.ndarray:
    out = right.compute(call)
    call.query.values[...] *= 0.5
    return out


def returns_an_argument(right: Registered, out: np.ndarray, call: Call) -> object:
    rounded = right.deliver(out, call)
    if rounded.values.shape == call.query.values.shape:
        call.query.values[...] = rounded.values
        rounded = type(rounded)(call.query.values, rounded.fmt)
    return rounded


row = partial(deviation, family="contract", right=Registered)

DEVIATIONS = [
    row("fake-has-the-shape-of-queries", "registration",
        "An operator says without values that its output has the shape of the query.",
        "`torch.empty_like(query)` in register_fake; the last size is that of values",
        fake_shape=fake_has_the_shape_of_queries),
    row("writes-unsaid", "registration",
        "An operator scales its query in place, and registers no such write.",
        "`mutates_args=()` of an operator that scales the query in place", compute=writes_unsaid),
    row("returns-an-argument", "registration",
        "An operator writes its output into the memory of the query, and registers an output of "
        "its own.", "an output in the memory of an argument; allocate it, or say so in the schema",
        deliver=returns_an_argument),
]  # fmt: skip
