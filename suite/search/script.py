"""A failing cell as a script that needs nothing of this project.

It holds the inputs, attention by its definition in NumPy, the framework's own call, and an assertion
with the derived bound, at the element that is furthest beyond it.
"""

from __future__ import annotations

import base64
import inspect
import re
import textwrap
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from backends.base import Prepared

from backends.sources import Dialect
from suite.judge.cell import Cell
from suite.judge.gradients import GradientCell
from suite.judge.tolerance import ratios
from suite.judge.verdict import Verdict
from suite.spec.dtypes import DType
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import DRAWS, generator

LITERALS = 600
"""The most numbers that are written out; beyond, inputs are drawn or packed."""

MEMORY = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3), "bhdl": (0, 1, 3, 2)}


class NoScript(Exception):
    """The failure cannot be shown without this project; the message says why."""


@dataclass
class _Worst:
    """The element to assert: of the output, or of a gradient; the bound there and what was judged."""

    what: str
    at: tuple[int, ...]
    bound: float


def script(cell: Cell, verdict: Verdict) -> str:
    """The script that shows the verdict of a value or gradient cell.

    Raises NoScript where the implementation or its backend gives no source, and for a failure that no
    single element shows.
    """
    backend, inputs = cell.implementation.backend, cell.inputs
    assert isinstance(cell.case, Case)
    if backend.dialect is None:
        raise NoScript(f"{backend.name} has no words for a script")
    prepared = cell.prepare(inputs)
    if not prepared.source:
        raise NoScript(f"{cell.implementation} gives no source of its call")
    gradients = isinstance(cell, GradientCell)
    worst = _worst(cell) if verdict.kind in ("value", "non-finite") else None
    if worst is None and verdict.kind in ("value", "non-finite"):
        raise NoScript("no single element shows it: the error is systematic")
    parts = [
        _head(cell, verdict),
        "import numpy as np\n" + backend.dialect.imports,
        _given(cell),
    ]
    if worst is not None:
        parts.append(_definition(inputs, gradients, _uniform(cell)))
        operands = "query, key, value, cotangent" if gradients else "query, key, value"
        of = "" if not gradients else "[0]" if worst.what == "output" else f"[1][{worst.what!r}]"
        parts.append(f"want = definition({operands}){of}")
    parts += [_call(cell, prepared, backend.dialect), _assertion(cell, worst, backend.dialect)]
    return re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(parts)) + "\n"


def _head(cell: Cell, verdict: Verdict) -> str:
    versions = ", ".join(f"{n} {v}" for n, v in cell.implementation.backend.versions.items())
    message = verdict.message.replace("\\", "/").replace('"""', "'''")
    said = textwrap.fill(f"{verdict.kind}: {message}", 96, break_long_words=False)
    return f'"""{cell.implementation} ({versions}), {cell.check.name} of\n{cell.case.id}\n\n{said}\n"""'


def _uniform(cell: Cell) -> bool:
    return cell.empty_rows(cell.inputs) == "uniform"


def _worst(cell: Cell) -> _Worst | None:
    """The element furthest beyond its bound; None where every element keeps it."""
    inputs = cell.inputs
    found: list[tuple[float, _Worst]] = []

    def add(
        what: str, got: np.ndarray, want: np.ndarray, limit: np.ndarray, judged: np.ndarray
    ) -> None:
        with np.errstate(all="ignore"):
            ratio = ratios(np.where(judged, got - want, 0.0), limit)
        ratio = np.where(np.isnan(ratio) & judged, np.inf, ratio)
        if ratio.size and ratio.max() > 1:
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            found.append((float(ratio[at]), _Worst(what, at, float(limit[at]))))

    elected = cell.empty_rows(inputs)
    oracle = cell.oracle(inputs)
    if isinstance(cell, GradientCell):
        answer, gradients = cell.differentiate(inputs, cell.operands)
    else:
        answer, gradients = cell.run(), {}
    empty = ~np.asarray(inputs.attends.any(-1))[..., None]
    judged = np.broadcast_to(~empty | (elected not in ("nan", "unmasked")), answer.values.shape)
    add("output", answer.values, oracle.reference.output, cell.bound(inputs), judged)
    if gradients:
        assert isinstance(cell, GradientCell)
        if cell.empty_gradients(inputs) == "nan" and inputs.has_empty_rows:
            raise NoScript("rows without keys make NaN of some gradients, as is elected")
        of = cell.gradient_oracle(inputs)
        for name, got in gradients.items():
            want = of.gradient(name, got.shape)
            add(name, got, want.value, want.error, np.ones(got.shape, bool))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _given(cell: Cell) -> str:
    """The inputs as NumPy arrays, float64 and boolean, under the names of `Inputs`."""
    inputs, case = cell.inputs, cell.case
    assert isinstance(case, Case)
    arrays: dict[str, np.ndarray | None] = {
        "query": inputs.query, "key": inputs.key, "value": inputs.value,
        "bias": inputs.bias, "mask": inputs.dense_mask,
    }  # fmt: skip
    if isinstance(cell, GradientCell):
        arrays["cotangent"] = cell.cotangent
    drawn = ""
    given: set[str] = set()
    if sum(a.size for a in arrays.values() if a is not None) > LITERALS:
        drawn, given = _drawn(case, arrays, cell.seed)
    left = [name for name in arrays if name not in given]
    return "\n".join([drawn, *(f"{name} = {literal(arrays[name])}" for name in left)]).strip()


