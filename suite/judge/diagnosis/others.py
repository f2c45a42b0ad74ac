"""Operators that are not plain attention: which other problem an answer is right for.

An implementation that ignores a bias answers the problem with a bias of zeros. So the oracle of the other
problem, with its own bound, tells what an implementation computes instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.diagnosis import gradients
from attention_conformance.suite.judge.diagnosis.cached import of_cached
from attention_conformance.suite.judge.diagnosis.instrument import Found, Instrument, few
from attention_conformance.suite.judge.diagnosis.latent import of_latent
from attention_conformance.suite.judge.diagnosis.layers import Another, of_layer
from attention_conformance.suite.judge.diagnosis.look import with_limits
from attention_conformance.suite.judge.diagnosis.merge import of_merge
from attention_conformance.suite.judge.diagnosis.packed import boundaries, of_packed
from attention_conformance.suite.judge.diagnosis.paged import moderate, of_paged
from attention_conformance.suite.judge.diagnosis.paged_write import of_paged_write
from attention_conformance.suite.judge.diagnosis.quantized import of_quantized, of_quantized_write
from attention_conformance.suite.judge.diagnosis.rotary import of_rotary
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import PACKED
from attention_conformance.suite.spec.operators.paged import PAGED


def ask(tool: Instrument, case: Case) -> Iterator[Found]:
    """What is wrong with an operator that is not plain attention, in a case and in its gradients."""
    for name in dict.fromkeys(("f32", case.dtype.name)):
        typed = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(typed) is None:
            inputs = moderate(tool.drawn(typed)) if case.operator is PAGED else tool.drawn(typed)
            answered = Answered.of(tool, inputs)
            if answered is not None and answered.wrong:
                yield from _outputs(answered)
                return
    typed = replace(case, dtype=DTYPES["f32"])
    yield from gradients.ask(tool, case if tool.implementation.unsupported(typed) else typed)


@dataclass(frozen=True, eq=False)
class Answered:
    """The outputs `got` of an implementation for inputs, beside the right ones."""

    tool: Instrument
    inputs: Inputs
    got: Mapping[str, np.ndarray]
    oracle: Oracle

    @classmethod
    def of(cls, tool: Instrument, inputs: Inputs) -> Answered | None:
        """The reading of an implementation, or None if there is none."""
        got, oracle = tool.ask(inputs), tool.oracle(inputs)
        return None if got is None or oracle is None else cls(tool, inputs, got, oracle)

    @cached_property
    def bounds(self) -> dict[str, Bounded]:
        """The right outputs."""
        return self.oracle.expected_beside(self.got)

    @cached_property
    def wrong(self) -> list[str]:
        """The outputs that rounding does not explain."""
        return [name for name, right in self._right(self.bounds, [*self.got]).items() if not right]

    def explained(self, of: Inputs | Mapping[str, np.ndarray], names: list[str]) -> bool:
        """True if the outputs called `names` are all those of the problem `of`, or those of the answer
        `of` within the bound of the right ones. False after the tool's time is over."""
        if self.tool.late:
            return False
        if isinstance(of, Inputs):
            other = self.tool.oracle(of)
            expected = {} if other is None else other.expected_beside(self.got)
        else:
            far = (np.abs(x - self.bounds[n].value) > self.bounds[n].error for n, x in of.items())
            if not any(elements.any() for elements in far):
                return False  # the right answer explains nothing
            limits = with_limits(self.bounds)
            expected = {n: Bounded(x, np.full(x.shape, limits[n][1])) for n, x in of.items()}
        right = self._right(expected, names)
        return bool(right) and all(right.values())

    def _right(self, expected: Mapping[str, Bounded], names: list[str]) -> dict[str, bool]:
        """Whether outputs are the expected ones, without fully masked rows. {} if that says nothing."""
        right = {}
        for name in names:
            if name not in expected:
                return {}
            x, want = self.got[name], expected[name]
            if x.shape != want.value.shape or not _tells(want, self.bounds[name]):
                return {}  # a wider bound lets other answers pass, too
            near = (np.abs(x - want.value) <= want.error) | (x == want.value)
            right[name] = bool((near | ~_judged(self.inputs, name, x.shape)).all())
        return right


