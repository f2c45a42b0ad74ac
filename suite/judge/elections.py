"""Observe elections: put a question to an implementation and name the answer it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from suite.judge.gradients import OPERANDS, GradientOracle
from suite.judge.oracle import Oracle
from suite.judge.tolerance import NUMERICS, ratios
from suite.judge.verdict import Deviation, NotElected
from suite.spec.dtypes import DType, round_to
from suite.spec.masks import Boolean, Causal, Sizes
from suite.spec.problem import Inputs
from suite.spec.recipes import generator

if TYPE_CHECKING:
    from backends.base import Implementation

SIZES = Sizes(B=2, H=3, Hkv=3, Lq=5, Lk=7, D=8, Dv=8)
HIDDEN_KEY = 3
EMPTY_ROW = 2


def base_inputs(dtype: DType, seed: int = 0, Dv: int = SIZES.Dv) -> Inputs:
    """Unit normals of the probes' sizes, the same for every implementation."""
    s = SIZES
    rng = generator(f"elections/{dtype.name}", seed)
    shapes = ((s.B, s.H, s.Lq, s.D), (s.B, s.Hkv, s.Lk, s.D), (s.B, s.Hkv, s.Lk, Dv))
    q, k, v = (round_to(rng.standard_normal(shape), dtype) for shape in shapes)
    return Inputs(q, k, v, dtype)


def probe(question: str, implementation: Implementation, dtype: DType) -> str:
    """One of the question's options, "unsupported" where the implementation cannot be asked.

    Raises Deviation "election" where the answer is none of the options.
    """
    if implementation.operator != "sdpa":
        from suite.judge.layer_elections import probe_layer

        return probe_layer(question, implementation, dtype)
    return _PROBES[question](_Probe(implementation, dtype))


class _Probe:
    def __init__(self, implementation: Implementation, dtype: DType) -> None:
        self.implementation = implementation
        self.dtype = dtype
        self.inputs = base_inputs(dtype)

    @property
    def wide(self) -> str:
        """A wide class: a probe tells meanings apart, not roundings. In float64 one that recognises
        what was computed in float32 inside."""
        declared = self.implementation.numerics_for(self.dtype)
        least = "single" if self.dtype.name == "f64" else "stepwise"
        return max(declared, least, key=NUMERICS.index)

    def values(self, inputs: Inputs) -> np.ndarray | None:
        """The answer (B, H, Lq, Dv) in float64, or None where the framework raises."""
        # What is observed is remembered, and must not hang on programs of cells before this one.
        prepared = self.implementation.prepare_anew(inputs)
        try:
            out = prepared()
        except Exception:
            return None
        values = self.implementation.backend.to_numpy(out)
        return values if prepared.layout == "bhld" else values.swapaxes(1, 2)

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
        """Gradients of query, key and value, (B, H, L, D), or None where the framework raises."""
        backend = self.implementation.backend
        prepared = self.implementation.prepare_anew(inputs)
        turned = prepared.layout == "blhd"
        given = backend.array(np.ascontiguousarray(_turned(cotangent, turned)), self.dtype)
        try:
            _, found = backend.differentiate(prepared, OPERANDS, given)
        except Exception as error:
            if getattr(error, "declared", None) is not None:
                raise NotElected(f"forward only: {error}") from error
            return None
        if not found:
            raise NotElected("the answer has another dtype than the cotangent")
        if any(gradient is None for gradient in found.values()):
            raise Deviation("no-gradient", "query, key or value got no gradient")
        return {n: _turned(backend.to_numpy(g), turned) for n, g in found.items()}

    def matches_gradients(
        self, got: dict[str, np.ndarray], inputs: Inputs, cotangent: np.ndarray, empty_rows: str
    ) -> bool:
        """Whether `got` are the gradients of `inputs` with rows without keys read as `empty_rows`."""
        oracle = GradientOracle.of(inputs, cotangent, self.wide, True, 2e-4, empty_rows)
        for name, values in got.items():
            want = oracle.gradient(name, values.shape)
            if not (ratios(values - want.value, want.error) <= 1).all():
                return False
        return True

    def matches(self, got: np.ndarray, inputs: Inputs, empty_rows: str = "zeros") -> bool:
        """Whether `got` is the answer to `inputs`."""
        flushes = self.implementation.elected("subnormal-output", self.dtype) == "flushed"
        try:
            Oracle.of(inputs, empty_rows).judge(got, self.wide, flushes=flushes)
        except Deviation:
            return False
        return True

    def row_kind(self, got: np.ndarray | None, inputs: Inputs, visible: Inputs) -> str:
        """Name what stands in the rows without keys: zeros, nan, uniform or unmasked."""
        if got is None:
            return "raises"
        rows = got[:, :, EMPTY_ROW]
        if np.isnan(rows).all():
            return "nan"
        if (rows == 0).all():
            return "zeros"
        if self.matches(got, inputs, "uniform"):
            return "uniform"
        if self.matches(got[:, :, [EMPTY_ROW]], _rows(visible, [EMPTY_ROW])):
            return "unmasked"
        raise Deviation(
            "election", f"a row without keys gives none of the known answers: {rows[0, 0, :3]}"
        )


