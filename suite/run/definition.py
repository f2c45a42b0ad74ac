"""Script text of textbook attention in NumPy, and of its inputs."""

from __future__ import annotations

import hashlib
import inspect
import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from attention_conformance.backends.textbook.attention import attention
from attention_conformance.suite.run.literals import IMPORTS, LITERALS, literal
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features import ARRAYS, FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.recipes import DRAWS, generator

ROUNDED = {
    "f64": "return x",
    "f32": "return x.astype(np.float32).astype(np.float64)",
    "f16": "return x.astype(np.float16).astype(np.float64)",
    "bf16": """exponent = np.maximum(np.frexp(x)[1] - 1, -126) - 7
    return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)""",
}
"""Bodies of functions that round to a dtype, by short dtype name."""

SMALL = 1e-200
"""The complex step. Its square rounds to zero beside any number."""


def operations(work, no_keys):
    """The operations of `attention` in NumPy; `no_keys` is every weight of a fully masked row."""

    def softmax(scores):
        top = scores.real.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = weights.sum(-1, keepdims=True)
        return np.where(total == 0, no_keys, weights / np.where(total == 0, 1, total))

    return SimpleNamespace(
        softmax=softmax,
        tanh=np.tanh,
        concat=np.concatenate,
        transpose=np.transpose,
        reshape=np.reshape,
        repeat=np.repeat,
        broadcast=np.broadcast_to,
        number=lambda value, array: value,
        like=lambda array, other: array,
        counted=lambda n, array: np.arange(n, dtype=work),
        hide=lambda scores, mask: np.where(mask, scores, -np.inf),  # True attends
    )


def definition(inputs: Inputs, what: str, at: tuple[int, ...], uniform: bool) -> str:
    """Lines that set `want` to the output of textbook attention, or to one element of a gradient.

    `what` is "output", or the array by which to differentiate. Its gradient at `at` is a complex-step
    derivative (Squire and Trapp, SIAM Review 1998). Fully masked rows have uniform weights if `uniform`,
    else zero weights.
    """
    extended = inputs.dtype.name == "f64"
    work, complex_ = ("np.longdouble", "np.clongdouble") if extended else ("np.float64", "complex")
    s = inputs.sizes
    settings = {
        "scale": f"1 / np.sqrt({work}({s.D}))" if inputs.scale is None else repr(inputs.scale),
        "mask": "mask",
        **({} if "bias" in inputs.arrays else {"bias": "None"}),
    }
    for name, feature in FEATURES.items():
        value = inputs.feature(name)
        if value is not None and not feature.axes and not feature.outputs:
            settings[name] = repr(value)
    given = ", ".join(f"{name}={text}" for name, text in settings.items())
    arrays = ", ".join(f'"{name}": {name}.astype({work})' for name in inputs.arrays)
    no_keys = f"1 / {work}({s.Lk})" if uniform else "0"
    lines = [
        "\nfrom types import SimpleNamespace\n\n",
        inspect.getsource(operations),
        "\n" + inspect.getsource(attention),
        "\ndef definition(arrays):",
        f'    """The output, computed in {work}."""',
        f"    return attention(operations({work}, {no_keys}), {given}, **arrays)\n\n",
        f"arrays = {{{arrays}}}",
    ]
    if what == "output":
        return "\n".join([*lines, "want = definition(arrays)"])
    return "\n".join(
        [
            *lines,
            f'moved = arrays["{what}"].astype({complex_})',
            f"moved[{at}] += {SMALL}j  # complex step: the imaginary part is the derivative",
            f'answer = definition(arrays | {{"{what}": moved}}) * cotangent',
            f"want = {{{at}: answer.sum().imag / {SMALL}}}",
        ]
    )


def arrays_text(inputs: Inputs, cotangent: np.ndarray | None) -> str:
    """Lines that set the inputs as NumPy arrays (float64, boolean) with the names of `Inputs`. Arrays are
    written out, drawn by the case's recipe, or compressed."""
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
    """Lines that draw the inputs by the case's recipe, and the names that they set.

    If a drawn array differs from the input, the lines draw nothing, and the names are empty.
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
    for name, feature in FEATURES.items():
        if name in arrays and feature.draw is not None and not feature.constant:
            text = inspect.getsource(feature.draw)
            lines.append(
                re.sub(r"def draw\([^)]*\)[^:]*:", f"\ndef draw_{name}(sizes, rng):", text)
            )
            lines.append(f"{name} = rounded(draw_{name}(s, rng))")
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
