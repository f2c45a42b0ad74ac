"""Judge one call of an attention function by the bound that is derived from its inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_conformance.arrays import as_numpy, dtype_of
from attention_conformance.backends.masks import rank4
from attention_conformance.references.outputs import Outputs
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import HarnessError, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operators.sdpa import SDPA
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import NUMERICS, OPERANDS, VALUES

ALIGNMENTS = {False: None, True: Causal(), "top-left": Causal(), "bottom-right": Causal(True)}
"""By value of `causal`: the mask, or None."""

SECONDS = 5.0
"""Processor seconds for the diagnosis of a wrong answer."""

EMPTY_ROWS = (None, "zeros", "uniform", "nan")
"""The values of `empty_rows`."""


class Expected(NamedTuple):
    """Expected values in float64, and for each element the bound of its rounding error."""

    value: np.ndarray
    bound: np.ndarray


def attention_bound(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool | str = False,
    numerics: str = "fused",
    dtype: str | None = None,
    axis_order: str = "bhld",
    **features: Any,
) -> Expected:
    """Returns the expected output for these arrays, and the bound of a numerics class.

    Arguments are those of `assert_attention_close`. Values and bounds are float64 and have the shape of
    the output. Fully masked rows are 0. The bound is derived in `references/primitives/softmax.py`.
    """
    features |= {"sinks": sinks, "alibi_slopes": alibi_slopes, "softcap": softcap}
    problem = _Problem(
        query, key, value, mask, bias, features, scale, causal, numerics, dtype, axis_order
    )
    expected = problem.oracle(None).expected["output"]
    return Expected(
        problem.in_callers_order(expected.value), problem.in_callers_order(expected.error)
    )


def assert_attention_close(
    actual: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool | str = False,
    lse: Any = None,
    grads: Mapping[str, Any] | None = None,
    cotangent: Any = None,
    numerics: str = "fused",
    dtype: str | None = None,
    axis_order: str = "bhld",
    empty_rows: str | None = None,
    **features: Any,
) -> float:
    """Assert that `actual` is softmax(scale * query @ key^T + bias) @ value within the derived bound.

    Arrays may be of any framework.

    - `query` (B, H, Lq, D), `key` (B, Hkv, Lk, D), `value` (B, Hkv, Lk, Dv), `actual` (B, H, Lq, Dv);
      H is a multiple of Hkv. With `axis_order="blhd"` lengths stand before heads. `actual` has the dtype
      of the operands, `lse` the same or float32 beside 16 bits, and each gradient the dtype of its array,
      as in `check_attention`.
    - `mask`: boolean, True attends; `bias`: added to the scores. Both broadcast to (B, H, Lq, Lk).
    - `sinks` (H,): one more logit per head
    - `alibi_slopes` (H,): the bias is -slope |i + Lk - Lq - j| for row i and key j
    - `scale`: 1 / sqrt(D) by default
    - `causal`: True or "top-left", or "bottom-right"
    - `features`: any other feature of `suite.spec.features` by its name
    - `numerics`: the class of the bound, "exact", "fused", "eager", "stepwise", "working" or "single"
      (`suite.judge.tolerance`)
    - `dtype`: the dtype of the values if NumPy lacks it; by default the dtype of the query
    - `empty_rows`: expected fully masked rows, "zeros", "uniform" or "nan"; None does not judge them
    - `lse` (B, H, Lq): judged if given; not together with sinks
    - `grads`: gradients by array name (query, key, value, bias, sinks), judged if given;
      `cotangent` is the gradient of the loss with respect to the output

    Returns the largest |error| / bound. Raises AssertionError with the worst element, and with the known
    fault that the outputs behave like, if there is one; ValueError or TypeError for invalid arguments.
    """
    __tracebackhide__ = True
    features |= {"sinks": sinks, "alibi_slopes": alibi_slopes, "softcap": softcap}
    problem = _Problem(
        query, key, value, mask, bias, features, scale, causal, numerics, dtype, axis_order
    )
    if empty_rows not in EMPTY_ROWS:
        raise ValueError(f"unknown empty_rows {empty_rows!r}; valid: {EMPTY_ROWS}")
    problem.check_dtype("actual", actual, query)
    if lse is not None:
        problem.check_dtype("lse", lse, np.empty(0, problem.dtype.widened.long_name))
    arrays = {"query": query, "key": key, "value": value, "bias": bias} | features
    for name, gradient in (grads or {}).items():
        problem.check_dtype(f"gradient of {name}", gradient, arrays.get(name))
    outputs = {"output": problem.read(actual, "actual")}
    if lse is not None:
        outputs["lse"] = as_numpy(lse, "lse")
    try:
        oracle = problem.oracle(empty_rows, lse is not None)
        for name, array in outputs.items():
            what = "actual" if name == "output" else name
            _check_shape(what, array, oracle.expected[name].value.shape)
        ratio = oracle.judge(outputs).error_ratio or 0.0
        if grads:
            ratio = max(ratio, problem.judge_gradients(grads, cotangent, empty_rows))
    except WrongAnswer as deviation:
        raise AssertionError(deviation.message + problem.diagnosis(outputs, oracle)) from None
    except HarnessError as error:
        raise ValueError(f"these arrays have no answer to judge by: {error}") from error
    return ratio


class _Problem:
    """The attention problem of a caller's arrays."""

    def __init__(
        self, query: Any, key: Any, value: Any, mask: Any, bias: Any, features: Mapping[str, Any],
        scale: float | None, causal: bool | str, numerics: str, dtype: str | None, axis_order: str,
    ) -> None:  # fmt: skip
        if numerics not in NUMERICS:
            raise ValueError(f"unknown numerics {numerics!r}; valid: {', '.join(NUMERICS)}")
        if axis_order not in ("bhld", "blhd"):
            raise ValueError(f"axis_order is 'bhld' or 'blhd', got {axis_order!r}")
        if causal not in ALIGNMENTS:
            raise ValueError(f"causal is True, False, 'top-left' or 'bottom-right', got {causal!r}")
        self.lengths_first = axis_order == "blhd"
        operands = {"query": query, "key": key, "value": value}
        dtypes = {name: dtype_of(array, dtype, name) for name, array in operands.items()}
        if len(set(dtypes.values())) > 1:
            names_of_dtypes = ", ".join(f"{name} {fmt.long_name}" for name, fmt in dtypes.items())
            raise ValueError(f"query, key and value have one dtype, got {names_of_dtypes}")
        self.dtype: DType = dtypes["query"]
        self.storage_dtypes = {_dtype_name(query), self.dtype.long_name} if dtype else set()
        self.rounding = Rounding(numerics, flushes=True)
        arrays = {name: self.read(array, name) for name, array in operands.items()}
        sizes = _sizes(**arrays)
        if bias is not None:
            arrays["bias"] = _broadcast("bias", as_numpy(bias, "bias"), sizes)
        options: dict[str, Any] = {"scale": None if scale is None else _number("scale", scale)}
        for name, setting in features.items():
            if name not in FEATURES or FEATURES[name].option is None:
                raise TypeError(f"unknown argument {name!r}; features: {', '.join(FEATURES)}")
            if setting is not None and FEATURES[name].axes:
                arrays[name] = as_numpy(setting, name)
                shape = tuple(sizes.letters[letter] for letter in FEATURES[name].axes)
                _check_shape(name, arrays[name], shape)
                options[name] = True
            elif setting is not None:
                options[name] = _number(name, setting)
            if not (bias is None or setting is None) and FEATURES[name].reduction.to == "bias":
                raise ValueError(f"expected bias or {name}, got both: give one of the two")
        case = Case.of(SDPA, sizes, self.dtype, form="dense", **options)
        self.inputs = Inputs(case, arrays, sizes, mask_array=_mask(mask, causal, sizes))
        self.causal_flag = None if mask is not None else ALIGNMENTS[causal]

    def read(self, array: Any, what: str) -> np.ndarray:
        """Returns an operand or an output as (B, H, L, D), float64. `what` names it in messages. Raises
        ValueError unless it has four axes."""
        values = as_numpy(array, what)
        if values.ndim != 4:
            raise ValueError(f"{what} has four axes, batch and heads included; got {values.shape}")
        return values.swapaxes(1, 2) if self.lengths_first else values

    def check_dtype(self, what: str, array: Any, like: Any) -> None:
        """Raise AssertionError if an output or a gradient has another dtype than the array `like`."""
        name, expected = _dtype_name(array), _dtype_name(like)
        if name and expected and name not in {expected, *self.storage_dtypes}:
            raise AssertionError(
                f"{what} has dtype {name}, expected {expected}: the output has the dtype of query, key "
                "and value, lse the same or float32 beside 16 bits, and a gradient the dtype of its array"
            )

    def in_callers_order(self, array: np.ndarray) -> np.ndarray:
        """Returns an output in the caller's axis order."""
        array = np.array(array, np.float64)  # a copy: the oracle keeps its own
        return array.swapaxes(1, 2) if self.lengths_first else array

    def oracle(self, empty_rows: str | None, lse: bool = False) -> Oracle:
        """Returns the expected outputs. `empty_rows`: what fully masked rows must be, "zeros", "uniform"
        or "nan"; None does not judge them."""
        inputs = self.inputs.replace(lse=True) if lse else self.inputs
        return Oracle.forward(inputs, self.rounding, empty_rows or "unmasked")

    def diagnosis(self, answer: Mapping[str, np.ndarray], oracle: Oracle) -> str:
        """Returns sentences on the fault of wrong outputs, as lines for a message; "" if the fault is
        unknown."""
        from attention_conformance.suite.checks import all_checks
        from attention_conformance.suite.judge.diagnosis.catalogue import explained_call
        from attention_conformance.suite.judge.diagnosis.instrument import deadline

        forms = [self.inputs]
        if self.causal_flag is not None:
            forms.append(self.inputs.replace(mask_array=None, mask=self.causal_flag, form="flag"))
        check = all_checks()[VALUES]
        try:
            diagnoses = explained_call(check, forms, answer, oracle, deadline(SECONDS))
        except Exception:
            return ""
        lines = [
            f"\n{found.sentence}" + (f"\n  in code: {found.hint}" if found.hint else "")
            for found in diagnoses
        ]
        return "".join(lines)

    def judge_gradients(self, grads: Mapping[str, Any], cotangent: Any, rows: str | None) -> float:
        """Returns the largest |error| / bound of the gradients. Raises WrongAnswer for a wrong gradient,
        and ValueError for invalid arguments."""
        if cotangent is None:
            raise ValueError(
                "grads need the cotangent: the gradient of the loss with respect to the output"
            )
        names = [n for n in self.inputs.arrays if n not in FEATURES or not FEATURES[n].constant]
        if unknown := sorted(set(grads) - set(names)):
            raise ValueError(f"no gradient of {unknown[0]}: there are {', '.join(names)}")
        if self.inputs.has_empty_rows and rows != "zeros":
            raise ValueError(
                "gradients depend on the values of fully masked rows: only empty_rows='zeros' is judged"
            )
        shape = (*self.inputs.query.shape[:3], self.inputs.value.shape[3])
        values = self.read(cotangent, "cotangent")
        _check_shape("cotangent", values, shape)
        outputs: Outputs = Oracle.vjp(self.inputs, values, self.rounding).outputs
        largest_ratio = 0.0
        for name, array in grads.items():
            expected, what = outputs.arrays[name], f"gradient of {name}"
            is_operand = name in OPERANDS
            gradient = self.read(array, what) if is_operand else as_numpy(array, what)
            if name == "bias" and gradient.size == expected.value.size:
                gradient = gradient.reshape(
                    expected.value.shape
                )  # leading axes of size 1 may be absent
            _check_shape(what, gradient, expected.value.shape)
            judged = np.ones(gradient.shape, bool)
            _, measured, deviation = against_oracle(
                gradient, expected.value, expected.error, judged, self.dtype, self.rounding.numerics,
                f"{what}, ",
            )  # fmt: skip
            if deviation is not None:
                raise deviation
            largest_ratio = max(largest_ratio, measured.error_ratio or 0.0)
        return largest_ratio


