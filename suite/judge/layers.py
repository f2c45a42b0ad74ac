"""Judge layers: the oracle of a layer, and the cell in which a check meets one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from references import layers as definitions
from references.layers import LayerReference
from references.running import averaged
from suite.judge.cell import Answer, Cell, NotElected
from suite.judge.oracle import digest_of, hold, judged_elements, precision_for
from suite.judge.tolerance import NUMERICS, ratios, roundoffs
from suite.judge.verdict import Deviation, Measured
from suite.spec.layers import EPSILON, NORMS, LayerCase, LayerInputs, draw_layer

if TYPE_CHECKING:
    from backends.base import Prepared

_DEFINITIONS: dict[str, Any] = {
    "multi-head": definitions.multi_head,
    "self-attention": definitions.multi_head,
    "additive": definitions.additive,
    "dot": definitions.dot,
    "concat": definitions.concat,
    "masked": definitions.masked,
    "layer-norm": definitions.layer_norm,
    "batch-norm": definitions.batch_norm,
}


@dataclass(frozen=True)
class LayerOracle:
    """Output and weights of a layer with how far rounding in one numerics class may move them."""

    reference: LayerReference
    inputs: LayerInputs
    numerics: str
    flushes: bool
    empty_rows: str

    @classmethod
    def of(
        cls, inputs: LayerInputs, numerics: str, flushes: bool = False, empty_rows: str = "zeros"
    ) -> LayerOracle:
        """The oracle of `inputs` for a class, with rows without keys as `empty_rows` elects.

        float64 cases are computed in extended precision. Results are cached. Raises HarnessError where
        the platform has no extended precision.
        """
        key = (digest_of(inputs), numerics, flushes, empty_rows)
        if key not in _CACHE:
            _CACHE[key] = _compute(inputs, numerics, flushes, empty_rows)
        _CACHE.move_to_end(key)
        while len(_CACHE) > _CACHE_ENTRIES:
            _CACHE.popitem(last=False)
        return cls(_CACHE[key], inputs, numerics, flushes, empty_rows)

    def judge(self, answer: LayerAnswer) -> Measured:
        """Compare output and, where they were returned, weights with the oracle.

        Returns the figures, the worse ones of the two. Raises Deviation "value" or "non-finite".
        """
        got = answer.values
        empty = self._empty_outputs(got.shape)
        judged = judged_elements(got, empty, self.empty_rows)
        want = self.reference.output
        error, measured, deviation = hold(
            got, want.value, want.error, judged, self.inputs.dtype, self.numerics
        )
        measured.grade = self._grade(error)
        if deviation is not None:
            raise deviation
        if answer.weights is not None:
            grade = measured.grade
            measured.worst_of(self._judge_weights(answer.weights))
            measured.grade = grade
        return measured

    def _judge_weights(self, got: np.ndarray) -> Measured:
        weights = self.reference.weights
        empty = self.reference.keys == 0  # (B, H, Lq)
        if got.ndim == 3:
            rounding = roundoffs(self.numerics, self.inputs.dtype, self.flushes)
            weights = averaged(weights, 1, rounding)
            empty = empty.any(1)
        # What a row without keys weighs is judged with the output it gives.
        judged = np.broadcast_to(~empty[..., None], got.shape)
        _, measured, deviation = hold(
            got, weights.value, weights.error, judged, self.inputs.dtype, self.numerics, "weights "
        )
        if deviation is not None:
            raise deviation
        return measured

    def _empty_outputs(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which outputs hang on a row without keys: where one head has none, its output mixes in."""
        empty = (self.reference.keys == 0).any(1)
        return np.broadcast_to(empty[..., None], shape)

    def _grade(self, error: np.ndarray) -> str:
        """The narrowest class whose bound holds for every element of the output; "none" beyond all."""
        for numerics in NUMERICS:
            other = LayerOracle.of(self.inputs, numerics, self.flushes, self.empty_rows)
            if not (ratios(error, other.reference.output.error) > 1).any():
                return numerics
        return "none"


def _compute(inputs: LayerInputs, numerics: str, flushes: bool, empty_rows: str) -> LayerReference:
    precision = precision_for(inputs.dtype)
    allowed = inputs.dense_mask
    arguments: dict[str, Any] = {}
    if inputs.bias is not None:
        arguments["bias"] = inputs.bias.astype(precision)
    if inputs.operator in NORMS:
        arguments = {"epsilon": EPSILON, "training": inputs.training}
    else:
        filled = "zeros" if empty_rows == "unmasked" else empty_rows
        arguments |= {"allowed": allowed, "empty_rows": filled}
    parameters: dict[str, np.ndarray] = {
        n: np.asarray(x).astype(precision) for n, x in inputs.parameters.items()
    }
    with np.errstate(all="ignore"):
        return _DEFINITIONS[inputs.operator](
            *(x.astype(precision) for x in (inputs.query, inputs.key, inputs.value)),
            parameters,
            rounding=roundoffs(numerics, inputs.dtype, flushes),
            **arguments,
        )


