"""Which heads and samples an implementation reads, and in which order axes lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.sizes import Sizes

LEAST_CORRELATION = 0.999
"""The least correlation of log weights with the products q.k of the heads that they come from. Products
of other heads, which are random, stay below 0.9."""


def _merge_view(x: np.ndarray) -> np.ndarray:
    """Returns the array with axes 1 and 2 exchanged, and then reshaped to the old shape."""
    return x.swapaxes(1, 2).reshape(x.shape)


def _split_view(x: np.ndarray) -> np.ndarray:
    """Returns the inverse of `_merge_view`."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], -1).swapaxes(1, 2)


@dataclass(frozen=True)
class Rearrangement:
    """A faulty order of an output's elements. `apply` makes it of a right output, `invert` undoes it.
    `sentence` and `hint` as in `Diagnosis`."""

    apply: Callable[[np.ndarray], np.ndarray]
    invert: Callable[[np.ndarray], np.ndarray]
    sentence: str
    hint: str = "`reshape` or `view` for `transpose`"


INTERLEAVED = (
    Rearrangement(_merge_view, _split_view, "Heads and rows of the output are interleaved: (B, Lq, H, Dv)"
        " is reshaped to (B, H, Lq, Dv), expected transposed."),
    Rearrangement(_split_view, _merge_view, "Heads and rows of the output are interleaved: (B, H, Lq, Dv)"
        " is reshaped to (B, Lq, H, Dv), expected transposed."),
)  # fmt: skip
"""The outputs of views in place of transposes."""


def head_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of heads and samples in a plain case: elements in other places, or heads of
    query, key or value that are read from elsewhere."""
    inputs = tool.draw(case)
    symptom = _order_symptom(tool, inputs)
    if symptom is not None:
        yield symptom
        return
    s = inputs.sizes
    head_numbers = np.arange(s.B)[:, None] * s.Hkv + np.arange(s.Hkv)  # (B, Hkv)
    value = np.broadcast_to(head_numbers[..., None, None] + 1.0, inputs.value.shape).copy()
    got = tool.output(inputs.replace(value=value))
    if got is not None and np.isfinite(got).all():
        numbers = np.rint(got.mean((-1, -2)) - 1)
        error = np.abs(got - 1 - numbers[..., None, None]).max()
        is_exact = error < 1e-3 + 16 * tool.unit * s.B * s.Hkv
        if is_exact and numbers.min() >= 0 and numbers.max() < s.B * s.Hkv:
            yield from _mapping_symptom("value", s, numbers.astype(int))
    reading = tool.read_weights(inputs)
    if reading is None or not np.isfinite(reading.got).all() or (reading.got <= 0).any():
        return
    log_weights = np.log(reading.got)
    log_weights -= log_weights.mean(-1, keepdims=True)
    for name in ("query", "key"):
        sources = _source_heads(log_weights, inputs, name)
        if sources is not None:
            yield from _mapping_symptom(name, s, sources)


def _source_heads(log_weights: np.ndarray, inputs: Inputs, name: str) -> np.ndarray | None:
    """Returns an integer array (B, H): for each head the head of the operand `name` that its weights are
    computed from, as b Hx + h for an operand with Hx heads. None if weights correlate with no head.
    `log_weights`: (B, H, Lq, Lk), less their mean over keys."""
    s = inputs.sizes
    key = np.repeat(inputs.key, s.group, axis=1)
    heads = s.H if name == "query" else s.Hkv
    sources = np.zeros((s.B, s.H), int)
    for b, h in np.ndindex(s.B, s.H):
        largest = 0.0
        for c, g in np.ndindex(s.B, heads):
            for partner in ((b, h), (c, g)):  # the right partner, or one that is wrong alike
                if name == "query":
                    product = inputs.query[c, g] @ key[partner[0], partner[1]].T
                else:
                    query_at = partner if partner == (b, h) else (c, min(g * s.group, s.H - 1))
                    product = inputs.query[query_at] @ inputs.key[c, g].T
                centred = product - product.mean(-1, keepdims=True)
                correlation = _correlation(centred, log_weights[b, h])
                if correlation > largest:
                    largest, sources[b, h] = correlation, c * heads + g
        if largest < LEAST_CORRELATION:
            return None
    return sources


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the absolute correlation of two centred arrays; 0.0 if one is constant."""
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return abs(float((a * b).sum())) / norm if norm else 0.0


