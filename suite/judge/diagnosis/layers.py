"""Faulty problems of layers: those of layers that ignore, exchange or rearrange parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Variant, softmax
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

ProblemVariant = Variant[Inputs | Mapping[str, np.ndarray]]
"""A variant whose result is the problem that is answered, or the outputs by name."""


def mask_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems with a faulty meaning of the mask."""
    if inputs.dense_mask is not None:
        for variant in meanings(inputs):
            pairs = np.broadcast_to(variant.result, inputs.attends.shape)
            problem = inputs.replace(mask=None, form="dense", mask_array=pairs)
            yield Variant(problem, variant.sentence, variant.hint, "mask", variant.key)


def layer_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Faulty problems of layers: parameters that are unused or exchanged, another scale, other operands,
    and faulty meanings of the mask."""
    for table in (
        _parameter_problems, _projection_problems, _view_problems, _scale_problems, _operand_problems,
        mask_problems, _epsilon_problems,
    ):  # fmt: skip
        yield from table(inputs)


def _parameter_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems in which a parameter is unused, or is added twice."""
    for name, array in inputs.parameters.items():
        words = name.replace("_", " ")
        sentence = f"The {words} is not used."
        if name.endswith("bias") or name == "offset":
            hint = "`bias=False`, a bias that is not loaded"
            yield Variant(inputs.replace(**{name: 0 * array}), sentence, hint, "layer")
            doubled = inputs.replace(**{name: 2 * array})
            yield Variant(doubled, f"The {words} is added twice.", family="layer")
        if name.endswith("gain"):
            ones = inputs.replace(**{name: 0 * array + 1})
            yield Variant(ones, sentence, "a gain that is not loaded", "layer")


