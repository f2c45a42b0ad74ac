"""Write a script that reproduces a failing cell without this project.

The script has the inputs, the framework's call, and an assertion with the derived bound at the worst
element. The expected value is computed by NumPy, or for a layer copied from the reference.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends.memory import AXES
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.sources import Dialect, compiled_source
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.derivative import (
    asked_of,
    elected_gradient,
    mode_of,
    native_cotangent,
    vjp,
)
from attention_conformance.suite.judge.oracle import UNJUDGED, Oracle
from attention_conformance.suite.judge.tolerance import ratios
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.definition import arrays_text, definition
from attention_conformance.suite.run.literals import IMPORTS, literal
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.vocabulary import OPERANDS


class NoScript(Exception):
    """A script cannot show the failure; the message says why."""


@dataclass
class _Worst:
    """The element to assert: the array `what`, the index `at`, the expected value and the bound."""

    what: str
    at: tuple[int, ...]
    want: float
    bound: float


def script(cell: Cell, verdict: Verdict) -> str:
    """The script that reproduces the verdict of a value or gradient cell.

    Raises NoScript if the implementation or its backend has no source text, or if every single element
    is within its bound.
    """
    backend, inputs = cell.implementation.backend, cell.inputs
    dialect = backend.dialect
    if dialect is None:
        raise NoScript(f"{backend.name} has no dialect, which a script needs")
    gradients = _differentiates(cell)
    prepared = asked_of(cell)[0] if gradients else cell.prepare(inputs)
    if not prepared.source:
        raise NoScript(f"{cell.implementation} has no source text of its call")
    worst = _worst(cell) if verdict.kind in ("value", "non-finite") else None
    if worst is None and verdict.kind in ("value", "non-finite"):
        raise NoScript("every single element is within its bound: the error is systematic")
    parts = [_head(cell, verdict), "import numpy as np\n" + dialect.imports]
    if inputs.operator.is_layer:
        if worst is not None:
            parts.append(f"want = {{{worst.at}: {worst.want!r}}}  # the reference, in float64")
        parts.append(_layer_call(cell, prepared, dialect))
    else:
        parts.append(arrays_text(inputs, cell.cotangent if gradients else None))
        if worst is not None:
            uniform = cell.rows(inputs) == "uniform"
            parts.append(definition(inputs, worst.what, worst.at, uniform))
        parts.append(_call(cell, prepared, dialect))
    parts.append(_assertion(cell, prepared, worst, dialect))
    return re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(parts)) + "\n"


def _differentiates(cell: Cell) -> bool:
    return "gradient" in cell.check.needs


def _head(cell: Cell, verdict: Verdict) -> str:
    versions = ", ".join(f"{n} {v}" for n, v in cell.implementation.backend.versions.items())
    message = verdict.message.replace("\\", "/").replace('"""', "'''")
    said = textwrap.fill(f"{verdict.kind}: {message}", 96, break_long_words=False)
    return f'"""{cell.implementation} ({versions}), {cell.check.name} of\n{cell.case.id}\n\n{said}\n"""'


