"""Operators by definition: the references. Their values are rounded once to the dtypes of the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance import references
from attention_conformance.backends._numpy.engine import Rounded, rounded_to
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.in_pages import refuse_malformed
from attention_conformance.backends.memory import all_arrays
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.references.rounding import Roundoffs
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import (
    cached,
    in_pages,
    latent,
    merge,
    packed,
    paged,
    paged_write,
    quantized,
    quantized_write,
    rotary,
)

NOTHING = {"gradient": "NumPy differentiates nothing"}

LENGTHS = frozenset({"length-arrays"})

EXACT = Roundoffs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, absorbs=False)
"""Roundoffs for a reference whose bounds are not read."""

DEFINITIONS: Mapping[str, tuple[Operator, Declared]] = {
    "segment-by-segment": (
        packed.PACKED,
        Declared(
            features=packed.FEATURES,
            refusals=NOTHING,
            elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
        ),
    ),
    "sample-by-sample": (
        paged.PAGED,
        Declared(
            features=paged.FEATURES | LENGTHS,
            bitwise=("rerun", "pages"),
            refusals=NOTHING,
            elections={"nan-behind-last-key": "blocked"},
        ),
    ),
    "token-by-token": (
        paged_write.PAGED_WRITE,
        Declared(features=paged_write.FEATURES, refusals=NOTHING),
    ),
    "chunk-by-chunk": (
        cached.CACHED,
        Declared(
            features=cached.FEATURES,
            elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
        ),
    ),
    "scaled-codes": (
        quantized.QUANTIZED,
        Declared(features=quantized.FEATURES | LENGTHS, refusals=NOTHING),
    ),
    "nearest-codes": (
        quantized_write.QUANTIZED_WRITE,
        Declared(features=quantized_write.FEATURES),
    ),
    "projected-keys": (
        latent.LATENT,
        Declared(
            features=latent.FEATURES | latent.SERVED | LENGTHS,
            refusals=NOTHING,
            elections={
                "fully-masked-row": "zeros",
                "lse-of-empty-row": "minus-inf",
                "nan-behind-last-key": "blocked",
            },
            rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
        ),
    ),
    "weighted-sum": (merge.MERGE, Declared(features=merge.FEATURES, refusals=NOTHING)),
    "complex-rotation": (rotary.ROTARY, Declared(features=rotary.FEATURES)),
}
"""By name of the implementation: the operator that it defines, and the declaration."""


class ByDefinition(OperatorFunction):
    """The reference of an operator as an implementation. Only the rotation is differentiated."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.operator, declared = DEFINITIONS[name]
        super().__init__(backend, name, declared.but(numerics="exact"))

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return all_arrays(self.backend, inputs, integers=np.int64)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)
        if "gradient" in self.declared.refusals:
            return call
        reference = references.find(self.operator)

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            problem = with_values(arrays, inputs)
            gradients = reference.vjp(problem, cotangent.values, EXACT).arrays
            return {n: rounded_to(gradients[n].value, inputs.case.dtype_of(n)) for n in wrt}

        def jvp(tangents: dict[str, Rounded], **arrays: Rounded) -> Rounded:
            values = {n: tangent.values for n, tangent in tangents.items()}
            tangent = reference.jvp(with_values(arrays, inputs), values, EXACT)
            return rounded_to(tangent.arrays["output"].value, inputs.dtype)

        return replace(call, vjp=vjp, jvp=jvp)

    def compute(self, x: dict[str, Rounded], inputs: Inputs) -> Any:
        problem, reference = with_values(x, inputs), references.find(self.operator)

        def outputs(problem: Inputs) -> dict[str, Rounded]:
            arrays = reference.forward(problem, EXACT).arrays
            return {n: rounded_to(y.value, inputs.output_dtype(n)) for n, y in arrays.items()}

        answer = outputs(problem)
        # Attention over codes that the call writes is attention over the rounded codes.
        rounded_problem = reference.inputs_given(problem, {n: y.values for n, y in answer.items()})
        if rounded_problem is not problem:
            answer["output"] = outputs(rounded_problem)["output"]
        arrays = tuple(answer[name] for name in inputs.outputs)
        return arrays if len(arrays) > 1 else arrays[0]


def with_values(arrays: Mapping[str, Rounded], inputs: Inputs) -> Inputs:
    """Returns the inputs with the values of a call's arrays. Raises ValueError if lengths or tables name
    tokens, pages or slots that do not exist."""
    values = {name: array.values for name, array in arrays.items()}
    if "page_table" in values and "query_lengths" not in values:
        refuse_malformed(values, inputs)
    elif "page_table" in values:
        key, value = (in_pages.slots_first(inputs.case, values[name]) for name in ("key", "value"))
        starts = packed.cumulative_lengths(values["query_lengths"])
        counts, table = (values[name] for name in ("key_lengths", "page_table"))
        paged.refuse_malformed(values["query"], key, value, starts, counts, table)
    return inputs.replace(**values)
