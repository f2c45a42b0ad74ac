"""Other problems of layers: what layers compute that ignore, exchange or rearrange parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Row, softmax
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

Another = Row[Inputs | Mapping[str, np.ndarray]]
"""Another problem, or another answer by output."""


def of_mask(inputs: Inputs) -> Iterator[Another]:
    """Other meanings of the mask."""
    if inputs.dense_mask is not None:
        for row in meanings(inputs):
            pairs = np.broadcast_to(row.gives, inputs.attends.shape)
            other = inputs.replace(mask=None, form="dense", mask_array=pairs)
            yield Row(other, row.sentence, row.hint, "mask", row.key)


def of_layer(inputs: Inputs) -> Iterator[Another]:
    """Other problems of layers: parameters that are not used or exchanged, another scale, other operands,
    and other meanings of the mask."""
    rows = (_of_parameters, _of_projections, _viewed, _of_scale, _of_operands, of_mask, _of_epsilon)
    for of in rows:
        yield from of(inputs)


def _of_parameters(inputs: Inputs) -> Iterator[Another]:
    """Parameters that are not used, or twice."""
    for name, array in inputs.parameters.items():
        words = name.replace("_", " ")
        unused = f"The {words} is not used."
        if name.endswith("bias") or name == "offset":
            hint = "`bias=False`, a bias that is not loaded"
            yield Row(inputs.replace(**{name: 0 * array}), unused, hint, "layer")
            twice = inputs.replace(**{name: 2 * array})
            yield Row(twice, f"The {words} is added twice.", family="layer")
        if name.endswith("gain"):
            ones = inputs.replace(**{name: 0 * array + 1})
            yield Row(ones, unused, "a gain that is not loaded", "layer")


def _of_projections(inputs: Inputs) -> Iterator[Another]:
    """Projections that are exchanged, transposed, used twice, or not applied."""
    params = inputs.parameters
    packed, shared = "the order of a packed projection", "one parameter in two places"
    for one, two in (("query", "key"), ("key", "value"), ("query", "value")):
        changed: dict[str, np.ndarray] = {}
        for part, parts in (("kernel", "kernels"), ("bias", "biases"), ("gain", "gains")):
            a, b = params.get(f"{one}_{part}"), params.get(f"{two}_{part}")
            if a is not None and b is not None and a.shape == b.shape:
                first, second = {f"{one}_{part}": b}, {f"{two}_{part}": a}
                changed |= first | second
                text = f"The {parts} of {one} and {two} are exchanged."
                yield Row(inputs.replace(**first, **second), text, packed, "layer")
                for used, source, target in ((second, one, two), (first, two, one)):
                    text = f"The {part} of the {source} is used for the {target}, too."
                    yield Row(inputs.replace(**used), text, shared, "layer")
        if len(changed) > 2:
            text = f"The projections of {one} and {two} are exchanged."
            yield Row(inputs.replace(**changed), text, packed, "layer")
    for name in (*OPERANDS, "output"):
        kernel = params.get(f"{name}_kernel")
        if kernel is None or kernel.ndim != 3:
            continue
        flat = (
            kernel.reshape(-1, kernel.shape[2])
            if name == "output"
            else kernel.reshape(len(kernel), -1)
        )
        if flat.shape[0] != flat.shape[1]:
            continue
        turned = inputs.replace(**{f"{name}_kernel": flat.T.reshape(kernel.shape)})
        yield Row(turned, f"The {name} kernel is transposed.", "`x @ W` for `x @ W.T`", "layer")
        if name == "output":
            plain = {"output_kernel": np.eye(len(flat)).reshape(kernel.shape)}
            plain |= {n: 0 * params[n] for n in ("output_bias",) if n in params}
            text = "The output projection, kernel and bias, is not applied."
            yield Row(inputs.replace(**plain), text, "the joined heads are returned", "layer")


def _viewed(inputs: Inputs) -> Iterator[Another]:
    """Multi-head attention whose heads are split and merged by views, not transposed."""
    params, s, heads = inputs.parameters, inputs.sizes, []
    known = {f"{name}_{part}" for name in (*OPERANDS, "output") for part in ("kernel", "bias")}
    if {*params} != known or s.H == 1 or s.H != s.Hkv or inputs.bias is not None:
        return
    for name in OPERANDS:
        x = np.einsum("ble,ehd->blhd", inputs.arrays[name], params[f"{name}_kernel"])
        B, L, H, D = x.shape
        heads.append((x + params[f"{name}_bias"]).reshape(B, H, L, D))
    query, key, value = heads
    weights = softmax(query @ key.swapaxes(-1, -2) * inputs.effective_scale, inputs.attends)
    kernel = params["output_kernel"]
    joined = (weights @ value).reshape(s.B, s.Lq, *kernel.shape[:2])
    output = np.einsum("blhd,hde->ble", joined, kernel) + params["output_bias"]
    text = "Heads are split and merged by a view, expected a transpose of heads and rows."
    hint = "`x.view(B, H, L, D)` for `x.view(B, L, H, D).transpose(1, 2)`"
    yield Row({"output": output}, text, hint, "layout")


def _of_scale(inputs: Inputs) -> Iterator[Another]:
    """Other scales of the scores."""
    params, s, D = inputs.parameters, inputs.sizes, inputs.sizes.D
    if "query_kernel" in params and not inputs.case.option("qk_norm"):
        width, whole = inputs.widths.query**-0.5, (s.H * D) ** -0.5
        named = {
            "1": 1.0, "1/D": 1 / D, "1/sqrt(E), of the width of the query": width,
            "1/sqrt(H D), of all heads": whole, "sqrt(D)": D**0.5, "1/sqrt(H)": s.H**-0.5,
            "1/sqrt(Dv)": s.Dv**-0.5,
        }  # fmt: skip
        hint = "the size of a head is the last axis of a projected query"
        for formula, scale in named.items():
            factor = scale * D**0.5
            query = {n: params[n] * factor for n in ("query_kernel", "query_bias") if n in params}
            if factor != 1:
                text = f"The scale is {scale:.3g} = {formula}, expected {D**-0.5:.3g} = 1/sqrt(D)."
                yield Row(inputs.replace(**query), text, hint, "scale", key=f"scale {formula}")
        if "query_bias" in params:
            behind = inputs.replace(query_bias=params["query_bias"] * D**0.5)
            text = "The query bias is added behind the scale."
            yield Row(behind, text, "`scale * (x @ W) + b`", "scale")
    if "scale" in params:
        for learned, text in (
            (params["scale"] * D**-0.5, "is multiplied by 1/sqrt(D)"),
            (0 * params["scale"] + D**-0.5, "is 1/sqrt(D)"),
            (params["scale"] ** 2, "is squared"),
        ):
            other = inputs.replace(scale=learned)
            yield Row(other, f"The learned scale {text}.", family="scale")


def _of_operands(inputs: Inputs) -> Iterator[Another]:
    """Other operands, and another bias."""
    if not inputs.self_attention:
        for one, two in (("key", "query"), ("value", "key"), ("key", "value"), ("value", "query")):
            if inputs.arrays[one].shape == inputs.arrays[two].shape:
                hint = "an argument that is not used: cross-attention computes self-attention"
                other = inputs.replace(**{one: inputs.arrays[two]})
                yield Row(other, f"The {two} is taken for the {one}.", hint, "layer")
    if inputs.bias is not None:
        for factor, text in ((0.0, "is ignored"), (-1.0, "has the other sign")):
            other = inputs.replace(bias=factor * np.maximum(inputs.bias, -1e4))
            yield Row(other, f"The bias {text}.", family="scores")
    if not inputs.attends.all():
        bias = 0.0 if inputs.bias is None else np.maximum(inputs.bias, -1e4)
        added = bias - 1.0 * ~inputs.attends
        other = inputs.replace(mask=None, mask_array=None, form="native", bias=added)
        text = "Hidden keys lose 1 of their score: the mask is added as 0 and 1."
        yield Row(other, text, "`scores + mask` of a boolean mask", "mask")


def _of_epsilon(inputs: Inputs) -> Iterator[Another]:
    """Another epsilon of a norm."""
    if "gain" in inputs.parameters or inputs.case.option("qk_norm"):
        for epsilon in (0.0, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
            if epsilon != inputs.epsilon:
                text = f"Epsilon is {epsilon:g}, expected {inputs.epsilon:g}."
                hint = "a default that the argument does not replace"
                other = inputs.replace(epsilon=epsilon)
                yield Row(other, text, hint, "layer", key=f"epsilon {epsilon:g}")