def _worst(cell: Cell) -> _Worst | None:
    """The element with the greatest ratio of error to bound; None if all elements are within bounds."""
    inputs = cell.inputs
    beyond: list[tuple[float, _Worst]] = []

    def add(
        what: str, got: np.ndarray, want: np.ndarray, limit: np.ndarray, judged: np.ndarray
    ) -> None:
        with np.errstate(all="ignore"):
            ratio = ratios(np.where(judged, got - want, 0.0), limit)
        ratio = np.where(np.isnan(ratio) & judged, np.inf, ratio)
        if ratio.size and ratio.max() > 1:
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            worst = _Worst(what, at, float(want[at]), float(limit[at]))
            beyond.append((float(ratio[at]), worst))

    gradients: dict[str, np.ndarray] = {}
    if _differentiates(cell):
        answer, gradients = vjp(cell)
    else:
        answer = cell.run()
    expected = cell.oracle(inputs).expected
    for name, got in answer.arrays.items():
        axes = inputs.operator.outputs(inputs.case)[name]
        fully_masked_rows = np.broadcast_to(
            inputs.rows_along(inputs.fully_masked_rows, axes), got.shape
        )
        left_out = fully_masked_rows & (name != "output" or cell.rows(inputs) in UNJUDGED)
        shape = inputs.output_shape(name) if inputs.squeezed else got.shape
        arrays = (got, expected[name].value, expected[name].error, ~left_out)
        add(name, *(array.reshape(shape) for array in arrays))
    if gradients:
        if elected_gradient(cell, inputs) == "nan":
            raise NoScript("fully masked rows have NaN gradients, as elected")
        of = Oracle.vjp(inputs, cell.cotangent, cell.rounding, mode_of(cell, inputs)).expected
        for name, got in gradients.items():
            want, limit = of[name].value.reshape(got.shape), of[name].error.reshape(got.shape)
            add(name, got, want, limit, np.ones(got.shape, bool))
    return max(beyond, key=lambda pair: pair[0])[1] if beyond else None


def _call(cell: Cell, prepared: PreparedCall, dialect: Dialect) -> str:
    """Lines that make the arguments as the framework's arrays, and the call."""
    inputs, backend = cell.inputs, cell.implementation.backend
    fmt = inputs.dtype
    kept = {"mask": inputs.dense_mask, "bias": inputs.bias}
    kept |= {name: inputs.arrays.get(name) for name in ARRAYS}
    lines, own = [], []
    for name, value in prepared.arguments.items():
        if not backend.is_array(value):
            lines.append(f"{name} = {value!r}")
        elif name in OPERANDS:
            order = prepared.axis_order
            own.append(f"{name} = {_operand(name, order, inputs.axis_order, backend, fmt)}")
        else:
            values = backend.to_numpy(value)
            lines.append(f"{name} = {_argument(name, values, kept, dialect, fmt)}")
    if _differentiates(cell):
        own.append(f"cotangent = {_cotangent(prepared.axis_order, backend, fmt)}")
    return "\n".join([*own, *lines, _source(cell, prepared, dialect)])


def _layer_call(cell: Cell, prepared: PreparedCall, dialect: Dialect) -> str:
    """Lines that write out the arguments of a layer's call, and the call."""
    inputs, backend = cell.inputs, cell.implementation.backend
    lines, names = [IMPORTS], dict[int, str]()
    for name, value in prepared.arguments.items():
        if not backend.is_array(value):
            lines.append(f"{name} = {value!r}")
        elif id(value) in names:
            lines.append(f"{name} = {names[id(value)]}")
        else:
            names[id(value)] = name
            lines.append(f"{name} = {_array(backend.to_numpy(value), dialect, inputs.dtype)}")
    if _differentiates(cell):
        values = native_cotangent(cell.cotangent, inputs, prepared)
        lines.append(f"cotangent = {_array(values, dialect, inputs.dtype)}")
    return "\n".join([*lines, _source(cell, prepared, dialect)])


def _source(cell: Cell, prepared: PreparedCall, dialect: Dialect) -> str:
    arrays = [n for n, a in prepared.arguments.items() if cell.implementation.backend.is_array(a)]
    source = compiled_source(prepared.source, prepared.through, arrays)
    if not _differentiates(cell):
        return source
    operands = [prepared.argument(name) for name in asked_of(cell)[1]]
    names = ", ".join(operands) + ("," if len(operands) == 1 else "")
    indented = textwrap.indent(source, "    ")
    return dialect.gradients.format(names=names, source=source, indented=indented)


def _operand(name: str, axis_order: str, memory: str, backend: Backend, fmt: DType) -> str:
    # In frameworks without strides an axis order is the order of the shape.
    assert backend.dialect is not None
    order = AXES[memory if backend.memory.has_strides else axis_order]
    turned = name if order == (0, 1, 2, 3) else f"{name}.transpose{order}"
    array = backend.dialect.array.format(values=turned, dtype=fmt.long_name, carrier=fmt.carrier)
    axes = tuple(order.index(axis) for axis in AXES[axis_order])
    if axes == (0, 1, 2, 3):
        return array
    return backend.dialect.transpose.format(array=array, order=axes)


