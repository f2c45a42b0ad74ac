"""The trial: one call of a user function before the cells, so that a fault of every cell is reported
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import (
    ENDS,
    ForbiddenCall,
    Implementation,
    PreparedCall,
    TimeOver,
)
from attention_conformance.suite.judge import leaks, refusal
from attention_conformance.suite.judge.answer import values_of
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.fitting import CallContext, fit
from attention_conformance.suite.judge.settling import settle
from attention_conformance.suite.judge.verdict import WrongAnswer, first_line
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.vocabulary import OPERANDS

SIZES = {
    "b": "B", "h": "H", "g": "Hkv", "q": "Lq", "k": "Lk", "d": "D", "v": "Dv", "x": "Eq", "y": "Ek",
    "z": "Ev", "o": "Eo",
}  # fmt: skip
"""The usual name of the size of an axis, by the letter of the axis."""


def trial(
    implementation: Implementation,
    call_context: CallContext = lambda case: nullcontext(),
    suggestion: Callable[[str, Case], str] = lambda error, case: "",
) -> str | None:
    """Binds a user function by trial calls (`settle`, `fit`). Returns the reason why it cannot be judged
    at all, in one sentence, or None. The reasons:

    - every call raises, other than by a refusal
    - a call takes too long
    - the return value is no dense array of the framework, or has another shape
    - the answer is right only if operands have the other axis order

    `call_context` makes the context of the calls on a case. `suggestion(error, case)` returns the end of
    the sentence about an error. Settings that a call changed are restored, and not reported here.
    """
    with leaks.restored_settings(implementation.backend):
        try:
            settle(implementation, _cases(implementation), call_context)
            fit(implementation, call_context)
        except TimeOver as error:
            return _time_reason(error)
        return _reason(implementation, call_context, suggestion)


def _time_reason(error: TimeOver) -> str:
    advice = "; --cell-timeout gives it longer" if error.kind == "timeout" else ""
    return f"{error}{advice}"


def _reason(
    implementation: Implementation,
    call_context: CallContext,
    suggestion: Callable[[str, Case], str],
) -> str | None:
    """Returns the reason why a user function cannot be judged, from calls on some cases; see `trial`."""
    first_reason: str | None = None
    for case in _cases(implementation):
        try:
            with call_context(case):
                is_final, reason = _attempt(implementation, draw(case), suggestion)
        except TimeOver as error:
            return _time_reason(error)
        if is_final:
            return reason
        first_reason = first_reason or reason
    return first_reason


def _attempt(
    implementation: Implementation, inputs: Inputs, suggestion: Callable[[str, Case], str]
) -> tuple[bool, str | None]:
    """Call once. Returns two values: True if no further case needs a call; and the reason why the
    function cannot be judged, or None."""
    prepared = implementation.prepare(inputs)
    try:
        native = prepared()
    except ENDS:
        raise
    except BaseException as error:
        inside = implementation.backend.raised_inside(error)
        if isinstance(inside, ForbiddenCall) or refusal.refuses(implementation, error):
            return True, None
        if has_two_orders(inputs.case) and _is_right_swapped(implementation, inputs):
            return True, _order_reason(implementation, prepared.axis_order)
        query = prepared.arguments.get("query")
        shape_text = (
            ""
            if query is None
            else f", with query {_shape_text('query', query.shape, prepared, inputs)}"
        )
        line = first_line(error)
        hint = suggestion(line, inputs.case) or getattr(implementation, "without_sizes", "")
        return False, f"called once, on {inputs.case.id}{shape_text}, it raised {line}{hint}"
    return True, _answer_reason(implementation, native, inputs, prepared)


def _cases(implementation: Implementation) -> list[Case]:
    """Returns the supported cases to try: in float32, then in the other dtypes. An unsupported case is
    replaced by the nearest supported one."""
    asks, questions = implementation.operator.asks, implementation.operator.questions
    templates = [(questions.probe or asks.plain).replace("{mask}", "none"), *questions.trials]
    ids = [text.format(dt="f32") for text in templates]
    ids += [templates[-1].format(dt=name) for name in DTYPES if name != "f32"]
    cases: list[Case] = []
    for case in map(Case.parse, ids):
        supported = implementation.unsupported(case) is None
        candidate = case if supported else implementation.nearest_supported(case)
        cases += [candidate] if candidate is not None else []
    return cases


def has_two_orders(case: Case) -> bool:
    """True if query, key and value have four axes each, so that two axis orders are possible."""
    return all(len(case.axes.get(name, "")) == 4 for name in OPERANDS)


def _answer_reason(
    implementation: Implementation, native: Any, inputs: Inputs, prepared: PreparedCall
) -> str | None:
    """Returns the reason why no answer of the function can be judged, from the return value `native` of
    one call; None if answers can be judged."""
    backend = implementation.backend
    has_parts = len(prepared.outputs) > 1 and isinstance(native, tuple) and len(native) > 0
    output = native[0] if has_parts else native
    beginning = f"called once, on {inputs.case.id}"
    if isinstance(output, tuple | list):
        return f"{beginning}, it returned {_parts_text(output)}, expected an array, or {PAIR_TEXT}"
    if not backend.is_array(output):
        full_name = f"{type(output).__module__}.{type(output).__qualname__}"
        is_builtin = type(output).__module__ == "builtins"
        question = "" if is_builtin else ": is it a function of another framework?"
        returned_type = type(output).__name__ if is_builtin else full_name
        return f"{beginning}, it returned {returned_type}, expected an array of {backend.name}{question}"
    try:
        values = values_of(backend, output)
    except WrongAnswer as deviation:
        return f"{beginning}: {deviation.message}"
    two_orders = has_two_orders(inputs.case)
    if two_orders and _is_right(implementation, values, inputs, prepared.axis_order):
        return None
    if two_orders and _is_right_swapped(implementation, inputs):
        return _order_reason(implementation, prepared.axis_order)
    return _shape_reason(implementation, tuple(output.shape), inputs, prepared)


PAIR_TEXT = (
    "the pair of an output and its weights (B, H, Lq, Lk) or its log-sum-exp (B, H, Lq); return one of "
    "these"
)


def _parts_text(parts: Sequence[Any]) -> str:
    """Returns the shapes or types of the elements of a returned tuple or list, as text."""
    shapes = [str(tuple(x.shape)) if hasattr(x, "shape") else type(x).__name__ for x in parts]
    return f"a {type(parts).__name__} of {len(parts)}: {', '.join(shapes)}"


def _shape_reason(
    implementation: Implementation, got: tuple[int, ...], inputs: Inputs, prepared: PreparedCall
) -> str | None:
    """Returns the reason why an output's shape cannot be judged; None if the shape is right."""
    want = inputs.output_shape("output")
    want = (want[0], want[2], want[1], *want[3:]) if prepared.axis_order == "blhd" else want
    if got == want:
        return None
    advice, binding = "", getattr(implementation, "binding", None)
    if binding is not None and got == (want[0], want[2], want[1], *want[3:]):
        claimed = binding.output_axes or prepared.axis_order
        advice = f"; claim output_axes={'bhld' if claimed == 'blhd' else 'blhd'}?"
    return (
        f"called once, on {inputs.case.id}, it returned an array of shape {got}, expected "
        f"{_shape_text('output', want, prepared, inputs)}{advice}"
    )


