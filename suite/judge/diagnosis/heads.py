"""Which heads and samples an implementation reads, and in which order axes lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.sizes import Sizes

KIN = 0.999
"""Correlation of log weights with the q.k of the heads that they are made from, at least. The random
products of others reach no 0.9."""


def _merged(x: np.ndarray) -> np.ndarray:
    """Axes 1 and 2 exchanged, and the result reshaped."""
    return x.swapaxes(1, 2).reshape(x.shape)


def _split(x: np.ndarray) -> np.ndarray:
    """The inverse of `_merged`."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], -1).swapaxes(1, 2)


@dataclass(frozen=True)
class Way:
    """A wrong arrangement of an output, and its inverse."""

    done: Callable[[np.ndarray], np.ndarray]
    undone: Callable[[np.ndarray], np.ndarray]
    sentence: str
    hint: str = "`reshape` or `view` for `transpose`"


INTERLEAVED = (
    Way(_merged, _split, "Heads and rows of the output are interleaved: (B, Lq, H, Dv) is reshaped to "
        "(B, H, Lq, Dv), expected transposed."),
    Way(_split, _merged, "Heads and rows of the output are interleaved: (B, H, Lq, Dv) is reshaped to "
        "(B, Lq, H, Dv), expected transposed."),
)  # fmt: skip
"""Views of heads and rows in the place of transposes."""