_CACHE: OrderedDict[tuple, LayerReference] = OrderedDict()
_CACHE_ENTRIES = 256


@dataclass(frozen=True)
class LayerAnswer(Answer):
    """A layer's output (B, Lq, Eo), and the weights (B, H, Lq, Lk), or (B, Lq, Lk) averaged, or None."""

    weights: np.ndarray | None = None


class LayerCell(Cell):
    """One check x layer's case x implementation."""

    case: LayerCase

    @cached_property
    def inputs(self) -> LayerInputs:  # type: ignore[override]
        """The values drawn for the case. A variation is made with `dataclasses.replace`."""
        return draw_layer(self.case, self.seed)

    @property
    def flushes(self) -> bool:
        """No value of a layer's case is near the smallest normal number, but for weights: nobody was
        seen to flush those of float16, and in the other dtypes it makes no difference."""
        return self.dtype.name != "f16"

    @property
    def has_parameters(self) -> bool:
        """Whether the layer computes with the case's parameters; a user's own may have none to take."""
        return getattr(self.implementation, "takes_parameters", True)

    def prepare(self, inputs: LayerInputs) -> Prepared:
        """The implementation's call for these inputs.

        Raises NotElected where a variation of the case needs what the case does not and the
        implementation lacks.
        """
        own, lacks = self.case.needs, self.implementation.lacks
        for feature in inputs.needs:
            if feature not in own and feature in lacks:
                raise NotElected(lacks[feature])
        return self.implementation.prepare(inputs)

    def read(self, native: Any, inputs: LayerInputs, layout: str = "bqe") -> LayerAnswer:  # type: ignore[override]
        """Judge type, device, dtype and shape of the pair (output, weights or None).

        With `inputs.single` the axis that was left out of the input is left out of the answer.
        """
        output, weights = native
        s = inputs.sizes
        lead: tuple[int, ...] = (s.B, s.Lq)
        if inputs.single:
            lead = (s.Lq,) if inputs.operator == "multi-head" else (s.B,)
        expected = (*lead, inputs.widths.output)
        values = self.read_array("output", output, expected, inputs.dtype)
        values = values.reshape(s.B, s.Lq, -1)
        if inputs.returned == "none":
            return LayerAnswer(output, values)
        if weights is None:
            raise Deviation("type", "no weights came back, though they were asked for")
        full: tuple[int, ...] = (s.B, s.Lq, s.Lk)
        if inputs.returned == "head":
            full = (s.B, s.H, s.Lq, s.Lk)
        short = full
        if inputs.single:
            short = full[1:] if inputs.operator == "multi-head" else (s.B, s.Lk)
        if inputs.operator != "multi-head" and not inputs.single:
            short = (s.B, s.Lq, s.Lk)
        read = self.read_array("weights", weights, short, inputs.dtype)
        return LayerAnswer(output, values, read.reshape(full))

    def empty_rows(self, inputs: LayerInputs) -> str:  # type: ignore[override]
        """What the implementation elects for the rows of `inputs` that have no key."""
        if not inputs.has_empty_rows:
            return "zeros"
        native = inputs.mask is not None and inputs.form == "native"
        question = "padded-sample" if native else "fully-masked-row"
        if inputs.dense_mask is None or inputs.dense_mask.any(-1).all():
            question = "minus-inf-row"
        answer = self.elected(question)
        if answer in ("raises", "other", "unsupported"):
            raise NotElected(f"elects {answer!r} for rows without keys ({question})")
        return answer

    def oracle(self, inputs: LayerInputs | None = None) -> LayerOracle:  # type: ignore[override]
        """The oracle of `inputs` under the implementation's elections and in its class.

        Raises NotElected where the layer has weights of its own, which no oracle knows.
        """
        if not self.has_parameters:
            raise NotElected("the layer takes no parameters: only what needs none is judged")
        inputs = self.inputs if inputs is None else inputs
        elected = self.empty_rows(inputs)
        return LayerOracle.of(inputs, self.numerics, self.flushes, elected)

    def bound(self, inputs: LayerInputs) -> np.ndarray:  # type: ignore[override]
        """The bound of the implementation's class on its output for `inputs`."""
        return self.oracle(inputs).reference.output.error

    def judge(  # type: ignore[override]
        self,
        answer: Any,
        inputs: LayerInputs | None = None,
        numerics: str | None = None,
    ) -> None:
        """Hold an answer against the oracle; raises Deviation "value" or "non-finite".

        `numerics` is the class to hold it to, by default the one declared.
        """
        oracle = self.oracle(inputs)
        if numerics is not None:
            oracle = LayerOracle.of(oracle.inputs, numerics, oracle.flushes, oracle.empty_rows)
        try:
            found = oracle.judge(answer)
        except Deviation as deviation:
            self.measured.worst_of(getattr(deviation, "measured", Measured()))
            raise
        self.measured.worst_of(found)