def _cotangent(axis_order: str, backend: Backend, fmt: DType) -> str:
    assert backend.dialect is not None
    turned = AXES[axis_order]
    if not backend.memory.has_strides:
        values = "cotangent" if axis_order == "bhld" else f"cotangent.transpose{turned}"
        return backend.dialect.array.format(values=values, dtype=fmt.long_name, carrier=fmt.carrier)
    reversed_ = turned[::-1]
    array = backend.dialect.array.format(
        values=f"cotangent.transpose{reversed_}", dtype=fmt.long_name, carrier=fmt.carrier
    )
    return backend.dialect.transpose.format(array=array, order=(3, 2, 1, 0))


def _argument(
    name: str, values: np.ndarray, kept: dict[str, np.ndarray | None], dialect: Dialect, fmt: DType
) -> str:
    """The text of an array argument: the name of an equal array in the script, else the values."""
    text = ""
    for own, array in kept.items():
        if array is None or array.size != values.size or array.dtype != values.dtype:
            continue
        if np.array_equal(array.ravel(), values.ravel(), equal_nan=array.dtype != bool):
            text = own if array.shape == values.shape else f"{own}.reshape{values.shape}"
    mask, bias = kept["mask"], kept["bias"]
    if not text and values.dtype.kind == "f" and mask is not None:
        added: np.ndarray | float = 0.0 if bias is None else bias
        merged = np.where(mask, added, -np.inf)
        if merged.shape == values.shape and np.array_equal(merged, values):
            text = f"np.where(mask, {'0.0' if bias is None else 'bias'}, -np.inf)"
    return _formatted(text or literal(values), values, dialect, fmt)


def _array(values: np.ndarray, dialect: Dialect, fmt: DType) -> str:
    return _formatted(literal(values), values, dialect, fmt)


def _formatted(text: str, values: np.ndarray, dialect: Dialect, fmt: DType) -> str:
    template = dialect.array if values.dtype.kind == "f" else dialect.plain
    return template.format(values=text, dtype=fmt.long_name, carrier=fmt.carrier)


def _assertion(cell: Cell, prepared: PreparedCall, worst: _Worst | None, dialect: Dialect) -> str:
    inputs = cell.inputs
    blhd = prepared.axis_order == "blhd"
    if worst is None:
        shape: tuple[Any, ...] = inputs.output_shape("output")
        shape = (shape[0], shape[2], shape[1], *shape[3:]) if blhd else shape
        lines = [f"assert tuple(output.shape) == {shape}", "assert output.dtype == query.dtype"]
        if _differentiates(cell):
            names = [prepared.argument(name) for name in asked_of(cell)[1]]
            lines += [
                f"for name, gradient in zip({names}, gradients):",
                '    assert gradient is not None, f"{name} got no gradient"',
            ]
        return "\n".join(lines)
    outputs = inputs.operator.outputs(inputs.case)
    if worst.what in outputs and worst.what != "output":
        raise NoScript(f"{worst.what} is wrong, but a script returns only the output")
    turned = blhd and (worst.what == "output" or worst.what in OPERANDS)
    swap = ".swapaxes(1, 2)" if turned else ""
    if worst.what == "output":
        got, what = dialect.values.format(array="output"), "output"
    else:
        index = asked_of(cell)[1].index(worst.what)
        got = dialect.values.format(array=f"gradients[{index}]")
        what = f"the gradient of the {worst.what}"
    return (
        f"got = {got}{swap}\n"
        f"at, bound = {worst.at}, {worst.bound!r}  # the bound of rounding errors\n"
        f'print("{what} at", at, "is", float(got[at]), "by definition", float(want[at]))\n'
        "error = abs(got[at] - want[at])\n"
        'assert error <= bound, f"{what} at {at}: error {error}, bound {bound}"'.replace(
            "{what}", what
        )
    )
