"""The instrument: calls an implementation on values of its own choice, and reads what it computes.

An exception, a refusal, or an answer of another shape is no reading: the question says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np

from attention_conformance.backends.protocol import ENDS, Implementation, PreparedCall
from attention_conformance.suite.judge import answer, elections
from attention_conformance.suite.judge.diagnosis.evidence import WIDER
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.features import ARRAYS, FEATURES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.recipes import alibi_bias
from attention_conformance.suite.spec.sizes import Sizes

HEAD_SIZES = (8, 64)
"""Sizes of heads that questions ask for, in turn: some kernels take no small ones."""

MOST_CALLS = 24
"""Calls that one reading of weights may take."""

MOST_PAIRS = 500_000
"""Pairs of query and key in one reading of weights, over samples and heads."""

SEEN = 1e-9
"""A weight below this part of the largest weight of its row counts as hidden. Probes have scores below 4
in size, so that attended keys weigh e^-8 of the largest at least."""


WAITS = 3
"""How many times the processor time may pass on the clock, in calls that wait."""


@dataclass(frozen=True)
class Found:
    """What a question found wrong: a sentence, its family, a hint, and a picture; see `Diagnosis`.

    `formula` gives the weights (B, H, Lq, Lk) that the sentence predicts for other inputs, read as in
    `Reading.of`, or None if the sentence says nothing of them. `problem` does so for operators that are
    not plain attention: it gives the problem that is answered, or the answer by output. `key` says what
    was found without the numbers of the inputs; by default it is the sentence.
    """

    sentence: str
    family: str
    hint: str = ""
    picture: str = ""
    formula: Formula | None = None
    problem: Callable[[Inputs], Inputs | Mapping[str, np.ndarray] | None] | None = None
    key: str = ""

    @property
    def name(self) -> str:
        return self.key or self.sentence


class Instrument:
    """One implementation, and the processor time in which it is read, `seconds`.

    `unit` is the unit roundoff of what the implementation rounds inside, where a question has found that
    this is wider than the dtype's; 0 if nothing was found.
    """

    def __init__(self, implementation: Implementation, seconds: float = 5.0) -> None:
        self.implementation = implementation
        self._over, self._end = clock(seconds), time.monotonic() + WAITS * seconds
        self.unit = 0.0
        self._small: dict[str, Case | None] = {}
        self._findings: dict[tuple[Callable[..., object], str, float], list[Found]] = {}

    @property
    def late(self) -> bool:
        """True if the time is over: what is asked later reads nothing."""
        return self._over() or time.monotonic() > self._end

    def rounding(self, inputs: Inputs) -> Rounding:
        """Roundings that no right implementation exceeds (see `Probe`)."""
        return Probe(self.implementation, inputs.dtype).rounding

    def small(self, case: Case) -> Case | None:
        """The case with the fewest queries, keys and heads that keep its relations, in float32 if the
        implementation takes it; None if the implementation answers nothing of this kind."""
        if case.id not in self._small:
            tried = self.shrunk(case)
            answered = (c for c in tried if self.ask(self.drawn(c)) is not None)
            self._small[case.id] = next(answered, None)
        return self._small[case.id]

    def shrunk(self, case: Case) -> list[Case]:
        """Small cases like a case that the implementation declares to support."""
        tried = []
        for D in HEAD_SIZES:
            small = _small(case, D)
            near = None if small is None else self.implementation.nearest_supported(small) or small
            if near is not None and self.implementation.unsupported(near) is None:
                tried.append(near)
        return tried

    def drawn(self, case: Case, factor: float = 0.5) -> Inputs:
        """The inputs of a case as the implementation's causal flag means them, with queries and keys
        times `factor`: scores stay small whatever the scale."""
        inputs = draw(case)
        if factor != 1 and case.operator.is_default:
            inputs = inputs.replace(query=inputs.query * factor, key=inputs.key * factor)
        try:
            return elections.aligned(inputs, self.implementation)
        except ENDS:
            raise
        except Exception:
            return inputs

    def prepared(self, inputs: Inputs, differentiable: bool = False) -> PreparedCall | None:
        """The implementation's call, or None if it refuses the inputs by declaration."""
        implementation = self.implementation
        refused = implementation.refuses(inputs) or elections.question_that_raises(
            inputs, implementation
        )
        if refused or self.late:
            return None
        return (implementation.differentiable if differentiable else implementation.prepare)(inputs)

    def ask(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        """The outputs for the inputs by name, in float64; None if there is no reading."""
        return self.trying(lambda: self._asked(inputs))

    def _asked(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        prepared = self.prepared(inputs)
        if prepared is None:
            return None
        backend = self.implementation.backend
        arrays = answer.read(backend, prepared(), inputs, prepared).arrays
        return {name: np.array(array) for name, array in arrays.items()}  # memory may be shared

    def output(self, inputs: Inputs) -> np.ndarray | None:
        """The array `output` for the inputs, or None."""
        arrays = self.ask(inputs)
        return None if arrays is None else arrays["output"]

    def trying(self, ask: Callable[[], Any]) -> Any:
        """The return value of a call, or None if the call raises."""
        try:
            return ask()
        except ENDS:
            raise
        except BaseException:
            return None

    def oracle(self, inputs: Inputs) -> Oracle | None:
        """The right outputs for the inputs with their bounds, or None if nobody knows these."""
        try:
            return Oracle.forward(inputs, self.rounding(inputs))
        except (HarnessError, NotApplicable):
            return None

    def weights(self, inputs: Inputs) -> Reading | None:
        """The weights of all keys, read by one-hot values; None if that takes too many calls."""
        s = inputs.sizes
        calls = one_hot(inputs, MOST_CALLS)
        if not calls or not 0 < s.pairs <= MOST_PAIRS:
            return None
        got, want, bound = (np.zeros((s.B, s.H, s.Lq, s.Lk)) for _ in range(3))
        for keys, one_hots in calls:
            read, oracle = self.output(one_hots), self.oracle(one_hots)
            if read is None or oracle is None:
                return None
            right = oracle.expected["output"]
            for into, of in ((got, read), (want, right.value), (bound, right.error)):
                into[..., keys] = of[..., : keys.stop - keys.start]
        return Reading(inputs, got, want, bound, self.unit)

    def with_scores(self, inputs: Inputs, scores: np.ndarray) -> Reading | None:
        """The weights for scores (B, H, Lq, Lk): keys are unit vectors, queries hold the scores. None if
        there are more keys than components, or if scores are more than scaled products."""
        s = inputs.sizes
        if s.Lk > s.D or not inputs.effective_scale or any(n in inputs.arrays for n in ARRAYS):
            return None
        key, query = np.zeros(inputs.key.shape), np.zeros(inputs.query.shape)
        key[..., :, : s.Lk] = np.eye(s.Lk)
        query[..., : s.Lk] = round_to(scores / inputs.effective_scale, inputs.dtype)
        return self.weights(inputs.replace(query=query, key=key))

    def once(
        self, question: Callable[[Instrument, Case], Iterator[Found]], case: Case
    ) -> list[Found]:
        """What a question finds in a case, remembered; nothing if the case is not supported."""
        place = question, case.id, self.unit
        if place not in self._findings:
            supported = self.implementation.unsupported(case) is None
            self._findings[place] = list(question(self, case)) if supported else []
        return self._findings[place]


def clock(seconds: float) -> Callable[[], bool]:
    """A function that is True after this process has used `seconds` of processor time."""
    end = time.process_time() + seconds
    return lambda: time.process_time() > end


def one_hot(inputs: Inputs, most: int) -> list[tuple[slice, Inputs]]:
    """Slices of the keys, and for each the inputs whose value of its key i is the unit vector i: the
    output then reads the weights of these keys. [] without values, or for more than `most` calls."""
    s, axis = inputs.sizes, inputs.axes("value").index("k")
    if not s.Dv or -(-s.Lk // s.Dv) > most:
        return []
    calls = []
    for start in range(0, s.Lk, s.Dv):
        keys = slice(start, min(start + s.Dv, s.Lk))
        value = np.zeros(inputs.value.shape)
        for column, key in enumerate(range(keys.start, keys.stop)):
            value[(slice(None),) * axis + (key,)][..., column] = 1.0
        calls.append((keys, inputs.replace(value=value)))
    return calls


@dataclass(frozen=True, eq=False)
class Reading:
    """Weights (B, H, Lq, Lk) as an implementation uses them, and the right ones with their bounds.

    - `raw`: the weights as read
    - `unit`: see `Instrument`
    """

    inputs: Inputs
    raw: np.ndarray
    want: np.ndarray
    bound: np.ndarray
    unit: float = 0.0

    @classmethod
    def of(cls, inputs: Inputs) -> Reading:
        """The reading in which all keys are seen that attend, for formulas: without weights."""
        seen = np.array(inputs.attends, float)
        return cls(inputs, seen, seen, np.zeros_like(seen))

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows that attend some key, (B, H, Lq): others follow elections."""
        return ~self.inputs.fully_masked_rows

    def part(self, axis: int, index: int) -> Reading:
        """The weights of one sample (axis 0) or head (axis 1)."""
        got, want, bound = (np.take(x, [index], axis) for x in (self.raw, self.want, self.bound))
        part = Reading(self.inputs, got, want, bound, self.unit)
        part.__dict__["rows"] = np.take(self.rows, [index], axis)
        return part

    @cached_property
    def broken(self) -> np.ndarray:
        """The rows that are NaN or infinite though they attend keys, (B, H, Lq)."""
        return ~np.isfinite(self.raw).all(-1) & self.rows

    @cached_property
    def got(self) -> np.ndarray:
        """The weights as read; a row that is not finite weighs nothing."""
        return np.where(np.isfinite(self.raw).all(-1, keepdims=True), self.raw, 0.0)

    @cached_property
    def wrong(self) -> np.ndarray:
        """True for the weights that rounding does not explain."""
        error = np.abs(self.got - self.want)
        return ~(error <= self.bound + 16 * self.unit * np.abs(self.want)) & self.rows[..., None]

    @cached_property
    def seen(self) -> np.ndarray:
        """True for the weights that are not hidden."""
        size = np.abs(self.got)
        return size > SEEN * size.max(-1, keepdims=True)

    @cached_property
    def slack(self) -> float:
        """The relative error of weights that rounding explains for any formula; see `evidence`."""
        large = self.want > 1e-3
        relative = float((self.bound[large] / self.want[large]).max(initial=0.0))
        return WIDER * relative + 16 * self.unit

    def fits(self, weights: np.ndarray) -> bool:
        """True if the implementation's weights are these."""
        error = np.abs(self.got - weights)
        right = error <= self.slack * np.abs(weights) + self.bound
        return bool((right | ~self.rows[..., None]).all())

    @cached_property
    def products(self) -> np.ndarray:
        """q.k for all pairs, (B, H, Lq, Lk), times the logit scale of the head."""
        inputs = self.inputs
        key = np.repeat(inputs.key, inputs.sizes.group, axis=1)
        raw = inputs.query @ key.swapaxes(-1, -2)
        factors = inputs.feature("logit_scale")
        return raw if factors is None else raw * factors[:, None, None]

    @cached_property
    def bias(self) -> np.ndarray | None:
        """What is added to the scores, (B, H, Lq, Lk) or broadcast, without -inf; None if nothing is."""
        inputs, slopes = self.inputs, self.inputs.feature("alibi_slopes")
        if slopes is not None:
            return alibi_bias(slopes, inputs.sizes.Lq, inputs.sizes.Lk)
        return None if inputs.bias is None else np.maximum(inputs.bias, -1e4)

    @cached_property
    def scores(self) -> np.ndarray:
        """The right scores before the mask, (B, H, Lq, Lk)."""
        scores = self.products * self.inputs.effective_scale
        cap = self.inputs.feature("softcap")
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        return scores if self.bias is None else scores + self.bias


Formula = Callable[[Reading], np.ndarray | None]
"""Weights by a formula; see `Found`."""

G = TypeVar("G")


@dataclass(frozen=True, eq=False)
class Row(Generic[G]):
    """What people make of the same inputs, with a sentence, a hint and a family. `key` names the row, if
    the sentence holds numbers of the inputs, or is that of another row."""

    gives: G
    sentence: str
    hint: str = ""
    family: str = ""
    key: str = ""

    @property
    def name(self) -> str:
        return self.key or self.sentence


Weights = Row[np.ndarray]

Table = Callable[[Reading], Iterable[Weights]]
"""Weights that people make of the same inputs."""


def fitting(table: Table, reading: Reading, family: str, more: str = "") -> Found | None:
    """The finding of the first row of a table whose weights are the implementation's. `more` ends its
    sentence."""
    for row in table(reading):
        if reading.fits(row.gives):
            text, formula = row.sentence + more, partial(row_of, table, row.name)
            return Found(text, family, row.hint, formula=formula, key=row.name)
    return None


def row_of(table: Table, name: str, reading: Reading) -> np.ndarray | None:
    """The weights of the row with a name; None if there is no such row."""
    return next((row.gives for row in table(reading) if row.name == name), None)


def softmax(scores: np.ndarray, seen: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    """The softmax of scores over an axis; hidden pairs weigh nothing."""
    hidden = np.where(seen, scores, -np.inf)
    top = hidden.max(axis, keepdims=True)
    raised = np.exp(hidden - np.where(np.isfinite(top), top, 0))
    total = raised.sum(axis, keepdims=True)
    return raised / np.where(total == 0, 1, total)


def few(wrong: np.ndarray) -> Iterator[tuple[int, str]]:
    """The axes along which at most half of the places hold a flag of `wrong`, each with the first of
    these places: "0, 2 of 7"."""
    for axis, size in enumerate(wrong.shape):
        which = np.flatnonzero(wrong.any(tuple(a for a in range(wrong.ndim) if a != axis)))
        if 0 < len(which) <= size / 2:
            yield axis, f"{', '.join(map(str, which[:6]))} of {size}"


def _small(case: Case, D: int) -> Case | None:
    """The case with few queries, keys and heads of size `D`; None if the operator does not have such
    sizes."""
    s = case.sizes
    if not case.operator.takes_masks or case.operator.is_layer or not s.Lk or not s.H:
        return None
    Hkv = 1 if s.Hkv == 1 else 3
    H = Hkv if s.H == s.Hkv else 3 if s.Hkv == 1 else 6
    Lq, Lk = (1, 7) if s.Lq == 1 else (7, 7) if s.Lq == s.Lk else (5, 7) if s.Lq < s.Lk else (7, 5)
    sizes = Sizes(min(s.B, 2) or 1, H, Hkv, Lq, Lk, D, D)
    small = replace(case, sizes=sizes, dtype=DTYPES["f32"], recipe="normal", axis_order="bhld")
    return small.with_options(rate=0.0, training=False) if case.operator.option("rate") else small


def plain(case: Case) -> Case:
    """The case without mask, bias and other features."""
    bare = replace(case, mask=None, form="native")
    names = ["bias", "scale", *(n for n, f in FEATURES.items() if f.option)]
    defaults = {o.name: o.default for o in case.operator.options if o.name in names}
    return bare.with_options(**defaults)
