"""Attention by its definition as text for scripts: the steps of one problem alone, and its inputs."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import Any

import numpy as np

from suite.search.literals import IMPORTS, LITERALS, literal
from suite.spec.case import Case
from suite.spec.features import ARRAYS
from suite.spec.inputs import Inputs
from suite.spec.recipes import DRAWS, generator

ROUNDED = {
    "f64": "return x",
    "f32": "return x.astype(np.float32).astype(np.float64)",
    "f16": "return x.astype(np.float16).astype(np.float64)",
    "bf16": """exponent = np.maximum(np.frexp(x)[1] - 1, -126) - 7
    return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)""",
}
"""Functions that round to a dtype, by its short name."""


def definition(inputs: Inputs, gradients: bool, uniform: bool) -> str:
    """Attention as a function `definition`, and where asked its gradients.

    `uniform`: rows without keys weigh all keys alike; otherwise they give zeros.
    """
    work = "np.longdouble" if inputs.dtype.name == "f64" else "np.float64"
    s = inputs.sizes
    operands = "query, key, value, cotangent" if gradients else "query, key, value"
    scale = f"1 / np.sqrt({work}({s.D}))" if inputs.scale is None else repr(inputs.scale)
    lines = [
        f"def definition({operands}):",
        f'    """{"The output and its gradients" if gradients else "The output"}, computed in {work}."""',
        f"    {operands} = (x.astype({work}) for x in ({operands}))",
        f"    scale, group = {scale}, {s.group}",
        "    k, v = np.repeat(key, group, 1), np.repeat(value, group, 1)",
        "    scores = scale * (query @ k.swapaxes(-1, -2))",
    ]
    softcap = inputs.feature("softcap")
    if softcap is not None:
        lines += [
            f"    capped = np.tanh(scores / {softcap!r})",
            f"    scores = {softcap!r} * capped",
        ]
    if inputs.bias is not None:
        lines.append("    scores = scores + bias")
    if inputs.feature("alibi_slopes") is not None:
        lines += [
            f"    distance = abs(np.arange({s.Lq})[:, None] + {s.Lk - s.Lq} - np.arange({s.Lk}))",
            f"    scores = scores - alibi_slopes.astype({work})[:, None, None] * distance",
        ]
    if inputs.dense_mask is not None:
        lines.append("    scores = np.where(mask, scores, -np.inf)  # True attends")
    lines += _weights(inputs)
    if uniform:
        lines.append(f"    weights = np.where(total == 0, 1 / {work}({s.Lk}), weights)  # no keys")
    if not gradients:
        return "\n\n" + "\n".join([*lines, "    return weights @ v"]) + "\n"
    return "\n\n" + "\n".join([*lines, *_gradients(inputs, uniform)]) + "\n"


def _weights(inputs: Inputs) -> list[str]:
    if inputs.feature("sinks") is not None:
        return [
            "    sink = sinks.reshape(-1, 1, 1)  # one more logit a head, whose value is 0",
            "    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)",
            "    weights = np.exp(scores - top)",
            "    total = weights.sum(-1, keepdims=True) + np.exp(sink - top)",
            "    weights, sunk = weights / total, np.exp(sink - top) / total",
        ]
    hides = inputs.dense_mask is not None
    hides = hides or (inputs.bias is not None and bool(np.isneginf(inputs.bias).any()))
    if hides:
        return [
            "    top = scores.max(-1, keepdims=True, initial=-np.inf)",
            "    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))",
            "    total = weights.sum(-1, keepdims=True)",
            "    weights = weights / np.where(total == 0, 1, total)  # no keys: zeros",
        ]
    return [
        "    weights = np.exp(scores - scores.max(-1, keepdims=True))",
        "    weights = weights / weights.sum(-1, keepdims=True)",
    ]


def _gradients(inputs: Inputs, uniform: bool) -> list[str]:
    s = inputs.sizes
    variables = {"query": "dquery", "key": "dkey", "value": "dvalue"}
    lines = [
        "    output, back = weights @ v, cotangent @ v.swapaxes(-1, -2)",
        "    dscores = weights * (back - (weights * back).sum(-1, keepdims=True))",
    ]
    if uniform:
        lines.append("    dscores = np.where(total == 0, 0, dscores)")
    if inputs.feature("sinks") is not None:
        variables["sinks"] = "dsinks"
        lines.append(
            "    dsinks = -(sunk * (weights * back).sum(-1, keepdims=True)).sum((0, 2, 3))"
        )
    if inputs.bias is not None:
        variables["bias"] = "dbias"
        full = (1,) * (4 - inputs.bias.ndim) + inputs.bias.shape
        whole = (s.B, s.H, s.Lq, s.Lk)
        axes = tuple(a for a in range(4) if full[a] == 1 and whole[a] != 1)
        lines.append(f"    dbias = dscores.sum({axes}).reshape({inputs.bias.shape})")
    factor = " * (1 - capped**2)" if inputs.feature("softcap") is not None else ""
    named = ", ".join(f'"{name}": {variable}' for name, variable in variables.items())
    return [
        *lines,
        f"    dproduct = scale * dscores{factor}",
        "    dquery, dkey = dproduct @ k, dproduct.swapaxes(-1, -2) @ query",
        "    dvalue = weights.swapaxes(-1, -2) @ cotangent",
        f"    grouped = ({s.B}, {s.Hkv}, group)",
        "    dkey, dvalue = (x.reshape(*grouped, *x.shape[2:]).sum(2) for x in (dkey, dvalue))",
        f"    found = {{{named}}}",
        "    return output, found",
    ]


def arrays_text(inputs: Inputs, cotangent: np.ndarray | None) -> str:
    """Lines that set the inputs as NumPy arrays, float64 and boolean, under the names of `Inputs`:
    written out, drawn as the case's recipe does, or packed."""
    arrays: dict[str, np.ndarray | None] = {
        "query": inputs.query, "key": inputs.key, "value": inputs.value,
        "bias": inputs.bias, "mask": inputs.dense_mask,
    }  # fmt: skip
    arrays |= {name: inputs.arrays[name] for name in ARRAYS if name in inputs.arrays}
    if cotangent is not None:
        arrays["cotangent"] = cotangent
    drawn, names = "", set[str]()
    if sum(a.size for a in arrays.values() if a is not None) > LITERALS:
        drawn, names = _drawn(inputs.case, arrays, inputs.seed)
    left = [name for name in arrays if name not in names]
    return "\n".join([drawn, *(f"{name} = {literal(arrays[name])}" for name in left)]).strip()


