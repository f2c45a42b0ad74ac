"""What is wrong with gradients: an operand, a factor, a term of the backward pass, a sum.

For weights P, outputs O, a cotangent dO and the scale s (Dao et al., FlashAttention, 2022, appendix B):

    dV = P^T dO,   dP = dO V^T,   D = sum_j P dP,   dS = P (dP - D),   dQ = s dS K,   dK = s dS^T Q
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from suite.judge.answer import names_of, swap_heads_and_length
from suite.judge.diagnosis.instrument import Found, Instrument, Reading, softmax
from suite.judge.oracle import Oracle
from suite.spec.case import Case
from suite.spec.inputs import Inputs, draw_cotangent
from suite.spec.vocabulary import OPERANDS

PLACES = {"b": "sample", "h": "head", "g": "head", "q": "query", "k": "key"}
"""Names of axes; others are components."""

Arrays = Mapping[str, np.ndarray | None]


def ask(tool: Instrument, case: Case) -> Iterator[Found]:
    """What is wrong with the gradients of a small case whose output is right."""
    inputs = tool.drawn(case, 1.0)
    if inputs.has_empty_rows or tool.implementation.missing(["gradient"]) is not None:
        return
    cotangent = draw_cotangent(case)
    got = read(tool, inputs, cotangent)
    if got is None:
        return
    right = Oracle.vjp(inputs, cotangent, tool.rounding(inputs)).expected
    want = {n: np.asarray(right[n].value, float) for n in got}
    bound = {n: right[n].error + 16 * tool.unit * np.abs(want[n]).max() for n in got}
    wrong = [n for n, g in got.items() if g is None or not (np.abs(g - want[n]) <= bound[n]).all()]
    if not wrong:
        return
    lacking = [n for n in wrong if got[n] is None]
    if lacking:
        yield Found(
            f"{_the(lacking)} is missing.",
            "gradient",
            "a backward pass that returns None, `detach()`",
        )
        return
    values = {n: g for n, g in got.items() if g is not None}
    again = read(tool, inputs, cotangent) or {}
    if any(
        a is not None and not np.array_equal(a, values[n], equal_nan=True) for n, a in again.items()
    ):
        hint = "a buffer of gradients that is not cleared"
        yield Found(f"{_the(wrong)} differs in a second pass.", "gradient", hint)
        return
    limit = {n: 8 * bound[n] for n in bound}
    plain = inputs.operator.is_default
    for variant, sentence, hint in _variants(inputs, cotangent) if plain else ():
        if all(
            n in variant and (np.abs(variant[n] - g) <= limit[n]).all() for n, g in values.items()
        ):
            yield Found(sentence, "gradient", hint)
            return
    yield from _one_by_one(inputs, {n: values[n] for n in wrong}, want, limit)


def read(tool: Instrument, inputs: Inputs, cotangent: np.ndarray) -> Arrays | None:
    """The gradients by operand in float64, (B, H, L, D) for query, key and value; None for a missing one.
    None if there is no reading."""

    def asked() -> Arrays | None:
        prepared = tool.prepared(inputs, differentiable=True)
        if prepared is None:
            return None
        backend, names = tool.implementation.backend, names_of(prepared, inputs)
        if tool.implementation.missing(["gradient-of-bias"]) is not None:
            names = [name for name in names if name != "bias"]
        values = np.ascontiguousarray(swap_heads_and_length(cotangent, prepared))
        _, native = backend.vjp(prepared, names, backend.array(values, inputs.dtype))
        arrays: dict[str, np.ndarray | None] = {}
        for name in names:
            if native.get(name) is None:
                arrays[name] = None
                continue
            array = backend.to_numpy(native[name])
            array = swap_heads_and_length(array, prepared) if name in OPERANDS else array
            if array.size != inputs.arrays[name].size:
                return None
            arrays[name] = array.reshape(inputs.arrays[name].shape)
        return arrays

    found: Arrays | None = tool.trying(asked)
    return found


def backward(
    inputs: Inputs, cotangent: np.ndarray, shown: np.ndarray | None = None, mean: float = 1.0,
    scale: float = 1.0, capped: bool = True, biased: bool = True, normal: bool = True,
    heads: str = "sum", turned: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The gradients by the formula in float64, with what backward passes get wrong: another mask `shown`,
    D times `mean`, the scale times `scale`, without the derivative of the softcap, without the bias,
    without the division by the sum, one head of a group for all, dS transposed."""
    zeros = np.zeros((*inputs.attends.shape[:3], inputs.sizes.Lk))
    reading = Reading(inputs, zeros, zeros, zeros)
    s, group = inputs.effective_scale, inputs.sizes.group
    scores = reading.scores if biased or reading.bias is None else reading.scores - reading.bias
    weights = softmax(scores, inputs.attends if shown is None else shown)
    if not normal:
        weights = np.where(inputs.attends, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    key, value = (np.repeat(x, group, axis=1) for x in (inputs.key, inputs.value))
    dP = cotangent @ value.swapaxes(-1, -2)
    D = (weights * dP).sum(-1, keepdims=True)
    dS = weights * (dP - mean * D)
    cap = inputs.feature("softcap")
    dT = dS if cap is None or not capped else dS * (1 - np.tanh(reading.products * s / cap) ** 2)
    if turned and dT.shape[-1] == dT.shape[-2]:
        dT = dT.swapaxes(-1, -2)

    def by_key(x: np.ndarray) -> np.ndarray:
        split = x.reshape(x.shape[0], -1, group, *x.shape[2:])
        chosen = {
            "sum": split.sum(2),
            "mean": split.mean(2),
            "first": split[:, :, 0],
            "last": split[:, :, -1],
        }
        return chosen[heads]

    out = {
        "query": scale * s * dT @ key,
        "key": by_key(scale * s * dT.swapaxes(-1, -2) @ inputs.query),
        "value": by_key(weights.swapaxes(-1, -2) @ cotangent),
    }
    if inputs.bias is not None:
        axes = tuple(
            a
            for a, (x, y) in enumerate(
                zip((1,) * (4 - inputs.bias.ndim) + inputs.bias.shape, dS.shape, strict=True)
            )
            if x != y
        )
        out["bias"] = dS.sum(axes, keepdims=True).reshape(inputs.bias.shape)
    return out


def _variants(
    inputs: Inputs, cotangent: np.ndarray
) -> Iterator[tuple[dict[str, np.ndarray], str, str]]:
    """Gradients of wrong backward passes, a sentence, a hint."""
    s, every = inputs.effective_scale, np.ones(inputs.attends.shape, bool)
    plain = backward(inputs, cotangent)

    def of(**wrong: object) -> dict[str, np.ndarray]:
        return backward(inputs, cotangent, **wrong)  # type: ignore[arg-type]

    yield (
        of(mean=0.0),
        "The backward pass leaves out D: dS is P dP, expected P (dP - D).",
        "`dS = P * dP`",
    )
    yield (
        of(mean=-1.0),
        "The backward pass adds D: dS is P (dP + D), expected P (dP - D).",
        "a sign",
    )
    for factor, text in ((1 / s, "leave out the scale"), (s, "have the scale twice")):
        yield (
            of(scale=factor),
            f"The gradients of query and key {text}.",
            "`dQ = dS @ K` without `* scale`",
        )
    yield (
        of(normal=False),
        "The backward pass takes exp(s - max) for the weights, not divided by their sum.",
        "`exp(s - m)` for `exp(s - lse)`",
    )
    yield (
        of(shown=every),
        "The backward pass recomputes the weights without the mask.",
        "the mask is not saved for the backward pass",
    )
    if inputs.bias is not None or inputs.feature("alibi_slopes") is not None:
        yield (
            of(biased=False),
            "The backward pass recomputes the weights without the bias.",
            "the bias is not saved for the backward pass",
        )
    if inputs.feature("softcap") is not None:
        yield (
            of(capped=False),
            "The gradients of query and key leave out the derivative of the softcap.",
            "`* (1 - tanh(s / c) ** 2)`",
        )
    if inputs.sizes.group > 1:
        for how, text in (
            ("mean", "are averaged over"),
            ("first", "are those of the first of"),
            ("last", "are those of the last of"),
        ):
            yield (
                of(heads=how),
                f"The gradients of key and value {text} the query heads of a group, expected their sum.",
                "one program overwrites what another one stored: add, or loop over the group",
            )
    if inputs.sizes.Lq == inputs.sizes.Lk:
        yield of(turned=True), "The backward pass transposes dS.", "`dS.mT @ K`"
    ones = backward(inputs, np.ones_like(cotangent))
    yield (
        ones,
        "The gradients are those of the sum of the output, whatever the cotangent.",
        "`ones_like(output)` for the incoming gradient",
    )
    if plain["query"].shape == plain["key"].shape:
        yield (
            {**plain, "query": plain["key"], "key": plain["query"]},
            "The gradients of query and key are exchanged.",
            "the order of what the backward pass returns",
        )
    if plain["value"].shape == plain["key"].shape:
        yield (
            {**plain, "value": plain["key"], "key": plain["value"]},
            "The gradients of key and value are exchanged.",
            "the order of what the backward pass returns",
        )


def _one_by_one(
    inputs: Inputs,
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    limit: Mapping[str, np.ndarray],
) -> Iterator[Found]:
    """What is wrong with each gradient by itself."""
    s = inputs.effective_scale
    named = {
        1 / s: "the scale is left out", s: "the scale stands twice", -1.0:
            "a sign", float(inputs.sizes.group): "the heads of a group",
        1 / inputs.sizes.group: "the heads of a group", 1 / inputs.sizes.B: "a mean over samples",
    }  # fmt: skip
    for name, values in got.items():
        right = want[name]
        if not np.isfinite(values).all():
            yield Found(
                f"{_the([name])} is not finite, though the output is.",
                "gradient",
                "`0 * inf`, `log(0)`, `where` behind a NaN",
            )
            continue
        if (np.abs(values) <= limit[name]).all():
            yield Found(
                f"{_the([name])} is zero.",
                "gradient",
                "a missing path through the graph, `detach()`",
            )
            continue
        factor = float((values * right).sum() / (right * right).sum())
        sharp = limit[name].max() < 0.02 * np.abs(right).max()
        if sharp and (np.abs(values - factor * right) <= max(1, abs(factor)) * limit[name]).all():
            hint = next(
                (text for x, text in named.items() if abs(factor - x) <= 1e-4 * abs(x)), "a factor"
            )
            yield Found(f"{_the([name])} is {factor:.4g} times the right one.", "gradient", hint)
            continue
        wrong = np.abs(values - right) > limit[name]
        parts = []
        for axis, letter in enumerate(inputs.axes(name)[-wrong.ndim :] if wrong.ndim else ""):
            which = np.flatnonzero(wrong.any(tuple(a for a in range(wrong.ndim) if a != axis)))
            if 0 < len(which) <= wrong.shape[axis] / 2:
                listed = ", ".join(map(str, which[:6]))
                parts.append(f"{PLACES.get(letter, 'component')} {listed} of {wrong.shape[axis]}")
        where = f" in {', '.join(parts)} alone" if parts else ""
        size = np.abs(values - right).max() / np.abs(right).max()
        yield Found(
            f"{_the([name])} is wrong{where}, by up to {size:.0%} of its largest element.",
            "gradient",
        )


def _the(names: list[str]) -> str:
    return f"The gradient of the {' and the '.join(names)}".replace("_", " ")