def _turned(array: np.ndarray, turned: bool) -> np.ndarray:
    return array.swapaxes(1, 2) if turned else array


def _rows(inputs: Inputs, rows: list[int]) -> Inputs:
    return replace(inputs, query=inputs.query[:, :, rows])


def _fully_masked(p: _Probe) -> str:
    mask = np.ones((SIZES.Lq, SIZES.Lk), bool)
    mask[EMPTY_ROW] = False
    inputs = replace(p.inputs, mask_array=mask, form="dense")
    return p.row_kind(p.values(inputs), inputs, p.inputs)


def _minus_inf(p: _Probe) -> str:
    bias = np.zeros((SIZES.B, SIZES.H, SIZES.Lq, SIZES.Lk))
    bias[:, :, EMPTY_ROW] = -np.inf
    inputs = replace(p.inputs, bias=bias, bias_kind="inf")
    return p.row_kind(p.values(inputs), inputs, p.inputs)


def _cotangent(p: _Probe) -> np.ndarray:
    s = SIZES
    rng = generator(f"elections/{p.dtype.name}/cotangent", 0)
    return round_to(rng.standard_normal((s.B, s.H, s.Lq, s.Dv)), p.dtype)


def _fully_masked_gradient(p: _Probe) -> str:
    mask = np.ones((SIZES.Lq, SIZES.Lk), bool)
    mask[EMPTY_ROW] = False
    inputs, cotangent = replace(p.inputs, mask_array=mask, form="dense"), _cotangent(p)
    got = p.gradients(inputs, cotangent)
    if got is None:
        return "raises"
    if np.isnan(got["query"][:, :, EMPTY_ROW]).all() or np.isnan(got["value"]).any():
        return "nan"
    if p.matches_gradients(got, inputs, cotangent, "zeros"):
        return "nothing"
    if p.matches_gradients(got, inputs, cotangent, "uniform"):
        return "values"
    # Scores that are constants take no gradient; those that are merely large do.
    return "scores" if (got["query"][:, :, EMPTY_ROW] != 0).any() else "other"


def _nan_gradient_in(operand: str) -> Callable[[_Probe], str]:
    def put(p: _Probe) -> str:
        mask = np.ones((SIZES.Lq, SIZES.Lk), bool)
        mask[:, HIDDEN_KEY] = False
        poisoned = getattr(p.inputs, operand).copy()
        poisoned[:, :, HIDDEN_KEY] = np.nan
        inputs = replace(p.inputs, mask_array=mask, form="dense", **{operand: poisoned})
        cotangent = _cotangent(p)
        got = p.gradients(inputs, cotangent)
        if got is None:
            raise Deviation("election", f"a NaN in a masked {operand} raised in the backward pass")
        if any(np.isnan(g).any() for g in got.values()):
            return "leaks"
        if p.matches_gradients(got, inputs, cotangent, "zeros"):
            return "blocked"
        raise Deviation(
            "election", f"a NaN in a masked {operand} leaves gradients finite and makes them wrong"
        )

    return put


def _no_keys(p: _Probe) -> str:
    inputs = replace(p.inputs, key=p.inputs.key[:, :, :0], value=p.inputs.value[:, :, :0])
    got = p.values(inputs)
    if got is None:
        return "raises"
    if np.isnan(got).all():
        return "nan"
    if (got == 0).all():
        return "zeros"
    raise Deviation(
        "election", f"an answer without keys is neither zeros nor NaN: {got.ravel()[:3]}"
    )


def _alignment(p: _Probe) -> str:
    got = p.values(replace(p.inputs, mask=Causal()))
    if got is None:
        return "raises"
    for name, bottom_right in (("top-left", False), ("bottom-right", True)):
        if p.matches(got, replace(p.inputs, mask=Causal(bottom_right))):
            return name
    raise Deviation("election", "the causal flag gives neither top-left nor bottom-right")