def _drawn(case: Case, arrays: dict[str, np.ndarray | None], seed: int) -> tuple[str, set[str]]:
    """Lines that draw the inputs as the case's recipe does, and the names they give.

    Where a draw would give other bytes they give none, and whoever calls packs the arrays.
    """
    s = case.sizes
    recipes = dict.fromkeys([DRAWS["normal"], DRAWS[case.recipe]])
    functions = "\n\n".join(
        re.sub(r"\s*# type: ignore.*", "", inspect.getsource(f)).rstrip() for f in recipes
    )
    functions = re.sub(r"\(\s*rng[^)]*\)( -> [^:]*)?:", "(rng, s, fmt):", functions)
    lines = [
        f"{IMPORTS}\nfrom types import SimpleNamespace",
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
    bias = case.option("bias")
    if "sinks" in arrays:
        lines.append(f"sinks = rounded(1.0 + rng.standard_normal({s.H}))")
    if bias in shapes:
        lines.append(f"bias = rounded(rng.standard_normal({shapes[bias]}))")
    if "cotangent" in arrays:
        shape = (s.B, s.H, s.Lq, s.Dv)
        lines.append(_generator(f"{case.id}/cotangent", seed))
        lines.append(f"cotangent = rounded(rng.standard_normal({shape}))")
    values: dict[str, Any] = {"np": np}
    text = "\n".join(lines)
    with np.errstate(all="ignore"):
        exec(compile(text, "<drawn>", "exec"), values)
    for name, array in arrays.items():
        if name in values and not (array is not None and values[name].tobytes() == array.tobytes()):
            return IMPORTS, set()
    return text, set(arrays) & set(values)


def _generator(name: str, seed: int) -> str:
    state = generator(name, seed)
    digest = hashlib.sha256(f"{name}#{seed}".encode()).digest()[:16]
    number = int.from_bytes(digest, "little")
    again = np.random.Generator(np.random.PCG64(number))
    assert again.bit_generator.state == state.bit_generator.state
    return f"rng = np.random.Generator(np.random.PCG64({number}))"
