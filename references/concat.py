"""Scores c sum_i tanh(s (q_i + k_i)), Keras' reading of Luong's concat; s `scale`, c `concat_weight`.

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev); both parameters are scalars, 1 where absent. Bounds:
`references.tanh_scores`, then the softmax.

Source: Luong, Pham, Manning, EMNLP 2015.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import one_head
from references.one_head import headed, headless, number
from references.outputs import Outputs, moving, wide
from references.rounding import Roundoffs, narrowed
from references.tanh_scores import TanhScores
from suite.spec.inputs import Inputs


def _scores(inputs: Inputs, u: Roundoffs) -> TanhScores:
    x = wide(inputs)
    q, k = narrowed(x["query"], u), narrowed(x["key"], u)
    return TanhScores(q, k, None, u, number(inputs, "scale"), number(inputs, "concat_weight"))


def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """Output (B, Lq, Ev) and weights, where they are asked for, with their bounds.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    scores = _scores(inputs, rounding).scores
    return one_head.attended(inputs, scores, wide(inputs)["value"], rounding, empty_rows)


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, key, value and the two scalars, in their shapes; cotangent (B, Lq, Ev).

    `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises ValueError for another one,
    and NoExtendedPrecision.
    """
    u, scores, pairs = rounding, _scores(inputs, rounding), one_head.pairs(inputs, empty_rows)
    attention = one_head.behind(headed(scores.scores), wide(inputs)["value"], pairs, u)
    dO = one_head.cotangent_of(inputs, cotangent, u)
    arrays = scores.gradients(headless(attention.score_gradient(dO)))
    arrays["value"] = headless(attention.value_gradient(dO))
    arrays = {n: x for n, x in arrays.items() if n in inputs.arrays}
    return Outputs(one_head.of_one_tensor(inputs, arrays, u), pairs.keys)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, Lq, Ev), as any array moves along `tangents`.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    u, scores, pairs = rounding, _scores(inputs, rounding), one_head.pairs(inputs, empty_rows)
    attention = one_head.behind(headed(scores.scores), wide(inputs)["value"], pairs, u)
    moved = moving(inputs, tangents)
    query, key = (narrowed(moved[n], u) if n in moved else None for n in ("query", "key"))
    tangent = scores.tangent(
        query, key, scale=moved.get("scale"), weight=moved.get("concat_weight")
    )
    return one_head.moved(attention, tangent, moved, pairs, u)
