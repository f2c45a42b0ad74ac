"""Observe elections of layers: put a question to a layer and name the answer it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.judge.gradients import (
    OPERANDS,
    by_canonical_names,
    layer_cotangent,
    layer_gradients,
)
from suite.judge.layers import LayerAnswer, LayerOracle
from suite.judge.tolerance import NUMERICS, ratios
from suite.judge.verdict import Deviation, NotElected
from suite.spec.dtypes import DType
from suite.spec.layers import LayerCase, LayerInputs, draw_layer
from suite.spec.masks import Boolean, Causal

if TYPE_CHECKING:
    from backends.base import Implementation

HIDDEN_KEY, EMPTY_ROW = 3, 2

BASES = {
    "multi-head": "multi-head/{}/mha/{}/b2h4q7k7d3/e12.12.12.12/self",
    "additive": "additive/{}/mha/{}/b2h1q5k9d12/e12.12.12.12/identity",
    "dot": "dot/{}/mha/{}/b2h1q5k9d8/e8.8.8.8/unscaled",
    "concat": "concat/{}/mha/{}/b2h1q5k9d8/e8.8.8.8",
    "masked": "masked/{}/mha/{}/b2h1q5k9d8/e8.8.8.8",
}
"""What the probes start from: the mask and the dtype are filled in."""


def probe_layer(question: str, implementation: Implementation, dtype: DType) -> str:
    """One of the question's options.

    Raises Deviation "election" where the answer is none of them, and NotElected where the probe needs
    what the implementation lacks.
    """
    return _PROBES[question](_Probe(implementation, dtype))


class _Probe:
    def __init__(self, implementation: Implementation, dtype: DType) -> None:
        if not getattr(implementation, "takes_parameters", True):
            raise NotElected("the layer takes no parameters: no answer can be recognised")
        self.implementation, self.dtype = implementation, dtype
        declared = implementation.numerics_for(dtype)
        least = "single" if dtype.name == "f64" else "stepwise"
        # A probe tells meanings apart, not roundings: the class is wide.
        self.numerics = max(declared, least, key=NUMERICS.index)

    def inputs(self, token: str = "none", **changes: Any) -> LayerInputs:
        text = BASES[self.implementation.operator].format(token, self.dtype.name)
        return replace(draw_layer(LayerCase.parse(text)), **changes)

    def call(self, inputs: LayerInputs) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Output and weights in float64, or None where the framework raises."""
        for feature in inputs.needs:
            if feature in self.implementation.lacks:
                raise NotElected(self.implementation.lacks[feature])
        prepared = self.implementation.prepare(inputs)  # type: ignore[arg-type]
        try:
            output, weights = prepared()
        except Exception:
            return None
        backend = self.implementation.backend
        return backend.to_numpy(output), None if weights is None else backend.to_numpy(weights)

    def matches(
        self, got: np.ndarray, inputs: LayerInputs, empty_rows: str = "zeros",
        rows: Any = slice(None),
    ) -> bool:  # fmt: skip
        """Whether `got` is the output for `inputs`, in the samples and rows chosen by `rows`."""
        oracle = LayerOracle.of(inputs, self.numerics, self.dtype.name != "f16", empty_rows)
        whole = oracle.reference.output.value.astype(np.float64).copy()
        whole[rows] = got[rows]
        try:
            oracle.judge(LayerAnswer(None, whole))
        except Deviation:
            return False
        return True

    def row_kind(self, got: np.ndarray | None, inputs: LayerInputs, rows: Any) -> str:
        """Name what stands in the rows without keys."""
        if got is None:
            return "raises"
        if np.isnan(got[rows]).all():
            return "nan"
        for name in ("zeros", "uniform"):
            if self.matches(got, inputs, name, rows):
                return name
        seen = inputs.attends | ~inputs.attends.any(-1, keepdims=True)
        visible = replace(inputs, bias=None, mask=None, mask_array=seen, form="dense")
        return "unmasked" if self.matches(got, visible, "zeros", rows) else "other"


def _fully_masked(p: _Probe) -> str:
    s = p.inputs().sizes
    mask = np.ones((s.Lq, s.Lk), bool)
    mask[EMPTY_ROW] = False
    inputs = p.inputs(mask_array=mask, form="dense")
    found = p.call(inputs)
    return p.row_kind(found and found[0], inputs, np.s_[:, EMPTY_ROW])


def _padded_sample(p: _Probe) -> str:
    inputs = p.inputs("padempty")
    found = p.call(inputs)
    empty = ~inputs.attends.any((1, 2, 3))
    return p.row_kind(found and found[0], inputs, empty)


def _minus_inf(p: _Probe) -> str:
    s = p.inputs().sizes
    bias = np.zeros((s.B, s.H, s.Lq, s.Lk))
    bias[:, :, EMPTY_ROW] = -np.inf
    inputs = p.inputs(bias=bias)
    found = p.call(inputs)
    return p.row_kind(found and found[0], inputs, np.s_[:, EMPTY_ROW])


GRADIENT_BASES = {
    "multi-head": "multi-head/bool.qk.empty/mha/{}/b2h3q5k9d4/e12.12.12.12/dense",
    "additive": "additive/padempty/mha/{}/b2h1q5k9d16v14/e16.16.14.14/identity",
    "dot": "dot/padempty/mha/{}/b2h1q5k9d8v6/e8.8.6.6/unscaled",
    "concat": "concat/padempty/mha/{}/b2h1q5k9d8v6/e8.8.6.6/unscaled",
    "masked": "masked/padempty/mha/{}/b2h1q5k9d8v6/e8.8.6.6",
}
"""Layers with rows without keys, of sizes that are differentiated elsewhere: some frameworks compile."""


