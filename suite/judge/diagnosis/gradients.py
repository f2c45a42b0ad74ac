"""The symptoms of gradients: an operand, a factor, a term of the backward pass, a sum.

For weights P, outputs O, a cotangent dO and the scale s (Dao et al., FlashAttention, 2022, appendix B):

    dV = P^T dO,   dP = dO V^T,   D = sum_j P dP,   dS = P (dP - D),   dQ = s dS K,   dK = s dS^T Q
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from attention_conformance.suite.judge.answer import swap_heads_and_length
from attention_conformance.suite.judge.derivative import differentiable_names, native_cotangent
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
"""Names of axes by their letters; other axes are components."""

Arrays = Mapping[str, np.ndarray | None]


def ask(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """The symptoms of the gradients of a small case; none if the output is wrong, too. Fully masked rows
    have a cotangent of 0."""
    inputs = tool.draw(case, 1.0)
    if tool.implementation.missing(["gradient"]) is not None:
        return
    is_plain, fully_masked = inputs.operator.is_default, inputs.fully_masked_rows
    output = tool.output(inputs)
    if not is_right(output, tool.oracle(inputs)) or output is None:
        return
    cotangent = draw_cotangent(case)
    if fully_masked.any():
        if not is_plain or not np.isfinite(output[fully_masked]).all():
            return  # NaN of these rows reaches all gradients
        cotangent = cotangent * ~fully_masked[..., None]
    got = read(tool, inputs, cotangent)
    if got is None:
        return
    right = Oracle.vjp(inputs, cotangent, tool.rounding(inputs)).expected
    want = {n: np.asarray(right[n].value, float) for n in got}
    bound = {n: right[n].error + 16 * tool.unit * np.abs(want[n]).max() for n in got}
    # A missing gradient is right if the right one is 0.
    filled = {n: 0 * want[n] if g is None else g for n, g in got.items()}
    wrong = [n for n, g in filled.items() if not (np.abs(g - want[n]) <= bound[n]).all()]
    if not wrong:
        return
    missing = [n for n in wrong if got[n] is None]
    if missing:
        hint = "a backward pass that returns None, `detach()`"
        yield Symptom(f"{_gradient_subject(missing)} is missing.", "gradient", hint)
        return
    values = {n: g for n, g in got.items() if g is not None}
    second = read(tool, inputs, cotangent) or {}
    if any(
        a is not None and not np.array_equal(a, values[n], equal_nan=True)
        for n, a in second.items()
    ):
        hint = "a buffer of gradients that is not cleared"
        yield Symptom(f"{_gradient_subject(wrong)} differs in a second pass.", "gradient", hint)
        return
    expected = {n: (want[n], float(np.max(bound[n], initial=0.0))) for n in values}
    comparison = Comparison(inputs, values, expected)
    for variant in _variants(inputs, cotangent) if is_plain else ():
        if values.keys() <= variant.result.keys() and explains(comparison, variant.result):
            yield Symptom(variant.sentence, "gradient", variant.hint, key=variant.name)
            return
    limit = {n: WIDER * bound[n] for n in bound}
    yield from _symptoms_by_operand(inputs, {n: values[n] for n in wrong}, want, limit)


def ask_fully_masked_rows(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """The symptom of fully masked rows whose output is 0, but whose cotangent changes gradients, or gives
    NaN. Other outputs follow elections. If no row of the case is fully masked, one is."""
    inputs = tool.draw(case, 1.0)
    if not inputs.has_empty_rows:
        mask = np.ones((inputs.sizes.Lq, inputs.sizes.Lk), bool)
        mask[empty_row(inputs)] = False
        inputs = inputs.replace(mask_array=mask, mask=None, form="dense")
    output, fully_masked = tool.output(inputs), inputs.fully_masked_rows
    if not is_right(output, tool.oracle(inputs)) or output is None or output[fully_masked].any():
        return
    cotangent = draw_cotangent(case)
    other_cotangent = cotangent * ~fully_masked[..., None]
    got = read(tool, inputs, other_cotangent) or {}
    changes = read(tool, inputs, cotangent - other_cotangent) or {}
    right = Oracle.vjp(inputs, other_cotangent, tool.rounding(inputs)).expected
    nan_names, changed, widespread = [], [], []
    for name, values in got.items():
        change = changes.get(name)
        if values is None or change is None:
            continue
        if np.isnan(values).any() or np.isnan(change).any():
            nan_names.append(name)
            reaches_others = np.isnan(values)[~fully_masked].any() if name == "query" else True
            widespread += [name] if reaches_others else []
        elif not (np.abs(change) <= right[name].error.max()).all():
            changed.append((float(np.abs(change).max()), name))
    beginning = "Rows that attend no key have an output of 0, "
    if nan_names:
        place = "" if widespread else ", in these rows"
        hint = "`where` behind a softmax of -inf alone, `exp(s - lse)` with an lse of -inf"
        text = f"{beginning}but NaN comes back in {_gradient_object(nan_names)}{place}."
        yield Symptom(text, "gradient", hint)
    elif changed:
        size, names = max(changed)[0], [name for _, name in changed]
        text = f"{beginning}but change {_gradient_object(names)}, by up to {size:.2g}."
        hint = "a backward pass that hides no such rows, or uses an old lse"
        yield Symptom(text, "gradient", hint, key="fully masked rows")


def is_right(got: np.ndarray | None, oracle: Oracle | None) -> bool:
    """True if an output is right within the oracle's bound, or differs in fully masked rows alone."""
    if got is None or oracle is None:
        return False
    right = oracle.expected["output"]
    good = np.abs(got - right.value) <= right.error
    if oracle.inputs.operator.is_default:
        good |= oracle.inputs.fully_masked_rows[..., None]
    return bool(good.all())