def ask(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What is wrong with heads and samples in a plain case."""
    inputs = tool.draw(case)
    found = _arranged(tool, inputs)
    if found is not None:
        yield found
        return
    s = inputs.sizes
    code = np.arange(s.B)[:, None] * s.Hkv + np.arange(s.Hkv)  # (B, Hkv)
    tagged = inputs.replace(
        value=np.broadcast_to(code[..., None, None] + 1.0, inputs.value.shape).copy()
    )
    got = tool.output(tagged)
    if got is not None and np.isfinite(got).all():
        read = got.mean((-1, -2)) - 1
        whole = np.rint(read)
        exact = bool(
            (np.abs(got - 1 - whole[..., None, None]) < 1e-3 + 16 * tool.unit * s.B * s.Hkv).all()
        )
        if exact and whole.min() >= 0 and whole.max() < s.B * s.Hkv:
            yield from _mapped("value", s, whole.astype(int))
    reading = tool.read_weights(inputs)
    if reading is None or not np.isfinite(reading.got).all() or (reading.got <= 0).any():
        return
    log = np.log(reading.got)
    log -= log.mean(-1, keepdims=True)
    for name in ("query", "key"):
        sources = _sources(log, inputs, name)
        if sources is not None:
            yield from _mapped(name, s, sources)


def _sources(log: np.ndarray, inputs: Inputs, name: str) -> np.ndarray | None:
    """The number b Hx + h of the query or key head that the weights of every head are made from; None if
    they are made from none."""
    s = inputs.sizes
    key = np.repeat(inputs.key, s.group, axis=1)
    heads = s.H if name == "query" else s.Hkv
    out = np.zeros((s.B, s.H), int)
    for b, h in np.ndindex(s.B, s.H):
        best = 0.0
        for c, g in np.ndindex(s.B, heads):
            for other in ((b, h), (c, g)):  # the partner's own place, or a common mistake
                if name == "query":
                    product = inputs.query[c, g] @ key[other[0], other[1]].T
                else:
                    at = other if other == (b, h) else (c, min(g * s.group, s.H - 1))
                    product = inputs.query[at] @ inputs.key[c, g].T
                kin = _kin(product - product.mean(-1, keepdims=True), log[b, h])
                if kin > best:
                    best, out[b, h] = kin, c * heads + g
        if best < KIN:
            return None
    return out


def _kin(a: np.ndarray, b: np.ndarray) -> float:
    """The size of the correlation of two centred arrays; 0 if one is constant."""
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return abs(float((a * b).sum())) / norm if norm else 0.0


def _mapped(name: str, s: Sizes, sources: np.ndarray) -> Iterator[Symptom]:
    """The finding for query heads (B, H) that read the heads `sources` of an operand."""
    heads = s.H if name == "query" else s.Hkv
    b, h = np.arange(s.B)[:, None], np.arange(s.H)
    want = b * heads + (h if name == "query" else h // s.group)
    want = np.broadcast_to(want, sources.shape)
    if np.array_equal(want, sources):
        return
    ways: tuple[tuple[np.ndarray, str, str], ...] = (
        (b * heads + h % heads, f"{name} heads are tiled, expected each repeated for its group",
         "`repeat(1, group, 1, 1)`, `tile`, `h % Hkv` for `repeat_interleave`, `h // group`"),
        (b * heads + 0 * h, "every head reads head 0", "an index of heads that is not used"),
        (b * heads + (heads - 1 - (h if name ==
         "query" else h // s.group)), "heads are in reverse order", ""),
        (0 * b + want[:1] % heads, "every sample reads sample 0",
         "an index of the batch that is not used"),
    )  # fmt: skip
    said, hint = next(
        (
            (f": {text}", hint)
            for meant, text, hint in ways
            if np.array_equal(np.broadcast_to(meant, want.shape), sources)
        ),
        ("", "an index or a stride of heads or samples"),
    )
    b0, h0 = (int(x[0]) for x in np.nonzero(want != sources))
    got, right = int(sources[b0, h0]), int(want[b0, h0])
    if got // heads == right // heads:
        text = f"Query head {h0} reads {name} head {got % heads}, expected {right % heads}"
    else:
        text = f"Sample {b0} reads the {name} of sample {got // heads}"
    yield Symptom(f"{text}{said}.", "heads", hint, key=f"{name}{said}")


def _arranged(tool: Instrument, inputs: Inputs) -> Symptom | None:
    """The finding if all elements of the answer are right and stand in other places, or if operands are
    read in another order of axes."""
    got, oracle = tool.output(inputs), tool.oracle(inputs)
    if got is None or oracle is None or not np.isfinite(got).all():
        return None
    right = oracle.expected["output"]
    want, bound = (
        np.asarray(right.value, float),
        right.error + 16 * tool.unit * np.abs(right.value).max(),
    )
    if (np.abs(got - want) <= bound).all():
        return None

    def is_got(values: np.ndarray) -> bool:
        return bool((np.abs(got - values) <= bound.max()).all())

    shape = want.shape
    ways = (
        *[(way.done(want), way.sentence, way.hint) for way in INTERLEAVED],
        (want[..., ::-1], "Components of the output are in reverse order.", ""),
        (want[:, :, ::-1], "Rows of the output are in reverse order.", ""),
        (want[:, ::-1], "Heads of the output are in reverse order.", ""),
        (want[::-1], "Samples of the output are in reverse order.", ""),
    )  # fmt: skip
    for values, sentence, hint in ways:
        if values.shape == shape and is_got(values):
            return Symptom(sentence, "layout", hint)
    moved = np.abs(got - want).max() > 0.1 * np.abs(want).max()
    if moved and np.abs(np.sort(got.ravel()) - np.sort(want.ravel())).max() <= bound.max():
        return Symptom("All elements of the output are right, but stand in other places.", "layout",
                     "a transposed or reshaped axis")  # fmt: skip
    for names in (("query",), ("key",), ("value",), ("key", "value"), ("query", "key", "value")):
        for read, text in ((_merged, "transposed"), (_split, "reshaped")):
            meant = tool.oracle(
                inputs.replace(**{n: np.ascontiguousarray(read(inputs.arrays[n])) for n in names})
            )
            if meant is not None and is_got(np.asarray(meant.expected["output"].value, float)):
                return Symptom(f"Heads and rows of {' and '.join(names)} are interleaved: an array "
                             f"is {text} where "
                             "its axes must be exchanged.",
                                 "layout", "`reshape` or `view` for `transpose`")  # fmt: skip
    return None
