"""Right packed attention in NumPy, forward and backward, one method a step (see `attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attention_conformance import references
from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.deviations.kernels.attention import DeclaredKernel
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import (
    FEATURES,
    PACKED,
    allowed_pairs,
    cumulative_lengths,
)
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

BOUNDS = ("query_lengths", "key_lengths")
"""The arguments that are the bounds of segments."""

SegmentSlices = tuple[slice, slice]
"""The queries and the keys of one segment."""


@dataclass(frozen=True)
class Pack:
    """One call: query (Lq, H, D), key (Lk, Hkv, D), value (Lk, Hkv, Dv), and the bounds (B + 1,) of
    segments among queries and keys: segment b is `bounds[b] : bounds[b + 1]`."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    query_bounds: np.ndarray
    key_bounds: np.ndarray
    alignment: str
    scale: float
    fmt: DType

    @property
    def work(self) -> type[np.floating[Any]]:
        return self.fmt.working

    @property
    def sizes(self) -> Sizes:
        (Lq, H, D), (Lk, Hkv, Dv) = self.query.shape, self.value.shape
        return Sizes(len(self.query_bounds) - 1, H, Hkv, Lq, Lk, D, Dv)


class PackedKernel(DeclaredKernel):
    """Segment after segment in float32; only the output is rounded."""

    operator = PACKED
    features = FEATURES
    elections = {"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype

        def call(**arrays: Rounded) -> Rounded:
            pack = self.packed_call({name: x.values for name, x in arrays.items()}, inputs)
            with np.errstate(all="ignore"):
                return rounded_to(self.output(pack), fmt)

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            operands = {name: arrays[name].values for name in OPERANDS}
            gradients = self.gradients(operands, cotangent.values, inputs)
            return {name: rounded_to(gradients[name], fmt) for name in wrt}

        return PreparedCall(call, self.arguments(inputs), vjp=vjp, constants=self.constants(inputs))

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Returns query, key, value and the cumulative lengths (B + 1,) named in `BOUNDS`, by name."""
        arguments = {n: self.backend.array(inputs.arrays[n], inputs.dtype) for n in OPERANDS}
        for name in BOUNDS:
            arguments[name] = self.backend.array(cumulative_lengths(inputs.arrays[name]), None)
        return arguments

    def constants(self, inputs: Inputs) -> tuple[Any, ...]:
        """Returns the values on which the call depends, besides its arrays."""
        return (inputs.case.option("alignment"), self.scale(inputs), inputs.dtype.name)

    def packed_call(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Pack:
        """Returns the call with these arrays."""
        alignment = inputs.case.option("alignment")
        q, k, v, query_bounds, key_bounds = (arrays[name] for name in (*OPERANDS, *BOUNDS))
        scale, fmt = self.scale(inputs), inputs.dtype
        return Pack(q, k, v, query_bounds, key_bounds, alignment, scale, fmt)

    def scale(self, inputs: Inputs) -> float:
        return inputs.effective_scale

    def output(self, pack: Pack) -> np.ndarray:
        """Returns the output (Lq, H, Dv), not yet rounded."""
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        for rows, keys in self.segments(pack):
            weights, value = self.weights(pack, rows, keys)
            if weights.size:
                out[rows] = (weights @ value).transpose(1, 0, 2)
        return out

    def segments(self, pack: Pack) -> list[SegmentSlices]:
        """Returns the queries and the keys of each segment, as slices."""
        rows, keys = (
            [slice(int(start), int(stop)) for start, stop in pairwise(bounds)]
            for bounds in (pack.query_bounds, pack.key_bounds)
        )
        return list(zip(rows, keys, strict=True))

    def key_heads(self, pack: Pack) -> np.ndarray:
        """Returns the index (H,) of the key/value head that each query head reads."""
        H, Hkv = pack.query.shape[1], pack.key.shape[1]
        return np.arange(H) // (H // Hkv)

    def weights(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights (H, rows, keys) of a segment, and its values (H, keys, Dv)."""
        scores, v = self.scores(pack, rows, keys)
        allowed = self.allowed(pack, rows, keys)
        return self.softmax(np.where(allowed, scores, -np.inf), pack), v

    def scores(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores (H, rows, keys) of queries and keys, and the values (H, keys, Dv)."""
        heads = self.key_heads(pack)
        q = pack.query[rows].astype(pack.work).transpose(1, 0, 2)
        k, v = (
            x[keys][:, heads].astype(pack.work).transpose(1, 0, 2) for x in (pack.key, pack.value)
        )
        return (q @ k.transpose(0, 2, 1)) * pack.work(pack.scale), v

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        """Returns the mask (rows, keys) of a segment, True attends."""
        return allowed_pairs(rows.stop - rows.start, keys.stop - keys.start, pack.alignment)

    def softmax(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        if not scores.size:
            return scores
        exponentials = np.exp(scores - self.largest(scores, pack))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def largest(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        """Returns the maximum of each row, which the softmax subtracts; the axis keeps size 1."""
        maximum: np.ndarray = scores.max(-1, keepdims=True)
        return maximum

    def gradients(
        self, arrays: dict[str, np.ndarray], cotangent: np.ndarray, inputs: Inputs
    ) -> dict[str, np.ndarray]:
        """Returns the reference's gradients of query, key and value in float64, by name."""
        outputs = references.find(self.operator).vjp(
            inputs.replace(**arrays), cotangent, NO_ROUNDING
        )
        return {name: gradient.value for name, gradient in outputs.arrays.items()}