def read(tool: Instrument, inputs: Inputs, cotangent: np.ndarray) -> Arrays | None:
    """The gradients by operand in float64, (B, H, L, D) for query, key and value, None for a missing one;
    or None if a call fails."""

    def gradients() -> Arrays | None:
        prepared = tool.prepare(inputs, differentiable=True)
        if prepared is None:
            return None
        backend = tool.implementation.backend
        names = differentiable_names(tool.implementation, prepared, inputs)
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

    arrays: Arrays | None = tool.attempt(gradients)
    return arrays


def backward(
    inputs: Inputs, cotangent: np.ndarray, attended: np.ndarray | None = None, d_factor: float = 1.0,
    scale: float = 1.0, biased: bool = True, summed: bool = True, transposed: bool = False,
    weigh: Callable[[np.ndarray, np.ndarray], np.ndarray] = softmax, saved: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The gradients by the formula in float64, with faults of backward passes: another mask `attended`, D
    times `d_factor`, D of the right output (`saved`), the scale times `scale`, no bias (not `biased`),
    the last head of a group for all (not `summed`), dS transposed, other weights by `weigh`."""
    reading = Reading.of_mask(inputs)
    s, group = inputs.effective_scale, inputs.sizes.group
    scores = reading.scores if biased or reading.bias is None else reading.scores - reading.bias
    weights = weigh(scores, inputs.attends if attended is None else attended)
    key, value = (np.repeat(x, group, axis=1) for x in (inputs.key, inputs.value))
    dP = cotangent @ value.swapaxes(-1, -2)
    D = (weights * dP).sum(-1, keepdims=True)
    if saved:
        D = (cotangent * (softmax(reading.scores, inputs.attends) @ value)).sum(-1, keepdims=True)
    dS = weights * (dP - d_factor * D)
    cap = inputs.feature("softcap")
    dT = dS if cap is None else dS * (1 - np.tanh(reading.products * s / cap) ** 2)
    if transposed and dT.shape[-1] == dT.shape[-2]:
        dT = dT.swapaxes(-1, -2)

    def sum_over_group(x: np.ndarray) -> np.ndarray:
        heads_by_group = x.reshape(x.shape[0], -1, group, *x.shape[2:])
        return np.asarray(heads_by_group.sum(2) if summed else heads_by_group[:, :, -1])

    gradients = {
        "query": scale * s * dT @ key,
        "key": sum_over_group(scale * s * dT.swapaxes(-1, -2) @ inputs.query),
        "value": sum_over_group(weights.swapaxes(-1, -2) @ cotangent),
    }
    if inputs.bias is not None:
        shape = (1,) * (4 - inputs.bias.ndim) + inputs.bias.shape
        axes = tuple(a for a in range(4) if shape[a] != dS.shape[a])
        gradients["bias"] = dS.sum(axes, keepdims=True).reshape(inputs.bias.shape)
    return gradients


def _variants(inputs: Inputs, cotangent: np.ndarray) -> Iterator[Variant[dict[str, np.ndarray]]]:
    """Gradients of faulty backward passes that the catalogue lacks."""
    s, attends = inputs.effective_scale, inputs.attends
    right = backward(inputs, cotangent)
    fault = partial(backward, inputs, cotangent)

    def undivided_weights(scores: np.ndarray, attended: np.ndarray) -> np.ndarray:
        top = np.where(attended, scores, -np.inf).max(-1, keepdims=True)
        return np.where(attended, np.exp(scores - top), 0)

    def weights_by_lse(scores: np.ndarray, attended: np.ndarray) -> np.ndarray:
        """exp(scores - lse) for attended pairs, with the right log-sum-exp."""
        lse = np.log(np.where(attends, np.exp(scores), 0).sum(-1, keepdims=True))
        return np.where(attended, np.exp(scores - lse), 0)

    passes = "The backward pass "
    of_both = "The gradients of query and key "
    saving_hint, order_hint = (
        "what the forward pass saves",
        "the order of what the backward pass returns",
    )
    summing_hint = "one program overwrites what another one stored: add, or loop over the group"
    text = passes + "adds D: dS is P (dP + D), expected P (dP - D)."
    yield Variant(fault(d_factor=-1.0), text, "a sign")
    text = of_both + "leave out the scale."
    yield Variant(fault(scale=1 / s), text, "`dQ = dS @ K` without `* scale`")
    text = of_both + "have the scale twice."
    yield Variant(fault(scale=s), text, "a query that is scaled already")
    text = passes + "takes exp(s - max) for the weights, not divided by their sum."
    yield Variant(fault(weigh=undivided_weights), text, "`exp(s - m)` for `exp(s - lse)`")
    if not attends.all():
        all_pairs = np.ones(attends.shape, bool)
        for weigh, saved in ((softmax, False), (weights_by_lse, False), (weights_by_lse, True)):
            for biased, beside in ((True, ""), (False, " and the bias")):
                wrong = fault(attended=all_pairs, weigh=weigh, biased=biased, saved=saved)
                text = f"{passes}recomputes the weights without the mask{beside}."
                yield Variant(wrong, text, saving_hint)
            for variant in meanings(inputs):
                pairs = np.broadcast_to(variant.result, attends.shape)
                text = f"In the backward pass: {variant.sentence}"
                wrong = fault(attended=pairs, weigh=weigh, saved=saved)
                yield Variant(wrong, text, saving_hint, key=variant.name)
    if inputs.sizes.group > 1:
        wrong = fault(summed=False)
        template = "{} {} the last of the query heads of a group, expected their sum."
        text = template.format("The gradients of key and value are", "those of")
        yield Variant(wrong, text, summing_hint)
        for name in ("key", "value"):
            text = template.format(f"The gradient of the {name} is", "that of")
            yield Variant({**right, name: wrong[name]}, text, summing_hint)
    if inputs.sizes.Lq == inputs.sizes.Lk:
        yield Variant(fault(transposed=True), passes + "transposes dS.", "`dS.mT @ K`")
    for one, two in (("query", "key"), ("key", "value")):
        if right[one].shape == right[two].shape:
            exchanged = {**right, one: right[two], two: right[one]}
            yield Variant(exchanged, f"The gradients of {one} and {two} are exchanged.", order_hint)


def _symptoms_by_operand(
    inputs: Inputs,
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    limit: Mapping[str, np.ndarray],
) -> Iterator[Symptom]:
    """The symptoms of single gradients that are wrong: not finite, zero, a factor, or places."""
    s = inputs.effective_scale
    hints = {
        1 / s: "the scale is left out", s: "the scale stands twice", -1.0:
            "a sign", float(inputs.sizes.group): "the heads of a group",
        1 / inputs.sizes.group: "the heads of a group", 1 / inputs.sizes.B: "a mean over samples",
    }  # fmt: skip
    for name, values in got.items():
        right = want[name]
        if not np.isfinite(values).all():
            text = f"{_gradient_subject([name])} is not finite, though the output is."
            yield Symptom(text, "gradient", "`0 * inf`, `log(0)`, `where` behind a NaN")
            continue
        if (np.abs(values) <= limit[name]).all():
            hint = "a missing path through the graph, `detach()`"
            yield Symptom(f"{_gradient_subject([name])} is zero.", "gradient", hint)
            continue
        factor = float((values * right).sum() / (right * right).sum())
        exact = limit[name].max() < 0.02 * np.abs(right).max()
        if exact and (np.abs(values - factor * right) <= max(1, abs(factor)) * limit[name]).all():
            hint = next(
                (text for x, text in hints.items() if abs(factor - x) <= 1e-4 * abs(x)),
                "a factor",
            )
            text = f"{_gradient_subject([name])} is {factor:.4g} times the right one."
            yield Symptom(text, "gradient", hint, key=f"factor of {name}")
            continue
        wrong = np.abs(values - right) > limit[name]
        letters = inputs.axes(name)[-wrong.ndim :] if wrong.ndim else ""
        parts = [f"{PLACES.get(letters[axis], 'component')} {at}" for axis, at in few_places(wrong)]
        where = f" in {', '.join(parts)} alone" if parts else ""
        size = np.abs(values - right).max() / np.abs(right).max()
        times = f"{size:.2g} times its largest element"
        text = f"{_gradient_subject([name])} is wrong{where}, by up to {times}."
        yield Symptom(text, "gradient", key=f"places of {name}")


def _gradient_subject(names: list[str]) -> str:
    return f"The gradient of the {' and the '.join(names)}".replace("_", " ")


def _gradient_object(names: list[str]) -> str:
    if len(names) == 1:
        return f"the gradient of the {names[0]}".replace("_", " ")
    return f"the gradients of {', '.join(names[:-1])} and {names[-1]}".replace("_", " ")
