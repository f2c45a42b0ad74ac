"""Honest packed attention in NumPy, one method a step (see `attention`), both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.faults.kernels.attention import Stated
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import (
    FEATURES,
    PACKED,
    allowed_pairs,
    summed,
)
from attention_conformance.suite.spec.vocabulary import OPERANDS

BOUNDS = ("query_lengths", "key_lengths")
"""The arguments that say where segments begin."""

Pair = tuple[slice, slice]


@dataclass(frozen=True)
class Pack:
    """One call: query (Lq, H, D), key (Lk, Hkv, D), value (Lk, Hkv, Dv), where segments begin and where
    the last one ends, (B + 1,) each."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    alignment: str
    scale: float
    fmt: DType

    @property
    def work(self) -> type[np.floating[Any]]:
        return self.fmt.working


class PackedKernel(Stated):
    """Segment after segment in float32, rounded once."""

    operator = PACKED
    features = FEATURES
    elections = {"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"}

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype

        def packed(arrays: dict[str, Rounded]) -> Pack:
            return self.gathered({name: x.values for name, x in arrays.items()}, inputs)

        def call(**arrays: Rounded) -> Rounded:
            with np.errstate(all="ignore"):
                return Rounded(round_to(self.output(packed(arrays)), fmt), fmt)

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            gradients = self.gradients(packed(arrays), cotangent.values)
            return {name: Rounded(round_to(gradients[name], fmt), fmt) for name in wrt}

        return PreparedCall(call, self.arguments(inputs), vjp=vjp, constants=self.constants(inputs))

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """The arrays of a call."""
        arguments = {n: self.backend.array(inputs.arrays[n], inputs.dtype) for n in OPERANDS}
        for name in BOUNDS:
            arguments[name] = self.backend.array(summed(inputs.arrays[name]), None)
        return arguments

    def constants(self, inputs: Inputs) -> tuple[Any, ...]:
        """What the call knows besides its arrays."""
        return (inputs.case.option("alignment"), self.scale(inputs), inputs.dtype.name)

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Pack:
        """The call of these arrays."""
        alignment = inputs.case.option("alignment")
        q, k, v, queries, keys = (arrays[name] for name in (*OPERANDS, *BOUNDS))
        return Pack(q, k, v, queries, keys, alignment, self.scale(inputs), inputs.dtype)

    def scale(self, inputs: Inputs) -> float:
        return inputs.effective_scale

    def output(self, pack: Pack) -> np.ndarray:
        """The output (Lq, H, Dv), not yet rounded."""
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        for rows, keys in self.segments(pack):
            weights, value = self.weights(pack, rows, keys)
            if weights.size:
                out[rows] = (weights @ value).transpose(1, 0, 2)
        return out

    def segments(self, pack: Pack) -> list[Pair]:
        """Which queries and which keys each segment has."""
        edges = zip(pack.queries[:-1], pack.queries[1:], pack.keys[:-1], pack.keys[1:], strict=True)
        return [(slice(int(a), int(b)), slice(int(c), int(d))) for a, b, c, d in edges]

    def heads(self, pack: Pack) -> np.ndarray:
        """The key/value head of every query head."""
        H, Hkv = pack.query.shape[1], pack.key.shape[1]
        return np.arange(H) // (H // Hkv)

    def weights(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        """The weights (H, rows, keys) of a segment, and its values (H, keys, Dv)."""
        scores, v = self.scores(pack, rows, keys)
        allowed = self.allowed(pack, rows, keys)
        return self.softmax(np.where(allowed, scores, -np.inf), pack), v

    def scores(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        """The scores (H, rows, keys) of queries and keys, and the values (H, keys, Dv)."""
        heads = self.heads(pack)
        q = pack.query[rows].astype(pack.work).transpose(1, 0, 2)
        k, v = (
            x[keys][:, heads].astype(pack.work).transpose(1, 0, 2) for x in (pack.key, pack.value)
        )
        return (q @ k.transpose(0, 2, 1)) * pack.work(pack.scale), v

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        return allowed_pairs(rows.stop - rows.start, keys.stop - keys.start, pack.alignment)

    def softmax(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        if not scores.size:
            return scores
        exponentials = np.exp(scores - self.largest(scores, pack))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def largest(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        maximum: np.ndarray = scores.max(-1, keepdims=True)
        return maximum

    def gradients(self, pack: Pack, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        """Gradients of query, key and value."""
        gradients = {n: np.zeros(getattr(pack, n).shape) for n in ("query", "key", "value")}
        heads, scale = self.heads(pack), pack.work(pack.scale)
        for rows, keys in self.segments(pack):
            p, v = self.weights(pack, rows, keys)
            if not p.size:
                continue
            dO = cotangent[rows].astype(pack.work).transpose(1, 0, 2)
            q, k = pack.query[rows].transpose(1, 0, 2), pack.key[keys][:, heads].transpose(1, 0, 2)
            dP = dO @ v.transpose(0, 2, 1)
            dS = p * (dP - (dP * p).sum(-1, keepdims=True)) * scale
            gradients["query"][rows] = (dS @ k.astype(pack.work)).transpose(1, 0, 2)
            for name, parts in (
                ("key", dS.transpose(0, 2, 1) @ q.astype(pack.work)),
                ("value", p.transpose(0, 2, 1) @ dO),
            ):
                for head, part in zip(heads, parts, strict=True):
                    gradients[name][keys, head] += part
        return gradients