def _sizes(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Sizes:
    """Returns the sizes of the operands. Raises ValueError if their shapes do not fit."""
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = key.shape[1], key.shape[2], value.shape[3]
    _check_shape("key", key, (B, Hkv, Lk, D))
    _check_shape("value", value, (B, Hkv, Lk, Dv))
    if Hkv < 1 or H % Hkv:
        raise ValueError(f"the query's heads are a multiple of the key's, got {H} and {Hkv}")
    return Sizes(B, H, Hkv, Lq, Lk, D, Dv)


def _mask(mask: Any, causal: bool | str, sizes: Sizes) -> np.ndarray | None:
    """Returns the boolean mask (True attends), combined with the causal mask; None without both. Raises
    ValueError for a mask that is not boolean."""
    allowed = None
    if mask is not None:
        allowed = as_numpy(mask, "mask")
        if allowed.dtype.kind != "b":
            raise ValueError("mask is boolean, True attends; pass scores to add as bias")
        allowed = _broadcast("mask", allowed, sizes)
    causal_mask = ALIGNMENTS[causal]
    if causal_mask is None:
        return allowed
    triangle = causal_mask.dense(sizes, 0)
    return triangle if allowed is None else allowed & triangle


def _broadcast(what: str, array: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Returns the array with four axes. Raises ValueError if it does not broadcast to (B, H, Lq, Lk)."""
    shape = (sizes.B, sizes.H, sizes.Lq, sizes.Lk)
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{what} broadcasts to {shape}, got {array.shape}") from None
    return rank4(array)


def _dtype_name(array: Any) -> str:
    """Returns the name of an array's dtype in any framework; "" for a list or a number."""
    return (re.findall(r"\w+", str(getattr(array, "dtype", ""))) or [""])[-1]


def _number(what: str, value: Any) -> float:
    """Returns the value as a float. Raises ValueError if it is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what} is a finite number, got {value!r}")
    return number


def _check_shape(what: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ValueError if the array has another shape."""
    if array.shape != tuple(shape):
        raise ValueError(f"{what} has shape {array.shape}, expected {tuple(shape)}")
