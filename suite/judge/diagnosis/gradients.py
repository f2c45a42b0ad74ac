"""What is wrong with gradients: an operand, a factor, a term of the backward pass, a sum.

For weights P, outputs O, a cotangent dO and the scale s (Dao et al., FlashAttention, 2022, appendix B):

    dV = P^T dO,   dP = dO V^T,   D = sum_j P dP,   dS = P (dP - D),   dQ = s dS K,   dK = s dS^T Q
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from attention_conformance.suite.judge.answer import swap_heads_and_length
from attention_conformance.suite.judge.derivative import differentiated, native_cotangent
from attention_conformance.suite.judge.diagnosis.evidence import WIDER, explains
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    Variant,
    softmax,
)
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.judge.diagnosis.outcome import Comparison
from attention_conformance.suite.judge.diagnosis.words import few_places
from attention_conformance.suite.judge.elections.probe import empty_row
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw_cotangent
from attention_conformance.suite.spec.vocabulary import OPERANDS

PLACES = {"b": "sample", "h": "head", "g": "head", "q": "query", "k": "key"}
"""Names of axes; others are components."""

Arrays = Mapping[str, np.ndarray | None]


def ask(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What is wrong with the gradients of a small case; nothing if the output is wrong, too. Fully masked
    rows have a cotangent of 0."""
    inputs = tool.draw(case, 1.0)
    if tool.implementation.missing(["gradient"]) is not None:
        return
    plain, output, empty = inputs.operator.is_default, tool.output(inputs), inputs.fully_masked_rows
    if not near(output, tool.oracle(inputs)) or output is None:
        return
    cotangent = draw_cotangent(case)
    if empty.any():
        if not plain or not np.isfinite(output[empty]).all():
            return  # NaN of these rows reaches all gradients
        cotangent = cotangent * ~empty[..., None]
    got = read(tool, inputs, cotangent)
    if got is None:
        return
    right = Oracle.vjp(inputs, cotangent, tool.rounding(inputs)).expected
    want = {n: np.asarray(right[n].value, float) for n in got}
    bound = {n: right[n].error + 16 * tool.unit * np.abs(want[n]).max() for n in got}
    # A gradient that is not there is right where the right one is 0.
    read_as = {n: 0 * want[n] if g is None else g for n, g in got.items()}
    wrong = [n for n, g in read_as.items() if not (np.abs(g - want[n]) <= bound[n]).all()]
    if not wrong:
        return
    lacking = [n for n in wrong if got[n] is None]
    if lacking:
        hint = "a backward pass that returns None, `detach()`"
        yield Symptom(f"{_the(lacking)} is missing.", "gradient", hint)
        return
    values = {n: g for n, g in got.items() if g is not None}
    again = read(tool, inputs, cotangent) or {}
    if any(
        a is not None and not np.array_equal(a, values[n], equal_nan=True) for n, a in again.items()
    ):
        hint = "a buffer of gradients that is not cleared"
        yield Symptom(f"{_the(wrong)} differs in a second pass.", "gradient", hint)
        return
    known = {n: (want[n], float(np.max(bound[n], initial=0.0))) for n in values}
    answered = Comparison(inputs, values, known)
    for row in _variants(inputs, cotangent) if plain else ():
        if values.keys() <= row.result.keys() and explains(answered, row.result):
            yield Symptom(row.sentence, "gradient", row.hint, key=row.name)
            return
    limit = {n: WIDER * bound[n] for n in bound}
    yield from _one_by_one(inputs, {n: values[n] for n in wrong}, want, limit)