def _causal_with_mask(p: _Probe) -> str:
    other = Boolean("bhqk")
    # Keys 0 are made visible so that no row is without keys under any reading.
    array = other.dense(SIZES) | (np.arange(SIZES.Lk) == 0)
    got = p.values(replace(p.inputs, mask=Causal(), mask_array=array, form="flag-and-mask"))
    if got is None:
        return "raises"
    causal = Causal().dense(SIZES)
    for name, meaning in (
        ("intersect", array & causal),
        ("causal-ignored", array),
        ("mask-ignored", causal),
    ):
        if p.matches(got, replace(p.inputs, mask_array=meaning)):
            return name
    raise Deviation("election", "the causal flag with a mask is none of the known meanings")


def _nan_in(operand: str) -> Callable[[_Probe], str]:
    def put(p: _Probe) -> str:
        mask = np.ones((SIZES.Lq, SIZES.Lk), bool)
        mask[:, HIDDEN_KEY] = False
        poisoned = getattr(p.inputs, operand).copy()
        poisoned[:, :, HIDDEN_KEY] = np.nan
        inputs = replace(p.inputs, mask_array=mask, form="dense", **{operand: poisoned})
        got = p.values(inputs)
        if got is None:
            raise Deviation("election", f"a NaN in a masked {operand} raised")
        return "leaks" if np.isnan(got).any() else "blocked"

    return put


def _nan_attended(p: _Probe) -> str:
    value = p.inputs.value.copy()
    value[:, :, HIDDEN_KEY] = np.nan
    got = p.values(replace(p.inputs, value=value))
    if got is None:
        raise Deviation("election", "a NaN in a value raised")
    return (
        "reaches-them" if np.isnan(got).all() else "hidden" if np.isfinite(got).all() else "other"
    )


def _nan_query(p: _Probe) -> str:
    query = p.inputs.query.copy()
    query[:, :, EMPTY_ROW] = np.nan
    got = p.values(replace(p.inputs, query=query))
    if got is None:
        raise Deviation("election", "a NaN in a query raised")
    others = [row for row in range(SIZES.Lq) if row != EMPTY_ROW]
    if not p.matches(got[:, :, others], _rows(p.inputs, others)):
        return "other"
    rows = got[:, :, EMPTY_ROW]
    return "nan" if np.isnan(rows).all() else "zeros" if (rows == 0).all() else "other"


def _value_size(p: _Probe) -> str:
    got = p.values(base_inputs(p.dtype, Dv=5))
    return "raises" if got is None else "accepted"


def _integer_mask(p: _Probe) -> str:
    mask = Boolean("bhqk").dense(SIZES)
    inputs = replace(p.inputs, mask_array=mask.astype(np.int32), form="dense")
    got = p.values(inputs)
    if got is None:
        return "raises"
    if p.matches(got, replace(p.inputs, mask_array=mask)):
        return "cast-to-bool"
    if p.matches(got, replace(p.inputs, bias=mask.astype(np.float64))):
        return "added"
    return "other"


def _subnormal(p: _Probe) -> str:
    quarter = p.dtype.smallest_normal / 4
    # 35 keys: some matrix products flush from a certain size on only.
    key = np.tile(p.inputs.key, (1, 1, 5, 1))
    got = p.values(replace(p.inputs, key=key, value=np.full_like(key, quarter)))
    if got is None:
        raise Deviation("election", "subnormal values raised")
    # A quarter of the smallest normal number has few bits left: weights that do not sum to one
    # exactly move it.
    if (np.abs(got - quarter) <= quarter / 4).all():
        return "kept"
    return "flushed" if (got == 0).all() else "other"


def _overflow(p: _Probe) -> str:
    inputs = replace(p.inputs, query=p.inputs.query * 256, key=p.inputs.key * 256, scale=2.0**-14)
    got = p.values(inputs)
    if got is None:
        raise Deviation("election", "large float16 scores raised")
    if np.isfinite(got).all():
        return "finite"
    return "nan" if np.isnan(got).any() else "other"


_PROBES = {
    "fully-masked-row": _fully_masked,
    "minus-inf-row": _minus_inf,
    "fully-masked-row-gradient": _fully_masked_gradient,
    "nan-in-masked-key-gradient": _nan_gradient_in("key"),
    "nan-in-masked-value-gradient": _nan_gradient_in("value"),
    "no-keys": _no_keys,
    "causal-alignment": _alignment,
    "causal-with-mask": _causal_with_mask,
    "nan-in-masked-key": _nan_in("key"),
    "nan-in-masked-value": _nan_in("value"),
    "nan-in-attended-value": _nan_attended,
    "nan-in-query": _nan_query,
    "value-size": _value_size,
    "integer-mask": _integer_mask,
    "subnormal-output": _subnormal,
    "score-overflow": _overflow,
}
