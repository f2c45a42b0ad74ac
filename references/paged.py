"""Paged attention: every sample is plain attention (`references.sdpa`) over its queries and the keys that
its pages hold.

Bounds are those of the samples, and count only the keys that attend. Reading a page copies its bits. A
kernel that goes page by page adds up in another order, and rescales by exp(m - m') <= 1 at every page:
the bound of a row of n keys allows any order and n rescalings. Slots behind the last key, which a kernel
reads and hides, add exact zeros.

Gradients of pages that several samples share are sums, each of which is stored (`references.tape`). A
page without a sample has the gradient 0.

Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention,
SOSP 2023, section 4.1.
"""

from __future__ import annotations

from attention_conformance.references.composition import Problem
from attention_conformance.references.packed import ByParts
from attention_conformance.references.primitives.arranged import MovedAxis, Reshaped, SharedTensor
from attention_conformance.references.primitives.segments import Packed
from attention_conformance.references.tape import Node
from attention_conformance.suite.spec.operators.in_pages import flat_slots
from attention_conformance.suite.spec.operators.paged import samples


def _slots(problem: Problem, name: str) -> SharedTensor:
    """Returns the node of all slots (P * S, Hkv, .) of the pool `name`."""
    case = problem.inputs.case
    paged: Node = problem.leaf(name)
    if case.option("layout") == "hnd":
        paged = MovedAxis(paged, 1, 2)
    pages, slots, *trailing = paged.shape
    return (SharedTensor if case.option("shared") else Packed)(
        Reshaped(paged, (pages * slots, *trailing))
    )


reference = ByParts(
    samples,
    lambda problem: (_slots(problem, "key"), _slots(problem, "value")),
    lambda inputs: (flat_slots(inputs.case, inputs.key), flat_slots(inputs.case, inputs.value)),
)