def _shape_text(name: str, shape: Iterable[int], prepared: PreparedCall, inputs: Inputs) -> str:
    """Returns a shape with the names of its sizes, as "(B, H, Lq, D) = (2, 4, 5, 8)"."""
    axes = inputs.operator.outputs(inputs.case).get(name) or inputs.axes(name)
    names = [SIZES.get(letter, letter) for letter in axes]
    if prepared.axis_order == "blhd":
        names[1:3] = reversed(names[1:3])
    return f"({', '.join(names)}) = {tuple(shape)}"


def _is_right(
    implementation: Implementation, values: np.ndarray, inputs: Inputs, order: str
) -> bool:
    """True if the values of an output in this axis order are right for the inputs."""
    if values.ndim != 4:
        return False
    values = values.swapaxes(1, 2) if order == "blhd" else values
    if values.shape != inputs.full_shape("output"):
        return False
    return Probe(implementation, inputs.dtype).matches(values, inputs)


def _is_right_swapped(implementation: Implementation, inputs: Inputs) -> bool:
    """True if the function is right for operands whose heads and rows are swapped; False if it raises."""
    backend = implementation.backend
    prepared = implementation.prepare(inputs)
    arrays = {}
    for name in OPERANDS:
        values = backend.to_numpy(prepared.arguments[name]).swapaxes(1, 2)
        arrays[name] = backend.array(np.ascontiguousarray(values), inputs.dtype)
    try:
        values = values_of(backend, prepared.call(prepared.arguments | arrays))
    except ENDS:
        raise
    except BaseException:
        return False
    swapped_order = "blhd" if prepared.axis_order == "bhld" else "bhld"
    return _is_right(implementation, values, inputs, swapped_order)


def _order_reason(implementation: Implementation, order: str) -> str:
    """Returns a sentence: the function takes the axis order other than `order`, and how to claim that."""
    orders = {"bhld": "(B, H, L, D)", "blhd": "(B, L, H, D)"}
    native = orders.pop(order)
    (axes,) = orders.values()
    if hasattr(implementation, "binding"):
        return f"it takes axes in the order {axes}, and {native} is claimed; claim the other, or nothing"
    return (
        f"it takes axes in the order {axes}, and the framework's own attention has them in the order "
        f"{native}; exchange them inside the function"
    )