def _projection_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems in which projections are exchanged, transposed, used twice, or not applied."""
    params = inputs.parameters
    order_hint, sharing_hint = "the order of a packed projection", "one parameter in two places"
    for one, two in (("query", "key"), ("key", "value"), ("query", "value")):
        exchanged: dict[str, np.ndarray] = {}
        for part, parts in (("kernel", "kernels"), ("bias", "biases"), ("gain", "gains")):
            a, b = params.get(f"{one}_{part}"), params.get(f"{two}_{part}")
            if a is not None and b is not None and a.shape == b.shape:
                first, second = {f"{one}_{part}": b}, {f"{two}_{part}": a}
                exchanged |= first | second
                text = f"The {parts} of {one} and {two} are exchanged."
                yield Variant(inputs.replace(**first, **second), text, order_hint, "layer")
                for arrays, source, target in ((second, one, two), (first, two, one)):
                    text = f"The {part} of the {source} is used for the {target}, too."
                    yield Variant(inputs.replace(**arrays), text, sharing_hint, "layer")
        if len(exchanged) > 2:
            text = f"The projections of {one} and {two} are exchanged."
            yield Variant(inputs.replace(**exchanged), text, order_hint, "layer")
    for name in (*OPERANDS, "output"):
        kernel = params.get(f"{name}_kernel")
        if kernel is None or kernel.ndim != 3:
            continue
        matrix = (
            kernel.reshape(-1, kernel.shape[2])
            if name == "output"
            else kernel.reshape(len(kernel), -1)
        )
        if matrix.shape[0] != matrix.shape[1]:
            continue
        transposed = inputs.replace(**{f"{name}_kernel": matrix.T.reshape(kernel.shape)})
        text = f"The {name} kernel is transposed."
        yield Variant(transposed, text, "`x @ W` for `x @ W.T`", "layer")
        if name == "output":
            identity = {"output_kernel": np.eye(len(matrix)).reshape(kernel.shape)}
            identity |= {n: 0 * params[n] for n in ("output_bias",) if n in params}
            text = "The output projection, kernel and bias, is not applied."
            hint = "the joined heads are returned"
            yield Variant(inputs.replace(**identity), text, hint, "layer")


def _view_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """The output of multi-head attention whose heads are split and merged by views, not by transposes."""
    params, s, heads = inputs.parameters, inputs.sizes, []
    required = {f"{name}_{part}" for name in (*OPERANDS, "output") for part in ("kernel", "bias")}
    if {*params} != required or s.H == 1 or s.H != s.Hkv or inputs.bias is not None:
        return
    for name in OPERANDS:
        projected = np.einsum("ble,ehd->blhd", inputs.arrays[name], params[f"{name}_kernel"])
        B, L, H, D = projected.shape
        heads.append((projected + params[f"{name}_bias"]).reshape(B, H, L, D))
    query, key, value = heads
    weights = softmax(query @ key.swapaxes(-1, -2) * inputs.effective_scale, inputs.attends)
    kernel = params["output_kernel"]
    merged = (weights @ value).reshape(s.B, s.Lq, *kernel.shape[:2])
    output = np.einsum("blhd,hde->ble", merged, kernel) + params["output_bias"]
    text = "Heads are split and merged by a view, expected a transpose of heads and rows."
    hint = "`x.view(B, H, L, D)` for `x.view(B, L, H, D).transpose(1, 2)`"
    yield Variant({"output": output}, text, hint, "layout")


def _scale_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems with other scales of the scores."""
    params, s, D = inputs.parameters, inputs.sizes, inputs.sizes.D
    if "query_kernel" in params and not inputs.case.option("qk_norm"):
        width, all_heads = inputs.widths.query**-0.5, (s.H * D) ** -0.5
        scales = {
            "1": 1.0, "1/D": 1 / D, "1/sqrt(E), of the width of the query": width,
            "1/sqrt(H D), of all heads": all_heads, "sqrt(D)": D**0.5, "1/sqrt(H)": s.H**-0.5,
            "1/sqrt(Dv)": s.Dv**-0.5,
        }  # fmt: skip
        hint = "the size of a head is the last axis of a projected query"
        for formula, scale in scales.items():
            factor = scale * D**0.5
            query = {n: params[n] * factor for n in ("query_kernel", "query_bias") if n in params}
            if factor != 1:
                text = f"The scale is {scale:.3g} = {formula}, expected {D**-0.5:.3g} = 1/sqrt(D)."
                yield Variant(inputs.replace(**query), text, hint, "scale", key=f"scale {formula}")
        if "query_bias" in params:
            problem = inputs.replace(query_bias=params["query_bias"] * D**0.5)
            text = "The query bias is added behind the scale."
            yield Variant(problem, text, "`scale * (x @ W) + b`", "scale")
    if "scale" in params:
        for scale, text in (
            (params["scale"] * D**-0.5, "is multiplied by 1/sqrt(D)"),
            (0 * params["scale"] + D**-0.5, "is 1/sqrt(D)"),
            (params["scale"] ** 2, "is squared"),
        ):
            problem = inputs.replace(scale=scale)
            yield Variant(problem, f"The learned scale {text}.", family="scale")


def _operand_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems with other operands, or another bias."""
    if not inputs.self_attention:
        for one, two in (("key", "query"), ("value", "key"), ("key", "value"), ("value", "query")):
            if inputs.arrays[one].shape == inputs.arrays[two].shape:
                hint = "an argument that is not used: cross-attention computes self-attention"
                problem = inputs.replace(**{one: inputs.arrays[two]})
                yield Variant(problem, f"The {two} is taken for the {one}.", hint, "layer")
    if inputs.bias is not None:
        for factor, text in ((0.0, "is ignored"), (-1.0, "has the other sign")):
            problem = inputs.replace(bias=factor * np.maximum(inputs.bias, -1e4))
            yield Variant(problem, f"The bias {text}.", family="scores")
    if not inputs.attends.all():
        bias = 0.0 if inputs.bias is None else np.maximum(inputs.bias, -1e4)
        biased = bias - 1.0 * ~inputs.attends
        problem = inputs.replace(mask=None, mask_array=None, form="native", bias=biased)
        text = "Hidden keys lose 1 of their score: the mask is added as 0 and 1."
        yield Variant(problem, text, "`scores + mask` of a boolean mask", "mask")


def _epsilon_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Problems with another epsilon of a norm."""
    if "gain" in inputs.parameters or inputs.case.option("qk_norm"):
        for epsilon in (0.0, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
            if epsilon != inputs.epsilon:
                text = f"Epsilon is {epsilon:g}, expected {inputs.epsilon:g}."
                hint = "a default that the argument does not replace"
                problem = inputs.replace(epsilon=epsilon)
                yield Variant(problem, text, hint, "layer", key=f"epsilon {epsilon:g}")
