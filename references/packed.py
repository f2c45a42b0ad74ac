"""Packed attention: every segment is plain attention of its own (`references.sdpa`), over its queries and
its keys.

Bounds are those of the segments. A kernel that computes all pairs and hides those of two segments adds
exact zeros to its sums: bounds count the keys that attend.

Source: the definition in Dao, FlashAttention-2, arXiv 2307.08691 (2023), as "varlen" interfaces have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from references import sdpa
from references.outputs import Outputs, moving
from references.rounding import Bounded, Roundoffs
from references.tape import Reference
from suite.spec.case import Case
from suite.spec.inputs import Inputs
from suite.spec.masks import Causal
from suite.spec.operators.packed import segments
from suite.spec.operators.sdpa import SDPA
from suite.spec.sizes import Sizes
from suite.spec.vocabulary import OPERANDS

MASKS = {"all": None, "causal": Causal(), "causalbr": Causal(True)}
"""The mask of a segment by the alignment of a case."""

Rows = slice
Keys = slice


class _Packed(Reference):
    """Every segment is a composition of its own; what they give is put where they stand."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (Lq, H, Dv), with its standard deviation in 16-bit dtypes. Every row has keys:
        `empty_rows` is of no influence. Raises NoExtendedPrecision."""

        def of_segment(one: Inputs, rows: Rows, keys: Keys) -> Outputs:
            return sdpa.reference.forward(one, rounding)

        return _together(inputs, ("output",), of_segment)

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", of: str = "output",
    ) -> Outputs:  # fmt: skip
        """The gradients of query, key and value in their own shapes, for a cotangent (Lq, H, Dv)."""

        def of_segment(one: Inputs, rows: Rows, keys: Keys) -> Outputs:
            return sdpa.reference.vjp(one, _by_head(cotangent[rows]), rounding)

        return _together(inputs, OPERANDS, of_segment)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """How the output moves, (Lq, H, Dv), as query, key and value move along `tangents`.

        Raises ValueError for the tangent of lengths, and of an unknown array.
        """
        moving(inputs, tangents)

        def of_segment(one: Inputs, rows: Rows, keys: Keys) -> Outputs:
            moved = {n: _by_head(t[rows if n == "query" else keys]) for n, t in tangents.items()}
            return sdpa.reference.jvp(one, moved, rounding)

        return _together(inputs, ("output",), of_segment)


reference = _Packed(sdpa.compose)


def of_segments(inputs: Inputs) -> Iterator[tuple[Rows, Keys, Inputs]]:
    """The segments that have queries or keys: which ones, and plain attention over them,
    query (1, H, rows, D), key (1, Hkv, keys, D), value (1, Hkv, keys, Dv)."""
    case, s = inputs.case, inputs.sizes
    mask = MASKS[case.option("alignment")]
    for rows, keys in segments(case):
        count, of = rows.stop - rows.start, keys.stop - keys.start
        if count or of:
            sizes = Sizes(1, s.H, s.Hkv, count, of, s.D, s.Dv)
            one = Case.of(SDPA, sizes, case.dtype, mask, scale=case.option("scale"))
            arrays = {
                "query": _by_head(inputs.query[rows]),
                "key": _by_head(inputs.key[keys]),
                "value": _by_head(inputs.value[keys]),
            }
            yield rows, keys, Inputs(one, arrays, sizes, seed=inputs.seed)


def _by_head(x: np.ndarray) -> np.ndarray:
    """(L, H, D) as (1, H, L, D)."""
    return np.ascontiguousarray(x.transpose(1, 0, 2)[None])


def _together(
    inputs: Inputs, names: tuple[str, ...], of_segment: Callable[[Inputs, Rows, Keys], Outputs]
) -> Outputs:
    """What all segments give, in the places where they stand; zero elsewhere, exactly: keys that no query
    attends have no gradient."""
    axes = {**inputs.case.axes, **inputs.operator.outputs(inputs.case)}
    arrays: dict[str, Bounded] = {}
    deviation: np.ndarray | None = None
    for rows, keys, one in of_segments(inputs):
        outputs = of_segment(one, rows, keys)
        for name in names:
            places = keys if axes[name].startswith("k") else rows
            part = outputs.arrays[name]
            if name not in arrays:
                shape = tuple(inputs.letters[letter] for letter in axes[name])
                arrays[name] = Bounded(np.zeros(shape, part.value.dtype), np.zeros(shape))
            arrays[name].value[places] = part.value[0].transpose(1, 0, 2)
            arrays[name].error[places] = part.error[0].transpose(1, 0, 2)
        if outputs.deviation is not None:
            if deviation is None:
                deviation = np.zeros(arrays["output"].value.shape)
            deviation[rows] = outputs.deviation[0].transpose(1, 0, 2)
    return Outputs(arrays, np.ones((1, 1, inputs.sizes.Lq), int), deviation)
