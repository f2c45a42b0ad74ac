"""Write a script that reproduces a failing cell of plain attention: the arrays, the call, and
`assert_attention_close`, which says what was expected and got."""

from __future__ import annotations

import base64
import re
import textwrap
import zlib

import numpy as np

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.sources import DIALECTS, Dialect
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.derivative import (
    differentiable_call,
    elected_gradient,
    native_cotangent,
)
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.vocabulary import OPERANDS

MOST_LITERALS = 600
"""Greatest size of an array that is written as numbers; larger arrays are compressed."""


class NoScript(Exception):
    """No script can reproduce the failure; the message says why."""


def script(cell: Cell, verdict: Verdict) -> str:
    """Returns the text of the script that reproduces the verdict of a value or gradient cell. Raises
    NoScript."""
    inputs, backend = cell.inputs, cell.implementation.backend
    differentiates = "gradient" in cell.check.needs
    prepared, gradients = (
        differentiable_call(cell) if differentiates else (cell.prepare(inputs), [])
    )
    dialect = DIALECTS.get(backend.name)
    if dialect is None or not prepared.source:
        raise NoScript(f"{cell.implementation} has no source text of its call")
    if backend.has_strides and inputs.axis_order not in ("bhld", prepared.axis_order):
        raise NoScript("operands are views, and the arrays of a script are contiguous")
    if inputs.has_empty_rows and gradients and elected_gradient(cell, inputs) != "nothing":
        raise NoScript("assert_attention_close judges no elected gradients of fully masked rows")
    if inputs.dense_mask is not None and "bias" in gradients:
        raise NoScript("a mask may be merged into the bias, whose gradient then has other axes")
    call = _call(cell, prepared, gradients, dialect)
    body = "\n\n".join([*call, _assertion(cell, prepared, gradients)])
    versions = ", ".join(f"{n} {v}" for n, v in backend.versions.items())
    failure = f"{verdict.kind}: {verdict.message}".replace("\\", "/").replace('"""', "'''")
    imports = "import base64\nimport zlib\n\n" if "zlib." in body else ""
    return (
        f'"""{cell.implementation} ({versions}), {cell.check.name} of\n{cell.case.id}\n\n'
        f'{textwrap.fill(failure, 96, break_long_words=False)}\n"""\n\n{imports}import numpy as np\n'
        f"{dialect.imports}\nfrom attention_conformance import assert_attention_close\n\n"
        f"{prepared.source}\n\n{body}"
    )


def _call(cell: Cell, prepared: PreparedCall, gradients: list[str], dialect: Dialect) -> list[str]:
    """Returns three texts: statements that create the arrays, the definition of the function `call`, and
    statements that call it. `gradients`: the names of the operands whose gradients are computed."""
    backend = cell.implementation.backend
    arrays = {n: a for n, a in prepared.arguments.items() if backend.is_array(a)}
    texts = {n: n if n in arrays else repr(a) for n, a in prepared.arguments.items()}
    if gradients:
        values = native_cotangent(cell.cotangent, cell.inputs, prepared)
        arrays["cotangent"] = backend.array(values, cell.inputs.dtype)
    lines = []
    for name, array in arrays.items():
        values, device = backend.to_numpy(array), backend.device
        dtype = backend.dtype_name(array) if values.dtype.kind == "f" else values.dtype.name
        text = dialect.array.format(values=literal(values), dtype=dtype, device=device)
        lines.append(f"{name} = {text}")
    names = ", ".join([prepared.argument(name) for name in gradients] or OPERANDS)
    passed = [*OPERANDS, *(f"{n}={text}" for n, text in texts.items() if n not in OPERANDS)]
    call = f"\ndef call({names}):\n    return function({', '.join(passed)})\n"
    compiled_text = f"\n\ncall = {prepared.through}" if prepared.through else ""
    run = dialect.gradients.format(names=names) if gradients else f"output = call({names})"
    return ["\n".join(lines), call + compiled_text, run]


def _assertion(cell: Cell, prepared: PreparedCall, gradients: list[str]) -> str:
    """Returns the statement that asserts the output, and the gradients of the operands called
    `gradients`."""
    inputs, rows = cell.inputs, cell.elected_rows(cell.inputs)
    facts = {**inputs.arrays, "mask": inputs.dense_mask, "scale": inputs.scale, **inputs.features}
    keywords = {n: repr(value) for n, value in facts.items() if isinstance(value, float)}
    arrays = {n: a for n, a in facts.items() if isinstance(a, np.ndarray) and n not in OPERANDS}
    keywords |= {n: literal(a) for n, a in arrays.items()}
    keywords |= {name: repr(value) for name, value in {
        "dtype": inputs.dtype.name, "numerics": cell.numerics, "axis_order": prepared.axis_order,
        "empty_rows": rows if rows in ("zeros", "uniform", "nan") else None,
    }.items()}  # fmt: skip
    if gradients:
        keywords |= {"grads": f"dict(zip({gradients}, grads))", "cotangent": "cotangent"}
    keyword_lines = "".join(f"    {name}={expression},\n" for name, expression in keywords.items())
    return f"assert_attention_close(\n    output, {', '.join(OPERANDS)},\n{keyword_lines})\n"


def literal(array: np.ndarray) -> str:
    """Returns a Python expression whose value is exactly this array."""
    shape = array.shape or "()"
    if array.size > MOST_LITERALS:
        data = base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()
        lines = "\n".join(f'    b"{line}"' for line in textwrap.wrap(data, 90))
        read = f"zlib.decompress(base64.b85decode(\n{lines}\n))"
        return f'np.frombuffer({read}, "{array.dtype}").reshape({shape})'
    numbers = re.sub(r"\b(inf|nan)\b", r"np.\1", ", ".join(map(repr, array.ravel().tolist())))
    lines = textwrap.fill(numbers, 96, initial_indent="    ", subsequent_indent="    ")
    numbers = f"\n{lines}\n" if len(numbers) > 60 else numbers
    return f'np.array([{numbers}], "{array.dtype}").reshape({shape})'
