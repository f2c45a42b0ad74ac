"""The trial: one call of a person's function before the cells, so that what concerns all of them is said
once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from backends.protocol import ENDS, Implementation, PreparedCall
from suite.judge import leaks, refusal
from suite.judge.elections.probe import Probe
from suite.judge.verdict import first_line
from suite.spec.case import Case
from suite.spec.catalogue import gradient_cases, of_operator
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs, draw
from suite.spec.vocabulary import OPERANDS


def trial(implementation: Implementation) -> str | None:
    """Why a function cannot be judged at all, in one sentence; None where it can.

    It cannot be where every call raises, where it returns no array of the framework, and where operands
    in the other order of axes give the right answer and those in the native order do not. A refusal is no
    reason. What a call leaves behind is put back: cells report it.
    """
    settings = leaks.Settings(implementation.backend)
    try:
        # As in a cell: whether a warning is an error is no property of a kernel.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tried(implementation)
    finally:
        settings.restore()
        leaks.died()


def _tried(implementation: Implementation) -> str | None:
    first: str | None = None
    for case in _cases(implementation):
        inputs = draw(case)
        prepared = implementation.prepare(inputs)
        try:
            native = prepared()
        except ENDS:
            raise
        except BaseException as error:
            if refusal.refuses(implementation, error):
                return None
            first = first or f"called once, on {case.id}, it raised {first_line(error)}"
            if has_two_orders(case) and _fits_swapped(implementation, inputs):
                return _wrong_order(prepared.axis_order)
            continue
        return _misfit(implementation, native, inputs, prepared)
    return first


def _cases(implementation: Implementation) -> list[Case]:
    """The cases to try: in float32, then in the other dtypes; those that are declared."""
    operator = implementation.operator
    plain = of_operator(operator, gradient_cases, "smoke")[0].id
    first = operator.probe or plain.replace("/f32/", "/{dt}/")
    texts = [first.replace("{mask}", "none"), *operator.trials]
    ids = [text.format(dt="f32") for text in texts]
    ids += [texts[-1].format(dt=name) for name in DTYPES if name != "f32"]
    cases: list[Case] = []
    for case in map(Case.parse, ids):
        candidate = case if implementation.unsupported(case) is None else implementation.twin(case)
        cases += [candidate] if candidate is not None else []
    return cases


def has_two_orders(case: Case) -> bool:
    """Whether query, key and value have four axes each: heads and rows may stand in two orders."""
    return all(len(case.axes.get(name, "")) == 4 for name in OPERANDS)


def _misfit(
    implementation: Implementation, native: Any, inputs: Inputs, prepared: PreparedCall
) -> str | None:
    """What is wrong with an answer that concerns every cell."""
    backend = implementation.backend
    several = len(prepared.outputs) > 1 and isinstance(native, tuple) and len(native) > 0
    output = native[0] if several else native
    if not backend.is_array(output):
        kind = f"{type(output).__module__}.{type(output).__qualname__}"
        return (
            f"called once, on {inputs.case.id}, it returned {kind}, expected an array of "
            f"{backend.name}: is it a function of another framework?"
        )
    if not has_two_orders(inputs.case) or _right(
        implementation, output, inputs, prepared.axis_order
    ):
        return None
    return _wrong_order(prepared.axis_order) if _fits_swapped(implementation, inputs) else None


def _right(implementation: Implementation, output: Any, inputs: Inputs, order: str) -> bool:
    """Whether an output with axes in an order is that of the inputs."""
    values = implementation.backend.to_numpy(output)
    if values.ndim != 4:
        return False
    values = values.swapaxes(1, 2) if order == "blhd" else values
    if values.shape != inputs.full_shape("output"):
        return False
    return Probe(implementation, inputs.dtype).matches(values, inputs)


def _fits_swapped(implementation: Implementation, inputs: Inputs) -> bool:
    """Whether the function answers rightly where heads and rows of every operand are exchanged."""
    backend = implementation.backend
    prepared = implementation.prepare(inputs)
    arrays = {}
    for name in OPERANDS:
        values = backend.to_numpy(prepared.arguments[name]).swapaxes(1, 2)
        arrays[name] = backend.array(np.ascontiguousarray(values), inputs.dtype)
    try:
        output = prepared.call(prepared.arguments | arrays)
    except ENDS:
        raise
    except BaseException:
        return False
    other = "blhd" if prepared.axis_order == "bhld" else "bhld"
    return backend.is_array(output) and _right(implementation, output, inputs, other)


def _wrong_order(order: str) -> str:
    orders = {"bhld": "(B, H, L, D)", "blhd": "(B, L, H, D)"}
    native = orders.pop(order)
    (own,) = orders.values()
    return (
        f"it takes axes in the order {own}, and the framework's own attention has them in the order "
        f"{native}; exchange them inside the function"
    )