def literal(array: np.ndarray | None) -> str:
    """An expression for the array: its numbers where they are few, else its bytes, packed."""
    if array is None:
        return "None"
    if array.dtype == bool:
        if array.size > LITERALS:
            data = _packed(np.packbits(array).tobytes())
            return (
                f"np.unpackbits(np.frombuffer({data}, np.uint8), count={array.size})"
                f".astype(bool).reshape{_shape(array)}"
            )
        numbers = ", ".join(str(int(x)) for x in array.ravel())
        return f"{_listed(numbers)}.astype(bool).reshape{_shape(array)}"
    if array.size > LITERALS:
        data = _packed(np.ascontiguousarray(array, "<f8").tobytes())
        return f'np.frombuffer({data}, "<f8").reshape{_shape(array)}'
    if array.dtype.kind == "i":
        numbers = ", ".join(str(int(x)) for x in array.ravel())
        return f"{_listed(numbers)}.astype(np.{array.dtype.name}).reshape{_shape(array)}"
    numbers = ", ".join(repr(float(x)) for x in array.ravel())
    numbers = re.sub(r"\b(inf|nan)\b", r"np.\1", numbers)
    return f"{_listed(numbers, ', dtype=float')}.reshape{_shape(array)}"


def _listed(numbers: str, more: str = "") -> str:
    if len(numbers) < 60:
        return f"np.array([{numbers}]{more})"
    lines = textwrap.fill(numbers, 96, initial_indent="    ", subsequent_indent="    ")
    return f"np.array([\n{lines}\n]{more})"


def _packed(data: bytes) -> str:
    text = base64.b85encode(zlib.compress(data, 9)).decode()
    lines = "\n".join(f'    b"{line}"' for line in textwrap.wrap(text, 90))
    return f"zlib.decompress(base64.b85decode(\n{lines}\n))"


def _shape(array: np.ndarray) -> str:
    return str(array.shape)


ROUNDED = {
    "f64": "return x",
    "f32": "return x.astype(np.float32).astype(np.float64)",
    "f16": "return x.astype(np.float16).astype(np.float64)",
    "bf16": """exponent = np.maximum(np.frexp(x)[1] - 1, -126) - 7
    return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)""",
}


def _drawn(case: Case, arrays: dict[str, np.ndarray | None], seed: int) -> tuple[str, set[str]]:
    """Lines that draw the inputs as the case's recipe does, and the names they give.

    Where a draw would give other bytes they give none, and whoever calls packs the arrays.
    """
    s, p = case.problem.sizes, case.problem
    recipes = dict.fromkeys([DRAWS["normal"], DRAWS[case.recipe]])
    functions = "\n\n".join(
        re.sub(r"\s*# type: ignore.*", "", inspect.getsource(f)).rstrip() for f in recipes
    )
    functions = re.sub(r"\(\s*rng[^)]*\)( -> [^:]*)?:", "(rng, s, fmt):", functions)
    lines = [
        "import base64, zlib\nfrom types import SimpleNamespace",
        f'\ndef rounded(x):\n    """The nearest {case.dtype.long_name}, as float64."""\n    '
        f"{ROUNDED[case.dtype.name]}",
        f"\n{functions}",
        f"\n{_generator(case.id, seed)}",
        f"s = SimpleNamespace({', '.join(f'{n}={v}' for n, v in vars(s).items())})",
        f"fmt = SimpleNamespace(smallest_normal={case.dtype.smallest_normal!r})",
        f"query, key, value = (rounded(x) for x in {DRAWS[case.recipe].__name__}(rng, s, fmt))",
    ]
    shapes = {
        "qk": (s.Lq, s.Lk), "1hqk": (1, s.H, s.Lq, s.Lk), "b1qk": (s.B, 1, s.Lq, s.Lk),
        "bhqk": (s.B, s.H, s.Lq, s.Lk),
    }  # fmt: skip
    if p.bias in shapes:
        lines.append(f"bias = rounded(rng.standard_normal({shapes[p.bias]}))")
    if "cotangent" in arrays:
        shape = (s.B, s.H, s.Lq, s.Dv)
        lines.append(_generator(f"{case.id}/cotangent", seed))
        lines.append(f"cotangent = rounded(rng.standard_normal({shape}))")
    found: dict[str, Any] = {"np": np}
    text = "\n".join(lines)
    with np.errstate(all="ignore"):
        exec(compile(text, "<drawn>", "exec"), found)
    for name, array in arrays.items():
        if name in found and not (array is not None and found[name].tobytes() == array.tobytes()):
            return "import base64, zlib", set()
    return text, set(arrays) & set(found)