def _tells(other: Bounded, right: Bounded) -> bool:
    """True if an array within the bound of another problem says something: that bound is not much wider
    than the right one, or narrow beside what the problems differ by."""
    wide = other.error.max()
    apart = np.abs(other.value - right.value)
    return bool(
        wide <= 8 * right.error.max() or 8 * wide <= apart[np.isfinite(apart)].max(initial=0)
    )


def _judged(inputs: Inputs, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of an output that no election decides."""
    axes = inputs.operator.outputs(inputs.case)[name]
    return np.broadcast_to(~inputs.rows_along(inputs.fully_masked_rows, axes), shape)


def _outputs(answered: Answered) -> Iterator[Found]:
    """What is wrong with the outputs; not with an output that belongs to others, if these are wrong,
    too."""
    tool, inputs, every = answered.tool, answered.inputs, answered.wrong
    given, wrong = answered.oracle.given(answered.got).inputs, every
    if given is not inputs:
        wrong = [name for name in wrong if name != "output"] or wrong
    for other, sentence, family, hint in _problems(inputs, given, wrong):
        if answered.explained(other, wrong):
            first = ""
            if "output" not in every:
                verb = "is" if len(every) == 1 else "are"
                first = f"Of what is returned only the {' and '.join(every)} {verb} wrong. "
            problem = partial(_problem, sentence, hint) if "output" in wrong else None
            yield Found(first + sentence, family, hint, problem=problem)
            return
    scaled = _of_factor(answered) if "output" in wrong else None
    if scaled is not None and answered.explained(scaled(inputs), wrong):
        factor = scaled(inputs).effective_scale / inputs.effective_scale
        text = f"The scale is {factor:.4g} times the right one."
        yield Found(text, "scale", "a constant with few digits", problem=scaled)
        return
    if inputs.operator is PACKED:
        found = boundaries(tool, inputs)
        if found is not None:
            yield found
            return
    if tool.late:
        return
    name = wrong[0]
    got, want = answered.got[name], answered.bounds[name]
    judged = _judged(inputs, name, got.shape)
    kept = answered.oracle.rounding.declared.codes.get(inputs.dtype.name)
    if kept is not None and np.isfinite(got[judged]).all():
        times = (np.abs(got - want.value) / want.error)[judged].max()
        text = f"The {name} is off by up to {times:.2g} times what codes in {kept} allow."
        hint = "codes that are clipped, wrap around or are coarser, or the scale of another token"
        yield Found(text, "quantized", hint)
        return
    yield from _by_place(inputs, name, got, np.asarray(want.value, float), judged, want.error)


def _problems(inputs: Inputs, given: Inputs, wrong: list[str]) -> Iterator[Another]:
    """Other problems, also of the inputs `given` the other outputs of the answer, if these are right."""
    yield from _known(inputs)
    if given is not inputs and wrong == ["output"]:
        yield from _known(given)


def _known(inputs: Inputs) -> Iterator[Another]:
    """The other problems that people make of an operator's inputs."""
    yield from PROBLEMS.get(inputs.operator.name, of_layer)(inputs)
    of_heads = {n: axes.index("g") for n in inputs.arrays if "g" in (axes := inputs.axes(n))}
    stored = any("g" in axes for axes in inputs.operator.outputs(inputs.case).values())
    if of_heads and inputs.sizes.group > 1 and not stored:
        tiled = np.arange(inputs.sizes.H) % inputs.sizes.Hkv
        arrays = {name: inputs.arrays[name].take(tiled, axis) for name, axis in of_heads.items()}
        text = "Key/value heads are tiled, expected each repeated for its group."
        yield inputs.replace(**arrays), text, "heads", "`repeat`, `tile` for `repeat_interleave`"


def _problem(sentence: str, hint: str, inputs: Inputs) -> Inputs | Mapping[str, np.ndarray] | None:
    """The problem that a sentence with a hint names, for other inputs."""
    known = _known(inputs)
    return next(
        (other for other, *said, code in known if (said[0], code) == (sentence, hint)), None
    )


def _of_factor(answered: Answered) -> Callable[[Inputs], Inputs] | None:
    """The problem whose scale of the scores, times a factor, is nearest to the output; None if none is
    near, or the operator has no scale. The factor is found by Gauss-Newton steps."""
    tool, inputs, got, factor = answered.tool, answered.inputs, answered.got, 1.0
    if tool.late or inputs.operator.option("scale") is None or not inputs.effective_scale:
        return None

    def scaled(factor: float, inputs: Inputs) -> Inputs:
        return inputs.replace(scale=float(factor * inputs.effective_scale))

    for _ in range(4):
        found = [tool.oracle(scaled(factor * (1 + step), inputs)) for step in (0.0, 2.0**-10)]
        here, beside = (
            None if oracle is None else oracle.expected_beside(got)["output"].value.astype(float)
            for oracle in found
        )
        if here is None or beside is None:
            return None
        slope = (beside - here) / (factor * 2.0**-10)
        factor += float(((got["output"] - here) * slope).sum() / max((slope * slope).sum(), 1e-300))
        if not 0.1 < factor < 10:
            return None
    return partial(scaled, factor)


def _by_place(
    inputs: Inputs,
    name: str,
    got: np.ndarray,
    want: np.ndarray,
    judged: np.ndarray,
    bound: np.ndarray,
) -> Iterator[Found]:
    """The finding for an output that is right for no known other problem: a factor, or a place."""
    family = "layer" if inputs.operator.is_layer else inputs.operator.name
    if not np.isfinite(got[judged & np.isfinite(want)]).all():
        hint = "scores or log-sum-exps whose maximum is not subtracted, rows or parts without keys"
        yield Found(f"NaN or infinity comes back in {name}.", family, hint)
        return
    known = judged & np.isfinite(want)
    factor = float((got * want)[known].sum() / max((want * want)[known].sum(), 1e-300))
    limit = 8 * max(1, abs(factor)) * bound[known]
    if not got[known].any() and want[known].any():
        yield Found(
            f"The {name} is zero.", family, "an overflow that is caught, or an early return"
        )
        return
    clear = abs(factor - 1) * np.abs(want[known]).max(initial=0.0) > 8 * bound[known].max(
        initial=0.0
    )
    if clear and (np.abs(got - factor * want)[known] <= limit).all():
        text = f"All of {name} is {factor:.4g} times the right one."
        yield Found(text, family, "a factor behind everything else")
        return
    query = inputs.arrays.get("query")
    same = query is not None and query.shape == got.shape
    if same and (np.abs(got - query - want)[known] <= 2 * bound[known] + 1e-6).all():
        hint = "a residual connection that the caller adds, too"
        yield Found("The query is added to the output.", family, hint)
        return
    moved = known & ~(np.abs(got - want) <= bound)
    letters = inputs.operator.outputs(inputs.case)[name]
    words = {"b": "sample", "h": "head", "q": "row", "k": "key"}
    if inputs.operator.takes_masks and not inputs.attends.all():
        del words["b"]  # samples have other masks
    parts = [f"{words[letters[a]]} {at}" for a, at in few(moved) if letters[a] in words]
    if parts:
        yield Found(f"{name.capitalize()} is wrong in {' and '.join(parts)} alone.", family)


PROBLEMS: Mapping[str, Callable[[Inputs], Iterator[Another]]] = {
    "rotary": of_rotary, "packed": of_packed, "paged": of_paged, "paged-write": of_paged_write,
    "cached": of_cached, "merge": of_merge, "quantized": of_quantized,
    "quantized-write": of_quantized_write, "latent": of_latent,
}  # fmt: skip
"""The other problems of operators that are no layers."""
