"""Judge gradients: the oracle of a backward pass, and the cell in which a check differentiates."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from references.gradients import Gradients, attention_gradients, attention_tangent
from references.layer_gradients import (
    additive_gradients,
    concat_gradients,
    dot_gradients,
    masked_gradients,
    multi_head_gradients,
)
from references.norm_gradients import batch_norm_gradients, layer_norm_gradients
from references.running import Approx
from suite.judge.cell import Answer, Cell
from suite.judge.layers import LayerAnswer, LayerCell
from suite.judge.oracle import digest_of, hold, precision_for
from suite.judge.tolerance import NUMERICS, gradient_roundoffs, ratios, roundoffs
from suite.judge.verdict import Deviation, NotElected
from suite.spec.dtypes import round_to
from suite.spec.layers import EPSILON, NORMS, STATISTICS, LayerInputs
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import draw_cotangent, generator

if TYPE_CHECKING:
    from backends.base import Prepared

OPERANDS = ("query", "key", "value")


@dataclass(frozen=True)
class GradientOracle:
    """Gradients of one set of inputs with how far rounding in one numerics class may move them."""

    reference: Gradients
    inputs: Inputs

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        cotangent: np.ndarray,
        numerics: str,
        flushes: bool = False,
        exp_error: float = 0.0,
        empty_rows: str = "zeros",
        blocks: tuple[int, int] | None = None,
        narrow_reductions: bool = False,
    ) -> GradientOracle:
        """The oracle of `inputs` for a cotangent (B, H, Lq, Dv); results are cached.

        `empty_rows` is one of `references.gradients.EMPTY_ROWS`. Raises HarnessError where float64 cannot
        be judged on this platform.
        """
        rest = (numerics, flushes, exp_error, empty_rows, blocks, narrow_reductions)
        key = (digest_of(inputs), cotangent.tobytes(), *rest)
        if key not in _CACHE:
            precision = precision_for(inputs.dtype)
            _CACHE[key] = attention_gradients(
                *(x.astype(precision) for x in (inputs.query, inputs.key, inputs.value, cotangent)),
                rounding=gradient_roundoffs(numerics, inputs.dtype, flushes, narrow_reductions),
                mask=inputs.dense_mask,
                bias=None if inputs.bias is None else inputs.bias.astype(precision),
                scale=inputs.scale,
                softcap=inputs.softcap,
                empty_rows=empty_rows,
                exp_error=exp_error,
                blocks=blocks,
            )
        _CACHE.move_to_end(key)
        while len(_CACHE) > _CACHE_ENTRIES:
            _CACHE.popitem(last=False)
        return cls(_CACHE[key], inputs)

    def gradient(self, name: str, shape: tuple[int, ...]) -> Approx:
        """The gradient of an operand; `shape` is that of a bias as it was passed."""
        return self.reference.bias(shape) if name == "bias" else getattr(self.reference, name)


_CACHE: OrderedDict[tuple, Gradients] = OrderedDict()
_CACHE_ENTRIES = 64


def reference_mode(gradient: str, answer: str) -> str:
    """What a reference takes a row without keys for (`references.gradients.EMPTY_ROWS`), by what is
    elected of its gradient and of its answer.

    Raises NotElected where no reference follows: what ignores the mask in such rows is another
    problem's answer, up to what hiding by a finite number does to its scores.
    """
    if gradient not in ("nothing", "values", "scores", "nan"):
        raise NotElected(f"elects that the cotangent of a row without keys goes to {gradient}")
    if answer == "unmasked":
        raise NotElected("elects that rows without keys answer as if nothing were masked")
    return {"values": "uniform", "scores": "scores"}.get(gradient, "zeros")


class GradientCell(Cell):
    """One check x case x implementation, differentiated."""

    case: Case

    @cached_property
    def cotangent(self) -> np.ndarray:
        """What the case's output is differentiated with, (B, H, Lq, Dv)."""
        return draw_cotangent(self.case, self.seed)

    @property
    def operands(self) -> tuple[str, ...]:
        """What the implementation's answer to the case can be differentiated by."""
        if self.inputs.bias is None or "gradient-of-bias" in self.implementation.lacks:
            return OPERANDS
        return (*OPERANDS, "bias")

    def differentiate(
        self,
        inputs: Inputs,
        wrt: Sequence[str],
        cotangent: np.ndarray | None = None,
        arranged: str = "reversed",
        prepared: Prepared | None = None,
    ) -> tuple[Answer, dict[str, np.ndarray]]:
        """The answer, and the gradients by the operands `wrt`: (B, H, L, D), a bias as it was passed.

        The cotangent (the case's own by default) lies in memory as `arranged` says; `prepared` is the
        call where it is not the one that `inputs` give. Judges type, device, dtype and shape. Raises
        Deviation "raised" and "no-gradient".
        """
        backend = self.implementation.backend
        prepared = prepared or self.prepare(inputs)
        given = self.cotangent if cotangent is None else cotangent
        if prepared.layout == "blhd":
            given = given.swapaxes(1, 2)
        native = backend.arranged(given, inputs.dtype, arranged)
        out, found = self.attempt(lambda: backend.differentiate(prepared, wrt, native))
        answer = self.read(out, inputs, prepared.layout)
        return answer, self.read_gradients(found, inputs, prepared, wrt)

    def read_gradients(
        self, found: Mapping[str, Any], inputs: Inputs, prepared: Prepared, wrt: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Judge type, device, dtype and shape of gradients by operand, and return their values.

        Raises Deviation, "no-gradient" where one is missing.
        """
        gradients = {}
        for name in wrt:
            argument = prepared.arguments[prepared.operands[name]]
            gradient = found[name]
            if gradient is None:
                raise Deviation("no-gradient", f"the {name} got no gradient")
            what = f"the gradient of the {name}"
            values = self.read_array(what, gradient, tuple(argument.shape), inputs.dtype)
            turned = prepared.layout == "blhd" and name != "bias"
            gradients[name] = values.swapaxes(1, 2) if turned else values
        return gradients

    def pushed(self, tangents: tuple[np.ndarray, ...]) -> np.ndarray:
        """How the output moves as query, key and value move along `tangents`, (B, H, Lq, Dv)."""
        inputs, backend = self.inputs, self.implementation.backend
        prepared = self.prepare(inputs)
        turned = prepared.layout == "blhd"
        given = {
            name: backend.array(
                np.ascontiguousarray(x.swapaxes(1, 2) if turned else x), inputs.dtype
            )
            for name, x in zip(OPERANDS, tangents, strict=True)
        }
        out = self.attempt(lambda: backend.pushed(prepared, given))
        return self.read(out, inputs, prepared.layout).values

    def judge_tangent(self, got: np.ndarray, tangents: tuple[np.ndarray, ...]) -> None:
        """Hold the output's movement against the reference, but for rows without keys that are elected to
        be NaN; others move as their gradients flow back."""
        inputs, precision = self.inputs, precision_for(self.dtype)
        moving: list[np.ndarray] = [x.astype(precision) for x in tangents]
        want, keys = attention_tangent(
            inputs.query.astype(precision),
            inputs.key.astype(precision),
            inputs.value.astype(precision),
            (moving[0], moving[1], moving[2]),
            rounding=roundoffs(self.numerics, inputs.dtype, self.flushes),
            mask=inputs.dense_mask,
            bias=None if inputs.bias is None else inputs.bias.astype(precision),
            scale=inputs.scale,
            softcap=inputs.softcap,
            empty_rows=self.empty_mode(inputs),
        )
        judged = np.broadcast_to(((keys > 0) | ~self.poisoned(inputs))[..., None], got.shape)
        _, measured, deviation = hold(
            got, want.value, want.error, judged, inputs.dtype, self.numerics, "tangent, "
        )
        self.measured.worst_of(measured)
        if deviation is not None:
            raise deviation

    def empty_gradients(self, inputs: Inputs) -> str:
        """Where the cotangent of a row without keys goes: "nothing", "values", "scores" or "nan".

        Raises NotElected for any other election.
        """
        if not inputs.has_empty_rows:
            return "nothing"
        elected = self.elected("fully-masked-row-gradient")
        reference_mode(elected, self.empty_rows(inputs))
        return elected

    def empty_mode(self, inputs: Inputs) -> str:
        """What the reference takes a row without keys for."""
        return reference_mode(self.empty_gradients(inputs), self.empty_rows(inputs))

    def poisoned(self, inputs: Inputs) -> bool:
        """Whether rows without keys are elected to be NaN, and what hangs on them with them."""
        return self.empty_gradients(inputs) == "nan"

    def gradient_oracle(
        self, inputs: Inputs, cotangent: np.ndarray | None = None, numerics: str | None = None
    ) -> GradientOracle:
        """The oracle of `inputs` under the implementation's elections and in its class."""
        given = self.cotangent if cotangent is None else cotangent
        return GradientOracle.of(
            inputs,
            given,
            numerics or self.numerics,
            self.flushes,
            self.exp_error,
            self.empty_mode(inputs),
            self.implementation.gradient_blocks.get(self.dtype.name),
            self.implementation.backend.narrow_reductions,
        )

    def judge_gradients(
        self,
        gradients: dict[str, np.ndarray],
        inputs: Inputs | None = None,
        cotangent: np.ndarray | None = None,
    ) -> None:
        """Hold gradients against the oracle; raises Deviation "value" or "non-finite".

        What NaN reaches from rows without keys, where that is elected, is left out: those rows' own
        gradients, and all of what their cotangents are summed into.
        """
        inputs = self.inputs if inputs is None else inputs
        oracle = self.gradient_oracle(inputs, cotangent)
        poisoned = self.poisoned(inputs)
        empty = oracle.reference.keys == 0  # (B, H, Lq)
        for name, got in gradients.items():
            want = oracle.gradient(name, got.shape)
            judged = np.ones(got.shape, bool)
            if poisoned:
                judged &= ~_reached(name, empty, got.shape, inputs.sizes.Hkv)
            error, measured, deviation = hold(
                got, want.value, want.error, judged, inputs.dtype, self.numerics,
                f"gradient of the {name}, ",
            )  # fmt: skip
            measured.grade = self._grade(name, error, inputs, cotangent)
            self.measured.worst_of_operand(name, measured)
            if deviation is not None:
                raise deviation

    def _grade(
        self, name: str, error: np.ndarray, inputs: Inputs, cotangent: np.ndarray | None
    ) -> str:
        """The narrowest class whose bound holds for every element; "none" beyond all."""
        for numerics in NUMERICS:
            limit = self.gradient_oracle(inputs, cotangent, numerics).gradient(name, error.shape)
            if not (ratios(error, limit.error) > 1).any():
                return numerics
        return "none"


def _reached(name: str, empty: np.ndarray, shape: tuple[int, ...], Hkv: int) -> np.ndarray:
    """Which elements of a gradient of `shape` a row without keys (B, H, Lq) has a part in."""
    B, H, _ = empty.shape
    if name == "query":
        return np.broadcast_to(empty[..., None], shape)
    if name == "bias":
        full = (1,) * (4 - len(shape)) + shape
        axes = tuple(a for a in range(3) if full[a] == 1)
        rows = np.asarray(empty.any(axes, keepdims=True))
        return np.broadcast_to(rows[..., None], full).reshape(shape)
    heads = np.asarray(empty.any(-1).reshape(B, Hkv, H // Hkv).any(-1))
    return np.broadcast_to(heads[..., None, None], shape)


def layer_cotangent(inputs: LayerInputs, name: str, seed: int = 0) -> np.ndarray:
    """Unit normals in the inputs' dtype, (B, Lq, Eo)."""
    s = inputs.sizes
    made = generator(name, seed).standard_normal((s.B, s.Lq, inputs.widths.output))
    return round_to(made, inputs.dtype)


def by_canonical_names(made: Prepared, inputs: LayerInputs) -> Prepared:
    """A layer's call that returns its output alone, with its inputs and those canonical parameters that
    it is handed as operands; statistics are none. Where query, key and value are one tensor, that is the
    operand "query"."""
    learned = [n for n in inputs.parameters if n in made.arguments and n not in STATISTICS]
    wrt = [*OPERANDS, *learned]
    names = {name: made.operands.get(name, name) for name in wrt}
    others = [names.pop(name) for name in OPERANDS[1:]] if inputs.own else []
    others = [name for name in others if name in made.arguments]

    def call(**arguments: Any) -> Any:
        given = arguments | dict.fromkeys(others, arguments[names["query"]])
        return made.function(**given)[0]

    return replace(made, function=call, operands=names)


_REFERENCES: dict[str, Any] = {
    "multi-head": multi_head_gradients,
    "self-attention": multi_head_gradients,
    "additive": additive_gradients,
    "dot": dot_gradients,
    "concat": concat_gradients,
    "masked": masked_gradients,
    "layer-norm": layer_norm_gradients,
    "batch-norm": batch_norm_gradients,
}


def layer_gradients(
    implementation: Any,
    inputs: LayerInputs,
    cotangent: np.ndarray,
    numerics: str,
    flushes: bool,
    empty_rows: str = "zeros",
) -> dict[str, Approx]:
    """Gradients of a layer for a cotangent (B, Lq, Eo), by query, key, value and canonical parameters,
    with how far rounding in a numerics class may move those of an implementation. Where query, key and
    value are one tensor, "query" is what it receives as all three.

    `empty_rows` is one of `references.gradients.EMPTY_ROWS`.
    """
    precision = precision_for(inputs.dtype)
    parameters: dict[str, np.ndarray] = {
        n: np.asarray(x).astype(precision) for n, x in inputs.parameters.items()
    }
    given: dict[str, Any] = {}
    dtype = inputs.dtype.name
    if "value_kernel" in parameters or inputs.operator in NORMS:
        given["narrow_biases"] = implementation.narrow_biases.get(dtype, ())
    if "value_kernel" in parameters:
        given["own"] = inputs.own
        given["bias"] = None if inputs.bias is None else inputs.bias.astype(precision)
    if inputs.operator in NORMS:
        given |= {"epsilon": EPSILON, "training": inputs.training}
        given["narrow_statistics"] = dtype in implementation.narrow_statistics
    else:
        given |= {"allowed": inputs.dense_mask, "empty_rows": empty_rows}
    narrow = implementation.backend.narrow_reductions or dtype in implementation.narrow_reductions
    return _REFERENCES[inputs.operator](
        *(x.astype(precision) for x in (inputs.query, inputs.key, inputs.value)),
        parameters,
        cotangent.astype(precision),
        rounding=gradient_roundoffs(numerics, inputs.dtype, flushes, narrow),
        **given,
    )


class LayerGradientCell(LayerCell):
    """One check x case of a layer x implementation, differentiated by its inputs and parameters."""

    implementation: Any

    @cached_property
    def cotangent(self) -> np.ndarray:
        """What the output is differentiated with, (B, Lq, Eo): unit normals in the case's dtype."""
        return layer_cotangent(self.inputs, f"{self.case.id}/cotangent", self.seed)

    def differentiate(self) -> tuple[LayerAnswer, dict[str, np.ndarray]]:
        """The answer and its gradients: by query, key and value, or the one tensor they are, and by those
        canonical parameters that the layer is handed under their names (in its own shapes).

        Judges type, device, dtype and shape. Raises Deviation "raised" and "no-gradient".
        """
        inputs, backend = self.inputs, self.implementation.backend
        prepared = by_canonical_names(self.implementation.differentiable(inputs), inputs)
        wrt = list(prepared.operands)
        native = backend.arranged(self.cotangent, inputs.dtype, "reversed")
        out, found = self.attempt(lambda: backend.differentiate(prepared, wrt, native))
        gradients = {}
        for name in wrt:
            if found[name] is None:
                raise Deviation("no-gradient", f"{name} got no gradient")
            shape = tuple(prepared.arguments[prepared.operands[name]].shape)
            what = f"the gradient of {name}"
            gradients[name] = self.read_array(what, found[name], shape, inputs.dtype)
        return self.read((out, None), inputs), gradients

    def empty_mode(self, inputs: LayerInputs) -> str:
        """What the reference takes a row without keys for.

        Raises NotElected where the answer of such a row, or its gradient, is elected to be NaN: in a
        layer that reaches every parameter.
        """
        if not inputs.has_empty_rows:
            return "zeros"
        native = inputs.mask is not None and inputs.form == "native"
        question = "padded-sample-gradient" if native else "fully-masked-row-gradient"
        answer, gradient = self.empty_rows(inputs), self.elected(question)
        if "nan" in (answer, gradient):
            raise NotElected("elects NaN for rows without keys, which reaches every parameter")
        return reference_mode(gradient, answer)

    def judge_gradients(self, gradients: dict[str, np.ndarray]) -> None:
        """Hold gradients against the reference; raises Deviation "value" or "non-finite"."""
        inputs = self.inputs
        reference = layer_gradients(
            self.implementation, inputs, self.cotangent, self.numerics, self.flushes,
            self.empty_mode(inputs),
        )  # fmt: skip
        for name, got in gradients.items():
            want = reference[name].reshape(-1)
            flat = got.reshape(-1)
            _, measured, deviation = hold(
                flat, want.value, want.error, np.ones(flat.shape, bool), inputs.dtype,
                self.numerics, f"gradient of {name}, flat ",
            )  # fmt: skip
            self.measured.worst_of_operand(name, measured)
            if deviation is not None:
                raise deviation