def _generator(name: str, seed: int) -> str:
    state = generator(name, seed)
    number = int.from_bytes(_digest(name, seed), "little")
    again = np.random.Generator(np.random.PCG64(number))
    assert again.bit_generator.state == state.bit_generator.state
    return f"rng = np.random.Generator(np.random.PCG64({number}))"


def _digest(name: str, seed: int) -> bytes:
    import hashlib

    return hashlib.sha256(f"{name}#{seed}".encode()).digest()[:16]


def _definition(inputs: Inputs, gradients: bool, uniform: bool) -> str:
    """Attention by its definition, the steps of this problem alone, and where asked its gradients."""
    work = "np.longdouble" if inputs.dtype.name == "f64" else "np.float64"
    s = inputs.sizes
    operands = "query, key, value, cotangent" if gradients else "query, key, value"
    scale = f"1 / np.sqrt({work}({s.D}))" if inputs.scale is None else repr(inputs.scale)
    lines = [
        f"def definition({operands}):",
        f'    """{"The output and its gradients" if gradients else "The output"}, computed in {work}."""',
        f"    {operands} = (x.astype({work}) for x in ({operands}))",
        f"    scale, group = {scale}, {s.H // s.Hkv}",
        "    k, v = np.repeat(key, group, 1), np.repeat(value, group, 1)",
        "    scores = scale * (query @ k.swapaxes(-1, -2))",
    ]
    if inputs.softcap is not None:
        lines += [
            f"    capped = np.tanh(scores / {inputs.softcap!r})",
            f"    scores = {inputs.softcap!r} * capped",
        ]
    if inputs.bias is not None:
        lines.append("    scores = scores + bias")
    if inputs.dense_mask is not None:
        lines.append("    scores = np.where(mask, scores, -np.inf)  # True attends")
    hides = inputs.dense_mask is not None or inputs.bias_kind == "inf"
    if hides:
        lines += [
            "    top = scores.max(-1, keepdims=True, initial=-np.inf)",
            "    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))",
            "    total = weights.sum(-1, keepdims=True)",
            "    weights = weights / np.where(total == 0, 1, total)  # no keys: zeros",
        ]
    else:
        lines += [
            "    weights = np.exp(scores - scores.max(-1, keepdims=True))",
            "    weights = weights / weights.sum(-1, keepdims=True)",
        ]
    if uniform:
        lines.append(f"    weights = np.where(total == 0, 1 / {work}({s.Lk}), weights)  # no keys")
    if not gradients:
        return "\n\n" + "\n".join([*lines, "    return weights @ v"]) + "\n"
    lines += [
        "    output, back = weights @ v, cotangent @ v.swapaxes(-1, -2)",
        "    dscores = weights * (back - (weights * back).sum(-1, keepdims=True))",
    ]
    if uniform:
        lines.append("    dscores = np.where(total == 0, 0, dscores)")
    if inputs.bias is not None:
        full = (1,) * (4 - inputs.bias.ndim) + inputs.bias.shape
        whole = (s.B, s.H, s.Lq, s.Lk)
        axes = tuple(a for a in range(4) if full[a] == 1 and whole[a] != 1)
        lines.append(f"    dbias = dscores.sum({axes}).reshape({inputs.bias.shape})")
    factor = " * (1 - capped**2)" if inputs.softcap is not None else ""
    lines += [
        f"    dproduct = scale * dscores{factor}",
        "    dquery, dkey = dproduct @ k, dproduct.swapaxes(-1, -2) @ query",
        "    dvalue = weights.swapaxes(-1, -2) @ cotangent",
        f"    grouped = ({s.B}, {s.Hkv}, group)",
        "    dkey, dvalue = (x.reshape(*grouped, *x.shape[2:]).sum(2) for x in (dkey, dvalue))",
        '    found = {"query": dquery, "key": dkey, "value": dvalue'
        + (', "bias": dbias}' if inputs.bias is not None else "}"),
        "    return output, found",
    ]
    return "\n\n" + "\n".join(lines) + "\n"