def ask_empty(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What fully masked rows do to gradients, if the output of these rows is 0: NaN, or any gradient.
    Other outputs follow elections. One row of the case is masked fully, if none is."""
    inputs = tool.draw(case, 1.0)
    if not inputs.has_empty_rows:
        mask = np.ones((inputs.sizes.Lq, inputs.sizes.Lk), bool)
        mask[empty_row(inputs)] = False
        inputs = inputs.replace(mask_array=mask, mask=None, form="dense")
    output, empty = tool.output(inputs), inputs.fully_masked_rows
    if not near(output, tool.oracle(inputs)) or output is None or output[empty].any():
        return
    cotangent = draw_cotangent(case)
    beside = cotangent * ~empty[..., None]
    got, alone = (read(tool, inputs, of) or {} for of in (beside, cotangent - beside))
    right = Oracle.vjp(inputs, beside, tool.rounding(inputs)).expected
    broken, moved, wide = [], [], []
    for name, values in got.items():
        extra = alone.get(name)
        if values is None or extra is None:
            continue
        if np.isnan(values).any() or np.isnan(extra).any():
            broken.append(name)
            own = np.isnan(values)[~empty].any() if name == "query" else True
            wide += [name] if own else []
        elif not (np.abs(extra) <= right[name].error.max()).all():
            moved.append((float(np.abs(extra).max()), name))
    zeros = "Rows that attend no key have an output of 0, "
    if broken:
        where = "" if wide else ", in these rows"
        hint = "`where` behind a softmax of -inf alone, `exp(s - lse)` with an lse of -inf"
        yield Symptom(f"{zeros}but NaN comes back in {_all(broken)}{where}.", "gradient", hint)
    elif moved:
        size, names = max(moved)[0], [name for _, name in moved]
        text = f"{zeros}but change {_all(names)}, by up to {size:.2g}."
        hint = "a backward pass that hides no such rows, or uses an old lse"
        yield Symptom(text, "gradient", hint, key="fully masked rows")


def near(got: np.ndarray | None, oracle: Oracle | None) -> bool:
    """True if an output is right within the bound of the oracle, but for fully masked rows."""
    if got is None or oracle is None:
        return False
    right = oracle.expected["output"]
    good = np.abs(got - right.value) <= right.error
    if oracle.inputs.operator.is_default:
        good |= oracle.inputs.fully_masked_rows[..., None]
    return bool(good.all())


def read(tool: Instrument, inputs: Inputs, cotangent: np.ndarray) -> Arrays | None:
    """The gradients by operand in float64, (B, H, L, D) for query, key and value; None for a missing one.
    None if there is no reading."""

    def asked() -> Arrays | None:
        prepared = tool.prepare(inputs, differentiable=True)
        if prepared is None:
            return None
        backend = tool.implementation.backend
        names = differentiated(tool.implementation, prepared, inputs)
        values = np.ascontiguousarray(native_cotangent(cotangent, inputs, prepared))
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

    found: Arrays | None = tool.attempt(asked)
    return found


def backward(
    inputs: Inputs, cotangent: np.ndarray, attended: np.ndarray | None = None, mean: float = 1.0,
    scale: float = 1.0, biased: bool = True, summed: bool = True, turned: bool = False,
    weigh: Callable[[np.ndarray, np.ndarray], np.ndarray] = softmax, saved: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The gradients by the formula in float64, with what backward passes get wrong: another mask `shown`,
    D times `mean` (`saved`: that of the right output, dO . O), the scale times `scale`, no bias, the last
    head of a group for all (not `summed`), dS transposed, weights as `weigh(scores, shown)`."""
    reading = Reading.of_mask(inputs)
    s, group = inputs.effective_scale, inputs.sizes.group
    scores = reading.scores if biased or reading.bias is None else reading.scores - reading.bias
    weights = weigh(scores, inputs.attends if attended is None else attended)
    key, value = (np.repeat(x, group, axis=1) for x in (inputs.key, inputs.value))
    dP = cotangent @ value.swapaxes(-1, -2)
    D = (weights * dP).sum(-1, keepdims=True)
    if saved:
        D = (cotangent * (softmax(reading.scores, inputs.attends) @ value)).sum(-1, keepdims=True)
    dS = weights * (dP - mean * D)
    cap = inputs.feature("softcap")
    dT = dS if cap is None else dS * (1 - np.tanh(reading.products * s / cap) ** 2)
    if turned and dT.shape[-1] == dT.shape[-2]:
        dT = dT.swapaxes(-1, -2)

    def by_key(x: np.ndarray) -> np.ndarray:
        split = x.reshape(x.shape[0], -1, group, *x.shape[2:])
        return np.asarray(split.sum(2) if summed else split[:, :, -1])

    out = {
        "query": scale * s * dT @ key,
        "key": by_key(scale * s * dT.swapaxes(-1, -2) @ inputs.query),
        "value": by_key(weights.swapaxes(-1, -2) @ cotangent),
    }
    if inputs.bias is not None:
        shape = (1,) * (4 - inputs.bias.ndim) + inputs.bias.shape
        axes = tuple(a for a in range(4) if shape[a] != dS.shape[a])
        out["bias"] = dS.sum(axes, keepdims=True).reshape(inputs.bias.shape)
    return out


def _variants(inputs: Inputs, cotangent: np.ndarray) -> Iterator[Variant[dict[str, np.ndarray]]]:
    """Gradients of wrong backward passes that are no deviations of the catalogue."""
    s, attends = inputs.effective_scale, inputs.attends
    plain = backward(inputs, cotangent)
    of = partial(backward, inputs, cotangent)

    def raised(scores: np.ndarray, attended: np.ndarray) -> np.ndarray:
        top = np.where(attended, scores, -np.inf).max(-1, keepdims=True)
        return np.where(attended, np.exp(scores - top), 0)

    def by_lse(scores: np.ndarray, attended: np.ndarray) -> np.ndarray:
        """exp(scores - lse) for the pairs shown, with the right log-sum-exp."""
        lse = np.log(np.where(attends, np.exp(scores), 0).sum(-1, keepdims=True))
        return np.where(attended, np.exp(scores - lse), 0)

    passes = "The backward pass "
    both = "The gradients of query and key "
    saving, order = "what the forward pass saves", "the order of what the backward pass returns"
    stores = "one program overwrites what another one stored: add, or loop over the group"
    yield Variant(
        of(mean=-1.0), passes + "adds D: dS is P (dP + D), expected P (dP - D).", "a sign"
    )
    yield Variant(of(scale=1 / s), both + "leave out the scale.", "`dQ = dS @ K` without `* scale`")
    yield Variant(of(scale=s), both + "have the scale twice.", "a query that is scaled already")
    text = passes + "takes exp(s - max) for the weights, not divided by their sum."
    yield Variant(of(weigh=raised), text, "`exp(s - m)` for `exp(s - lse)`")
    if not attends.all():
        every = np.ones(attends.shape, bool)
        for weigh, saved in ((softmax, False), (by_lse, False), (by_lse, True)):
            for biased, beside in ((True, ""), (False, " and the bias")):
                wrong = of(attended=every, weigh=weigh, biased=biased, saved=saved)
                yield Variant(
                    wrong, f"{passes}recomputes the weights without the mask{beside}.", saving
                )
            for row in meanings(inputs):
                pairs = np.broadcast_to(row.result, attends.shape)
                text = f"In the backward pass: {row.sentence}"
                yield Variant(
                    of(attended=pairs, weigh=weigh, saved=saved), text, saving, key=row.name
                )
    if inputs.sizes.group > 1:
        wrong = of(summed=False)
        last = "{} {} the last of the query heads of a group, expected their sum."
        text = last.format("The gradients of key and value are", "those of")
        yield Variant(wrong, text, stores)
        for name in ("key", "value"):
            text = last.format(f"The gradient of the {name} is", "that of")
            yield Variant({**plain, name: wrong[name]}, text, stores)
    if inputs.sizes.Lq == inputs.sizes.Lk:
        yield Variant(of(turned=True), passes + "transposes dS.", "`dS.mT @ K`")
    for one, two in (("query", "key"), ("key", "value")):
        if plain[one].shape == plain[two].shape:
            exchanged = {**plain, one: plain[two], two: plain[one]}
            yield Variant(exchanged, f"The gradients of {one} and {two} are exchanged.", order)


def _one_by_one(
    inputs: Inputs,
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    limit: Mapping[str, np.ndarray],
) -> Iterator[Symptom]:
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
            text = f"{_the([name])} is not finite, though the output is."
            yield Symptom(text, "gradient", "`0 * inf`, `log(0)`, `where` behind a NaN")
            continue
        if (np.abs(values) <= limit[name]).all():
            hint = "a missing path through the graph, `detach()`"
            yield Symptom(f"{_the([name])} is zero.", "gradient", hint)
            continue
        factor = float((values * right).sum() / (right * right).sum())
        sharp = limit[name].max() < 0.02 * np.abs(right).max()
        if sharp and (np.abs(values - factor * right) <= max(1, abs(factor)) * limit[name]).all():
            hint = next(
                (text for x, text in named.items() if abs(factor - x) <= 1e-4 * abs(x)), "a factor"
            )
            text = f"{_the([name])} is {factor:.4g} times the right one."
            yield Symptom(text, "gradient", hint, key=f"factor of {name}")
            continue
        wrong = np.abs(values - right) > limit[name]
        letters = inputs.axes(name)[-wrong.ndim :] if wrong.ndim else ""
        parts = [f"{PLACES.get(letters[axis], 'component')} {at}" for axis, at in few_places(wrong)]
        where = f" in {', '.join(parts)} alone" if parts else ""
        size = np.abs(values - right).max() / np.abs(right).max()
        text = f"{_the([name])} is wrong{where}, by up to {size:.2g} times its largest element."
        yield Symptom(text, "gradient", key=f"places of {name}")


def _the(names: list[str]) -> str:
    return f"The gradient of the {' and the '.join(names)}".replace("_", " ")


def _all(names: list[str]) -> str:
    if len(names) == 1:
        return f"the gradient of the {names[0]}".replace("_", " ")
    return f"the gradients of {', '.join(names[:-1])} and {names[-1]}".replace("_", " ")