def _mapping_symptom(name: str, s: Sizes, sources: np.ndarray) -> Iterator[Symptom]:
    """Yields a symptom if query heads read wrong heads of the operand `name`. `sources` (B, H): the heads
    that are read, as b Hx + h."""
    heads = s.H if name == "query" else s.Hkv
    b, h = np.arange(s.B)[:, None], np.arange(s.H)
    want = b * heads + (h if name == "query" else h // s.group)
    want = np.broadcast_to(want, sources.shape)
    if np.array_equal(want, sources):
        return
    mappings: tuple[tuple[np.ndarray, str, str], ...] = (
        (b * heads + h % heads, f"{name} heads are tiled, expected each repeated for its group",
         "`repeat(1, group, 1, 1)`, `tile`, `h % Hkv` for `repeat_interleave`, `h // group`"),
        (b * heads + 0 * h, "every head reads head 0", "an index of heads that is not used"),
        (b * heads + (heads - 1 - (h if name ==
         "query" else h // s.group)), "heads are in reverse order", ""),
        (0 * b + want[:1] % heads, "every sample reads sample 0",
         "an index of the batch that is not used"),
    )  # fmt: skip
    ending, hint = next(
        (
            (f": {text}", hint)
            for mapping, text, hint in mappings
            if np.array_equal(np.broadcast_to(mapping, want.shape), sources)
        ),
        ("", "an index or a stride of heads or samples"),
    )
    b0, h0 = (int(x[0]) for x in np.nonzero(want != sources))
    got, right = int(sources[b0, h0]), int(want[b0, h0])
    if got // heads == right // heads:
        text = f"Query head {h0} reads {name} head {got % heads}, expected {right % heads}"
    else:
        text = f"Sample {b0} reads the {name} of sample {got // heads}"
    yield Symptom(f"{text}{ending}.", "heads", hint, key=f"{name}{ending}")


def _order_symptom(tool: Instrument, inputs: Inputs) -> Symptom | None:
    """Returns the symptom if the elements of the output are right but in wrong places, or if operands are
    read in another order of axes; else None."""
    got, oracle = tool.output(inputs), tool.oracle(inputs)
    if got is None or oracle is None or not np.isfinite(got).all():
        return None
    right = oracle.expected["output"]
    want = np.asarray(right.value, float)
    bound = right.error + 16 * tool.unit * np.abs(right.value).max()
    if (np.abs(got - want) <= bound).all():
        return None

    def equals_output(values: np.ndarray) -> bool:
        return bool((np.abs(got - values) <= bound.max()).all())

    for order in INTERLEAVED:
        values = order.apply(want)
        if values.shape == want.shape and equals_output(values):
            return Symptom(order.sentence, "layout", order.hint)
    differs = np.abs(got - want).max() > 0.1 * np.abs(want).max()
    if differs and np.abs(np.sort(got.ravel()) - np.sort(want.ravel())).max() <= bound.max():
        return Symptom("All elements of the output are right, but stand in other places.", "layout",
                     "a transposed or reshaped axis")  # fmt: skip
    for names in (("query",), ("key",), ("value",), ("key", "value"), ("query", "key", "value")):
        for view, text in ((_merge_view, "transposed"), (_split_view, "reshaped")):
            views = {n: np.ascontiguousarray(view(inputs.arrays[n])) for n in names}
            oracle = tool.oracle(inputs.replace(**views))
            if oracle and equals_output(np.asarray(oracle.expected["output"].value, float)):
                return Symptom(f"Heads and rows of {' and '.join(names)} are interleaved: an array is "
                               f"{text} where its axes must be exchanged.",
                               "layout", "`reshape` or `view` for `transpose`")  # fmt: skip
    return None