def _call(cell: Cell, prepared: Prepared, dialect: Dialect) -> str:
    """The arguments in the framework's own arrays, and its call."""
    inputs, backend = cell.inputs, cell.implementation.backend
    fmt = inputs.dtype
    kept = {"mask": inputs.dense_mask, "bias": inputs.bias}
    lines, own = [], []
    for name, value in prepared.arguments.items():
        if not backend.is_array(value):
            lines.append(f"{name} = {value!r}")
        elif name in ("query", "key", "value"):
            own.append(f"{name} = {_operand(name, prepared.layout, inputs.layout, backend, fmt)}")
        else:
            values = backend.to_numpy(value)
            lines.append(f"{name} = {_argument(name, values, kept, dialect, fmt)}")
    source = prepared.source
    if isinstance(cell, GradientCell):
        operands = [prepared.operands[name] for name in cell.operands]
        own.append(f"cotangent = {_cotangent(prepared.layout, backend, fmt)}")
        source = dialect.gradients.format(
            names=", ".join(operands), source=source, indented=textwrap.indent(source, "    ")
        )
    return "\n".join([*own, *lines, source])


def _operand(name: str, layout: str, memory: str, backend: Any, fmt: DType) -> str:
    # Frameworks without strides take a layout as a shape.
    order = MEMORY[memory if backend.has_strides else layout]
    turned = name if order == (0, 1, 2, 3) else f"{name}.transpose{order}"
    made = backend.dialect.array.format(values=turned, dtype=fmt.long_name, carrier=fmt.carrier)
    axes = tuple(order.index(axis) for axis in MEMORY[layout])
    if axes == (0, 1, 2, 3):
        return made
    return backend.dialect.transpose.format(array=made, order=axes)


def _cotangent(layout: str, backend: Any, fmt: DType) -> str:
    turned = MEMORY[layout]
    if not backend.has_strides:
        values = "cotangent" if layout == "bhld" else f"cotangent.transpose{turned}"
        return backend.dialect.array.format(values=values, dtype=fmt.long_name, carrier=fmt.carrier)
    reversed_ = turned[::-1]
    made = backend.dialect.array.format(
        values=f"cotangent.transpose{reversed_}", dtype=fmt.long_name, carrier=fmt.carrier
    )
    return backend.dialect.transpose.format(array=made, order=(3, 2, 1, 0))


def _argument(
    name: str, values: np.ndarray, kept: dict[str, np.ndarray | None], dialect: Dialect, fmt: DType
) -> str:
    """An array argument: the mask or bias under its own name where it is that, else its values."""
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
    text = text or literal(values)
    template = dialect.array if values.dtype.kind == "f" else dialect.plain
    return template.format(values=text, dtype=fmt.long_name, carrier=fmt.carrier)


def _assertion(cell: Cell, worst: _Worst | None, dialect: Dialect) -> str:
    inputs = cell.inputs
    s = inputs.sizes
    prepared = cell.prepare(inputs)
    shape = (s.B, s.H, s.Lq, s.Dv) if prepared.layout == "bhld" else (s.B, s.Lq, s.H, s.Dv)
    if worst is None:
        lines = [f"assert tuple(output.shape) == {shape}", "assert output.dtype == query.dtype"]
        if isinstance(cell, GradientCell):
            names = [prepared.operands[name] for name in cell.operands]
            lines += [
                f"for name, gradient in zip({names}, gradients):",
                '    assert gradient is not None, f"{name} got no gradient"',
            ]
        return "\n".join(lines)
    turned = prepared.layout == "blhd" and worst.what != "bias"
    swap = ".swapaxes(1, 2)" if turned else ""
    if worst.what == "output":
        got = dialect.values.format(array="output")
    else:
        assert isinstance(cell, GradientCell)
        index = list(cell.operands).index(worst.what)
        got = dialect.values.format(array=f"gradients[{index}]")
    what = worst.what if worst.what == "output" else f"the gradient of the {worst.what}"
    return (
        f"got = {got}{swap}\n"
        f"at, bound = {worst.at}, {worst.bound!r}  # the bound that rounding explains\n"
        f'print("{what} at", at, "is", float(got[at]), "by definition", float(want[at]))\n'
        "error = abs(got[at] - want[at])\n"
        'assert error <= bound, f"{what} at {at}: error {error}, bound {bound}"'.replace(
            "{what}", what
        )
    )
