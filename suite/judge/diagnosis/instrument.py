"""The instrument: calls an implementation on inputs of its own design, and reads its weights and outputs.

An exception, a refusal, or an answer of another shape gives no reading, and hence no symptom.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import ENDS, Implementation, PreparedCall
from attention_conformance.suite.judge import answer, elections
from attention_conformance.suite.judge.diagnosis.evidence import WIDER, explains
from attention_conformance.suite.judge.diagnosis.kernels import Fault, faults_of
from attention_conformance.suite.judge.diagnosis.outcome import Comparison, fault_inputs
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.recipes import alibi_bias
from attention_conformance.suite.spec.sizes import Sizes

HEAD_SIZES = (8, 64)
"""Sizes of heads of small cases, in the order of trial: some kernels support no small ones."""

MOST_CALLS = 24
"""The largest number of calls for one reading of weights."""

MOST_PAIRS = 500_000
"""The largest number of pairs of query and key in one reading of weights, over samples and heads."""

HIDDEN_BELOW = 1e-9
"""A weight below this part of the largest weight of its row counts as hidden. Probes have scores below 4
in size, so that attended keys weigh e^-8 of the largest at least."""

ELAPSED_PER_PROCESSOR_TIME = 3
"""The limit of the elapsed time, in limits of the processor time: calls may wait."""


@dataclass(frozen=True)
class Symptom:
    """A fault that probes measured: a sentence, its family, a hint, and a picture; see `Diagnosis`.

    - `kernel`: an implementation with the fault, whose answers are compared with cells
    - `key`: the symptom without the numbers of the inputs; by default the sentence
    """

    sentence: str
    family: str
    hint: str = ""
    picture: str = ""
    kernel: Implementation | None = None
    key: str = ""

    @property
    def name(self) -> str:
        return self.key or self.sentence


def fault_symptom(fault: Fault) -> Symptom:
    """Returns a fault of the catalogue as a symptom."""
    deviation = fault.deviation
    return Symptom(deviation.sentence, deviation.family, deviation.hint, kernel=fault.kernel)


class Instrument:
    """The calls of one implementation, within `seconds` of processor time.

    `unit` is the unit roundoff of roundings inside the implementation, if a question found them to be
    wider than the dtype's; otherwise 0. `without` is the name of a fault that is left out of the
    catalogue.
    """

    def __init__(
        self, implementation: Implementation, seconds: float = 5.0, without: str = ""
    ) -> None:
        self.implementation, self.without = implementation, without
        self._is_over = deadline(seconds)
        self._end = time.monotonic() + ELAPSED_PER_PROCESSOR_TIME * seconds
        self.unit = 0.0
        self._small_cases: dict[str, Case | None] = {}
        self._symptoms: dict[tuple[Callable[..., object], str, float], list[Symptom]] = {}

    @property
    def is_late(self) -> bool:
        """True if the time is over: later calls give no reading."""
        return self._is_over() or time.monotonic() > self._end

    def rounding(self, inputs: Inputs) -> Rounding:
        """Returns roundings that no right implementation exceeds (see `Probe`)."""
        return Probe(self.implementation, inputs.dtype).rounding

    def small_case(self, case: Case) -> Case | None:
        """Returns a case like `case` with the fewest queries, keys and heads, in float32 if that is
        supported. Relations such as Lq < Lk are kept. None if the implementation answers no such case."""
        if case.id not in self._small_cases:
            answered = (c for c in self.small_cases(case) if self.outputs(self.draw(c)) is not None)
            self._small_cases[case.id] = next(answered, None)
        return self._small_cases[case.id]

    def small_cases(self, case: Case) -> list[Case]:
        """Returns the supported small cases like `case`, one for each size in `HEAD_SIZES`."""
        cases = []
        for D in HEAD_SIZES:
            small = _with_small_sizes(case, D)
            if small is not None:
                small = self.implementation.nearest_supported(small) or small
                cases += [small] if self.implementation.unsupported(small) is None else []
        return cases

    def draw(self, case: Case, factor: float = 0.5) -> Inputs:
        """Returns the inputs of a case, with the mask that the implementation's causal flag means. Plain
        attention: queries and keys are multiplied by `factor`, so that scores stay small."""
        inputs = draw(case)
        if factor != 1 and case.operator.is_default:
            inputs = inputs.replace(query=inputs.query * factor, key=inputs.key * factor)
        try:
            return elections.with_flag_mask(inputs, self.implementation)
        except ENDS:
            raise
        except Exception:
            return inputs

    def prepare(self, inputs: Inputs, differentiable: bool = False) -> PreparedCall | None:
        """Returns the implementation's call, in differentiable form on request. None for inputs that it
        declares or elects to refuse, and after the time is over."""
        implementation = self.implementation
        reason = implementation.refuses(inputs)
        if reason or elections.question_that_raises(inputs, implementation) or self.is_late:
            return None
        return (implementation.differentiable if differentiable else implementation.prepare)(inputs)

    def outputs(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        """Returns the outputs for the inputs by name, in float64; None if the call fails."""
        return self.attempt(lambda: self._outputs(inputs))

    def _outputs(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        prepared = self.prepare(inputs)
        if prepared is None:
            return None
        backend = self.implementation.backend
        arrays = answer.read_answer(backend, prepared(), inputs, prepared).arrays
        return {name: np.array(array) for name, array in arrays.items()}  # memory may be shared

    def output(self, inputs: Inputs) -> np.ndarray | None:
        """Returns the array `output` for the inputs, in float64; None if the call fails."""
        arrays = self.outputs(inputs)
        return None if arrays is None else arrays["output"]

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Returns the return value of `call()`, or None if it raises."""
        try:
            return call()
        except ENDS:
            raise
        except BaseException:
            return None

    def oracle(self, inputs: Inputs) -> Oracle | None:
        """Returns the right outputs for the inputs with their bounds; None without a reference."""
        try:
            return Oracle.forward(inputs, self.rounding(inputs))
        except (HarnessError, NotApplicable):
            return None

    def read_weights(self, inputs: Inputs) -> Reading | None:
        """Returns the weights of all keys, read by one-hot values; None if a call fails, or for more than
        `MOST_CALLS` calls or `MOST_PAIRS` pairs."""
        s = inputs.sizes
        calls = one_hot_inputs(inputs, MOST_CALLS)
        if not calls or not 0 < s.pairs <= MOST_PAIRS:
            return None
        got, want, bound = (np.zeros((s.B, s.H, s.Lq, s.Lk)) for _ in range(3))
        for keys, one_hots in calls:
            output, oracle = self.output(one_hots), self.oracle(one_hots)
            if output is None or oracle is None:
                return None
            expected = oracle.expected["output"]
            for target, source in ((got, output), (want, expected.value), (bound, expected.error)):
                target[..., keys] = source[..., : keys.stop - keys.start]
        return Reading(inputs, got, want, bound, self.unit)

    def read_weights_of(self, inputs: Inputs, scores: np.ndarray) -> Reading | None:
        """Returns the weights for given scores (B, H, Lq, Lk): keys are unit vectors, and queries contain
        the scores. None if there are more keys than components, or if the scores have further terms."""
        s = inputs.sizes
        if s.Lk > s.D or not inputs.effective_scale or any(n in inputs.arrays for n in ARRAYS):
            return None
        key, query = np.zeros(inputs.key.shape), np.zeros(inputs.query.shape)
        key[..., :, : s.Lk] = np.eye(s.Lk)
        query[..., : s.Lk] = round_to(scores / inputs.effective_scale, inputs.dtype)
        return self.read_weights(inputs.replace(query=query, key=key))

    def row_symptom(
        self, reading: Reading, transform: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> Symptom | None:
        """Returns the symptom of the first catalogue fault whose weights explain the reading, or None."""
        inputs = self.attempt(lambda: fault_inputs(reading.inputs, self.implementation))
        for fault, weights in () if inputs is None else fault_weights(inputs):
            if self.is_late:
                return None
            if fault.name != self.without and reading.is_explained_by(weights, transform):
                return fault_symptom(fault)
        return None

    def symptoms(
        self, probe: Callable[[Instrument, Case], Iterator[Symptom]], case: Case
    ) -> list[Symptom]:
        """Returns the symptoms that `probe` finds in a case, from a cache; [] for an unsupported case."""
        key = probe, case.id, self.unit
        if key not in self._symptoms:
            is_supported = self.implementation.unsupported(case) is None
            self._symptoms[key] = list(probe(self, case)) if is_supported else []
        return self._symptoms[key]


def deadline(seconds: float) -> Callable[[], bool]:
    """Returns a function: True once this process has used `seconds` more of processor time."""
    end = time.process_time() + seconds
    return lambda: time.process_time() > end


def one_hot_inputs(inputs: Inputs, most: int) -> list[tuple[slice, Inputs]]:
    """Returns pairs of a slice of the keys and inputs. In these inputs the value of the slice's key i is
    the unit vector i, so that component i of the output is the weight of this key. [] if values have no
    components, or for more than `most` pairs."""
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


_WEIGHTS: Cache[list[tuple[Fault, np.ndarray]]] = Cache(64)
"""The weights of the catalogue's faults, by inputs."""


def fault_weights(inputs: Inputs) -> list[tuple[Fault, np.ndarray]]:
    """Returns the weights (B, H, Lq, Lk) of each fault in the catalogue for these inputs, read by one-hot
    values. Faults of state are left out. [] if a fault would need several calls."""
    calls = one_hot_inputs(inputs, 1)

    def weights() -> list[tuple[Fault, np.ndarray]]:
        ((keys, one_hots),) = calls
        faults = [
            f for f in faults_of(inputs.operator)
            if f.deviation.family != "state" and f.kernel.unsupported(inputs.case) is None
        ]  # fmt: skip
        outputs = ((f, Instrument(f.kernel, math.inf).output(one_hots)) for f in faults)
        return [(f, out[..., keys]) for f, out in outputs if out is not None]

    return _WEIGHTS.get((inputs.digest, inputs.form), weights) if calls else []


@dataclass(frozen=True, eq=False)
class Reading:
    """The weights that an implementation uses; all arrays are (B, H, Lq, Lk).

    - `raw`: the implementation's weights as read, possibly NaN or infinite
    - `want`, `bound`: the right weights, and the bounds of their errors
    - `unit`: see `Instrument`
    """

    inputs: Inputs
    raw: np.ndarray
    want: np.ndarray
    bound: np.ndarray
    unit: float = 0.0

    @cached_property
    def judged_rows(self) -> np.ndarray:
        """True for the rows (B, H, Lq) that attend a key: fully masked rows follow elections."""
        return ~self.inputs.fully_masked_rows

    def part(self, axis: int, index: int) -> Reading:
        """Returns the reading of one sample (`axis` 0) or one head (`axis` 1)."""
        got, want, bound = (np.take(x, [index], axis) for x in (self.raw, self.want, self.bound))
        part = Reading(self.inputs, got, want, bound, self.unit)
        part.__dict__["judged_rows"] = np.take(self.judged_rows, [index], axis)
        return part

    @cached_property
    def nonfinite_rows(self) -> np.ndarray:
        """True for the rows (B, H, Lq) that are NaN or infinite though they attend keys."""
        return ~np.isfinite(self.raw).all(-1) & self.judged_rows

    @cached_property
    def got(self) -> np.ndarray:
        """The weights as read, with zeros for rows that are not finite."""
        return np.where(np.isfinite(self.raw).all(-1, keepdims=True), self.raw, 0.0)

    @cached_property
    def wrong(self) -> np.ndarray:
        """True for the weights (B, H, Lq, Lk) whose errors rounding does not explain."""
        limit = self.bound + 16 * self.unit * np.abs(self.want)
        return ~(np.abs(self.got - self.want) <= limit) & self.judged_rows[..., None]

    @cached_property
    def visible(self) -> np.ndarray:
        """True for the weights (B, H, Lq, Lk) that are not hidden, see `HIDDEN_BELOW`."""
        return visible_pairs(self.got)

    @cached_property
    def slack(self) -> float:
        """The largest relative error of weights by rounding, for any formula (see `evidence`)."""
        large = self.want > 1e-3
        relative = float((self.bound[large] / self.want[large]).max(initial=0.0))
        return WIDER * relative + 16 * self.unit

    def share_of_rows(self, weights: np.ndarray) -> float:
        """Returns the share of rows, 0 to 1, in which the implementation's weights equal `weights` (B, H,
        Lq, Lk). Measured numbers are read from small weights, too, so that the error of each weight is
        limited by its own size: by `slack`, which is derived from the limits of `evidence`."""
        near = np.abs(self.got - weights) <= self.slack * np.abs(weights) + self.bound
        return float(near.all(-1)[self.judged_rows].mean()) if self.judged_rows.any() else 1.0

    def fits(self, weights: np.ndarray) -> bool:
        """True if the implementation's weights equal `weights` (B, H, Lq, Lk) in all rows."""
        return self.share_of_rows(weights) == 1

    def is_explained_by(
        self, weights: np.ndarray, transform: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> bool:
        """True if `weights` explain the implementation's (`evidence`), all of them after `transform`."""
        got, want, fault = (transform(x)[self.judged_rows] for x in (self.got, self.want, weights))
        limit = float(self.bound.max(initial=0.0) + 16 * self.unit * np.abs(want).max(initial=0.0))
        comparison = Comparison(self.inputs, {"weights": got}, {"weights": (want, limit)})
        return explains(comparison, {"weights": fault})

    @cached_property
    def products(self) -> np.ndarray:
        """q.k for all pairs, (B, H, Lq, Lk), times the logit scale of the head."""
        inputs = self.inputs
        key = np.repeat(inputs.key, inputs.sizes.group, axis=1)
        products = inputs.query @ key.swapaxes(-1, -2)
        factors = inputs.feature("logit_scale")
        return products if factors is None else products * factors[:, None, None]

    @cached_property
    def bias(self) -> np.ndarray | None:
        """The array added to the scores, (B, H, Lq, Lk) or broadcast, at least -1e4; None without one."""
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


def visible_pairs(weights: np.ndarray) -> np.ndarray:
    """Returns a boolean array: True for the weights that are not hidden, see `HIDDEN_BELOW`."""
    size = np.abs(weights)
    return np.asarray(size > HIDDEN_BELOW * size.max(-1, keepdims=True))


def softmax(scores: np.ndarray, pairs: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    """Returns the softmax of scores over an axis, with weight 0 where `pairs` is False."""
    masked = np.where(pairs, scores, -np.inf)
    top = masked.max(axis, keepdims=True)
    powers = np.exp(masked - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def _with_small_sizes(case: Case, D: int) -> Case | None:
    """Returns the case with few queries, keys and heads of size `D`; None without such sizes."""
    s = case.sizes
    if not case.operator.takes_masks or case.operator.is_layer or not s.Lk or not s.H:
        return None
    Hkv = 1 if s.Hkv == 1 else 3
    H = Hkv if s.H == s.Hkv else 3 if s.Hkv == 1 else 6
    Lq, Lk = (1, 7) if s.Lq == 1 else (7, 7) if s.Lq == s.Lk else (5, 7) if s.Lq < s.Lk else (7, 5)
    sizes = Sizes(min(s.B, 2) or 1, H, Hkv, Lq, Lk, D, D)
    small = replace(case, sizes=sizes, dtype=DTYPES["f32"], recipe="normal", axis_order="bhld")
    return small.with_options(rate=0.0, training=False) if case.operator.option("rate") else small