def _empty_gradient(p: _Probe) -> str:
    layer: Any = p.implementation
    text = GRADIENT_BASES[layer.operator].format(p.dtype.name)
    inputs = draw_layer(LayerCase.parse(text))
    for feature in inputs.needs:
        if feature in layer.lacks:
            raise NotElected(layer.lacks[feature])
    cotangent = layer_cotangent(inputs, f"{text}/election")
    prepared = by_canonical_names(layer.differentiable(inputs), inputs)
    native = layer.backend.array(cotangent, p.dtype)
    try:
        _, found = layer.backend.differentiate(prepared, OPERANDS, native)
    except Exception as error:
        if getattr(error, "declared", None) is not None:
            raise NotElected(f"forward only: {error}") from error
        return "raises"
    if not found or any(gradient is None for gradient in found.values()):
        raise NotElected("the answer has another dtype than the cotangent, or does not hang on it")
    got = {n: layer.backend.to_numpy(g) for n, g in found.items()}
    if any(np.isnan(g).any() for g in got.values()):
        return "nan"
    for name, mode in (("nothing", "zeros"), ("values", "uniform"), ("scores", "scores")):
        want = layer_gradients(layer, inputs, cotangent, p.numerics, p.dtype.name != "f16", mode)
        if all((ratios(g - want[n].value, want[n].error) <= 1).all() for n, g in got.items()):
            return name
    # As for attention alone: scores that are constants take no gradient, those merely large do.
    empty = np.asarray(~inputs.attends.any(-1)).all(1)  # (B or 1, Lq)
    moved = (got["query"] != 0).any(-1) & empty
    return "scores" if moved.any() else "other"


def _alignment(p: _Probe) -> str:
    if "causal-alone" in p.implementation.lacks:
        raise NotElected(p.implementation.lacks["causal-alone"])
    text = "multi-head/causal/mha/{}/b2h3q5k9d4/e12.12.12.12"
    inputs = draw_layer(LayerCase.parse(text.format(p.dtype.name)))
    found = p.call(inputs)
    if found is None:
        return "raises"
    for name, bottom_right in (("top-left", False), ("bottom-right", True)):
        if p.matches(found[0], replace(inputs, mask=Causal(bottom_right))):
            return name
    raise Deviation("election", "the causal flag gives neither top-left nor bottom-right")


def _causal_with_mask(p: _Probe) -> str:
    s = p.inputs().sizes
    # Keys 0 are made visible so that no row is without keys under any reading.
    array = Boolean("b1qk").dense(s) | (np.arange(s.Lk) == 0)
    causal = Causal().dense(s)
    found = p.call(p.inputs(mask=Causal(), mask_array=array, form="flag-and-mask"))
    if found is None:
        return "raises"
    for name, meaning in (
        ("intersect", array & causal),
        ("causal-ignored", array),
        ("mask-ignored", causal),
    ):
        if p.matches(found[0], p.inputs(mask_array=meaning)):
            return name
    raise Deviation("election", "the causal flag with a mask is none of the known meanings")


def _polarity(p: _Probe) -> str:
    s = p.inputs().sizes
    array = Boolean("qk").dense(s)
    array[:, 0], array[:, 1] = True, False
    found = p.call(p.inputs(mask_array=array, form="raw"))
    if found is None:
        return "raises"
    for name, meaning in (("attends", array), ("hides", ~array)):
        if p.matches(found[0], p.inputs(mask_array=meaning)):
            return name
    raise Deviation("election", "a boolean mask neither attends nor hides where it is True")


def _nan_in(operand: str) -> Callable[[_Probe], str]:
    def put(p: _Probe) -> str:
        text = "multi-head/none/mha/{}/b2h3q5k9d4/e12.12.12.12"
        inputs = draw_layer(LayerCase.parse(text.format(p.dtype.name)))
        s = inputs.sizes
        mask = np.ones((s.Lq, s.Lk), bool)
        mask[:, HIDDEN_KEY] = False
        poisoned = getattr(inputs, operand).copy()
        poisoned[:, HIDDEN_KEY] = np.nan
        found = p.call(replace(inputs, mask_array=mask, form="dense", **{operand: poisoned}))
        if found is None:
            raise Deviation("election", f"a NaN in a masked {operand} raised")
        return "leaks" if np.isnan(found[0]).any() else "blocked"

    return put


def _returned_weights(p: _Probe) -> str:
    inputs = p.inputs(returned="head", rate=0.5, training=True)
    found = p.call(inputs)
    if found is None or found[1] is None:
        raise Deviation("election", "no weights came back while dropout is on")
    weights = found[1]
    oracle = LayerOracle.of(inputs, p.numerics, True)
    want = oracle.reference.weights.value.reshape(weights.shape)
    limit = oracle.reference.weights.error.reshape(weights.shape)
    if (np.abs(weights - want) <= limit).all():
        return "before-dropout"
    if (np.minimum(np.abs(weights - 2 * want), np.abs(weights)) <= 2 * limit).all():
        return "after-dropout"
    raise Deviation("election", "the returned weights are those neither before nor after dropout")


_PROBES = {
    "fully-masked-row": _fully_masked,
    "padded-sample": _padded_sample,
    "minus-inf-row": _minus_inf,
    "fully-masked-row-gradient": _empty_gradient,
    "padded-sample-gradient": _empty_gradient,
    "causal-alignment": _alignment,
    "causal-with-mask": _causal_with_mask,
    "mask-polarity": _polarity,
    "nan-in-masked-key": _nan_in("key"),
    "nan-in-masked-value": _nan_in("value"),
    "returned-weights": _returned_weights,
}
