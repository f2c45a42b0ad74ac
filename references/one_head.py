"""What the layers of one head without projections of values share: scores (B, Lq, Lk) of any kind, values
(B, Lk, Ev), and attention between them, forward and as derivatives have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from references.derivatives import Attention, Pairs
from references.outputs import Outputs, layer_outputs, wide
from references.projections import from_one_tensor
from references.rounding import Bounded, Roundoffs, narrowed, precision_for
from references.softmax import attend
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS


def headed(x: Bounded) -> Bounded:
    """(B, L, width) as one head, (B, 1, L, width)."""
    return x[:, None]


def headless(x: Bounded) -> Bounded:
    return x[:, 0]


def number(inputs: Inputs, name: str) -> np.floating:
    """A scalar parameter in the precision of the reference, 1 where it is absent."""
    scalar: np.floating = precision_for(inputs.dtype)(inputs.arrays.get(name, 1.0))
    return scalar


def attended(
    inputs: Inputs, scores: Bounded, value: np.ndarray, u: Roundoffs, empty_rows: str
) -> Outputs:
    """Output (B, Lq, Ev) and weights of scores (B, Lq, Lk)."""
    v = headed(narrowed(value, u))
    with np.errstate(all="ignore"):
        answer = attend(headed(scores), v, inputs.dense_mask, u, empty_rows)
    return layer_outputs(inputs, headless(answer.output), answer.weights, answer.keys, u)


def pairs(inputs: Inputs, empty_rows: str) -> Pairs:
    """The pairs that take part in a derivative."""
    s = inputs.sizes
    return Pairs((s.B, 1, s.Lq, s.Lk), inputs.dense_mask, None, empty_rows)


def behind(scores: Bounded, value: np.ndarray, pairs: Pairs, u: Roundoffs) -> Attention:
    """The chain behind scores (B, 1, Lq, Lk), with values (B, Lk, Ev)."""
    return Attention(scores, headed(narrowed(value, u)), pairs, u)


def cotangent_of(inputs: Inputs, cotangent: np.ndarray, u: Roundoffs) -> Bounded:
    """dO (B, 1, Lq, Ev) of a cotangent (B, Lq, Ev)."""
    return headed(narrowed(wide(inputs, {"cotangent": cotangent})["cotangent"], u))


def of_one_tensor(
    inputs: Inputs, arrays: dict[str, Bounded], u: Roundoffs, dys: Sequence[Bounded] = (),
    kernels: Sequence[np.ndarray] = (),
) -> dict[str, Bounded]:  # fmt: skip
    """The gradients by name; where query, key and value are one tensor, that of "query" is what it
    receives as all three. `dys` and `kernels` are those of projections (see `references.projections`)."""
    if not inputs.self_attention:
        return arrays
    received = [arrays[name] for name in OPERANDS]
    rest = {name: x for name, x in arrays.items() if name not in ("key", "value")}
    return rest | {"query": from_one_tensor(received, dys, kernels, u)}


def moved(
    attention: Attention, scores: Bounded | None, tangents: Mapping[str, np.ndarray], pairs: Pairs,
    u: Roundoffs,
) -> Outputs:  # fmt: skip
    """How the output moves as scores (B, Lq, Lk) do, and values, where they have a tangent."""
    value = headed(narrowed(tangents["value"], u)) if "value" in tangents else None
    seen = None if scores is None else pairs.attended(headed(scores))
    return Outputs({"output": headless(attention.tangent(seen, value))}, pairs.keys)
