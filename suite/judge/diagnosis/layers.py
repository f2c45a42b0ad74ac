"""Other problems of layers: what layers compute that ignore, exchange or rearrange parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import softmax
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

Another = tuple[Inputs | Mapping[str, np.ndarray], str, str, str]
"""Another problem, or another answer by output; what an implementation that answers so does, in a
sentence; its family; and a hint."""

Guess = tuple[Callable[[], Inputs | Mapping[str, np.ndarray]], str, str, str]
"""`Another` whose problem or answer is made when it is asked for. ValueError and TypeError say that no
case has the problem."""


def made(inputs: Inputs, guesses: Iterable[Guess]) -> Iterator[Another]:
    """The guesses that exist, and that differ from the problem itself."""
    for guess, sentence, family, hint in guesses:
        try:
            other = guess()
        except (ValueError, TypeError):
            continue
        if not isinstance(other, Inputs) or other.digest != inputs.digest:
            yield other, sentence, family, hint


def of_window(inputs: Inputs, **free: Any) -> tuple[Guess, ...]:
    """Windows (option `left`) that are ignored, or count another number of keys. `free` are options
    without which no wider window fits."""
    left = inputs.case.option("left")
    return (
        (lambda: inputs.replace(left=None, **free), "The window is ignored.", "mask", ""),
        (lambda: inputs.replace(left=(left or 0) + 1, **free), "A window sees one key more.", "mask",
         ""),
        (lambda: inputs.replace(left=left - 1), "A window sees one key less.", "mask", ""),
    )  # fmt: skip


def of_scale(inputs: Inputs) -> tuple[Guess, ...]:
    """Scales that are ignored, or that people write."""
    D, text = inputs.sizes.D, "A scale of 0 is replaced by the default one."
    return (
        (lambda: inputs.replace(scale=inputs.scale or None), text, "scale", "`scale or 1 / sqrt(D)`"),
        (lambda: inputs.replace(scale=None), "The scale is ignored.", "scale", ""),
        (lambda: inputs.replace(scale=1.0), "The scale is 1.", "scale", ""),
        (lambda: inputs.replace(scale=1 / D), "The scale is 1/D.", "scale", ""),
    )  # fmt: skip


def of_softcap(inputs: Inputs) -> Guess:
    """The softcap that is ignored."""
    return lambda: inputs.replace(softcap=None), "The softcap is ignored.", "scores", ""


RESHAPED = "`view` or `reshape` to (L, D, H) for (L, H, D), weights of another library's order"


def of_layer(inputs: Inputs) -> Iterator[Another]:
    """Other problems of layers: parameters that are not used, exchanged or read in another order, another
    scale, other operands, and other meanings of the mask."""
    params, s = inputs.parameters, inputs.sizes
    for name, array in params.items():
        words = name.replace("_", " ")
        unused = f"The {words} is not used."
        if name.endswith("bias") or name == "offset":
            hint = "`bias=False`, a bias that is not loaded"
            yield inputs.replace(**{name: 0 * array}), unused, "layer", hint
            yield inputs.replace(**{name: 2 * array}), f"The {words} is added twice.", "layer", ""
        if name.endswith("gain"):
            ones, text = inputs.replace(**{name: 0 * array + 1}), f"The {words} counts as 1 + gain."
            yield ones, unused, "layer", "a gain that is not loaded"
            yield inputs.replace(**{name: array + 1}), text, "layer", "the convention of Gemma"
    packed, shared = "the order of a packed projection", "one parameter in two places"
    for one, two in (("query", "key"), ("key", "value"), ("query", "value")):
        changed: dict[str, np.ndarray] = {}
        for part, parts in (("kernel", "kernels"), ("bias", "biases")):
            a, b = params.get(f"{one}_{part}"), params.get(f"{two}_{part}")
            if a is not None and b is not None and a.shape == b.shape:
                first, second = {f"{one}_{part}": b}, {f"{two}_{part}": a}
                changed |= first | second
                text = f"The {parts} of {one} and {two} are exchanged."
                yield inputs.replace(**first, **second), text, "layer", packed
                text = f"The {part} of the {one} is used for the {two}, too."
                yield inputs.replace(**second), text, "layer", shared
                text = f"The {part} of the {two} is used for the {one}, too."
                yield inputs.replace(**first), text, "layer", shared
        if len(changed) == 4:
            text = f"The projections of {one} and {two} are exchanged."
            yield inputs.replace(**changed), text, "layer", packed
    yield from _reordered(inputs)
    yield from _composed(inputs)
    D = s.D
    if "query_kernel" in params and not inputs.case.option("qk_norm"):
        width, whole = inputs.widths.query**-0.5, (s.H * D) ** -0.5
        named = {
            "1": 1.0, "1/D": 1 / D, "1/sqrt(E), of the width of the query": width,
            "1/sqrt(H D), of all heads": whole, "sqrt(D)": D**0.5, "1/sqrt(H)": s.H**-0.5,
            "1/sqrt(Dv)": s.Dv**-0.5,
        }  # fmt: skip
        for text, scale in named.items():
            factor = scale * D**0.5
            query = {n: params[n] * factor for n in ("query_kernel", "query_bias") if n in params}
            if factor != 1:
                text = f"The scale is {scale:.3g} = {text}, expected {D**-0.5:.3g} = 1/sqrt(D)."
                hint = "the size of a head is the last axis of a projected query"
                yield inputs.replace(**query), text, "scale", hint
        if "query_bias" in params:
            behind = inputs.replace(query_bias=params["query_bias"] * D**0.5)
            text = "The query bias is added behind the scale."
            yield behind, text, "scale", "`scale * (x @ W) + b`"
    if "scale" in params:
        for factor, text in (
            (0 * params["scale"] + 1, "is not used"),
            (params["scale"] * D**-0.5, "is multiplied by 1/sqrt(D)"),
            (0 * params["scale"] + D**-0.5, "is 1/sqrt(D)"),
            (params["scale"] ** 2, "is squared"),
        ):
            yield inputs.replace(scale=factor), f"The learned scale {text}.", "scale", ""
    if not inputs.self_attention:
        for one, two in (("key", "query"), ("value", "key"), ("key", "value"), ("value", "query")):
            if inputs.arrays[one].shape == inputs.arrays[two].shape:
                hint = "an argument that is not used: cross-attention computes self-attention"
                text = f"The {two} is taken for the {one}."
                yield inputs.replace(**{one: inputs.arrays[two]}), text, "layer", hint
    if inputs.bias is not None:
        for factor, text in (
            (0.0, "is ignored"),
            (-1.0, "has the other sign"),
            (D**-0.5, "is scaled like the scores"),
        ):
            biased = inputs.replace(bias=factor * np.maximum(inputs.bias, -1e4))
            yield biased, f"The bias {text}.", "scores", ""
    if inputs.dense_mask is not None:
        for meant, sentence, hint in meanings(inputs):
            pairs = np.broadcast_to(meant, inputs.attends.shape)
            yield inputs.replace(mask=None, form="dense", mask_array=pairs), sentence, "mask", hint
    if "gain" in params or inputs.case.option("qk_norm"):
        for epsilon in (0.0, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
            if epsilon != inputs.epsilon:
                text = f"Epsilon is {epsilon:g}, expected {inputs.epsilon:g}."
                hint = "a default that the argument does not replace"
                yield inputs.replace(epsilon=epsilon), text, "layer", hint
    gain, n = params.get("gain"), inputs.letters["x"]
    if gain is not None and n > 1 and inputs.case.option("epsilon") is not None:
        rest = (n - 1) / n
        unbiased = inputs.replace(gain=gain * rest**0.5, epsilon=inputs.epsilon * rest)
        text = f"The variance is divided by n - 1 = {n - 1}, expected n."
        yield unbiased, text, "layer", "`var(unbiased=True)`, `ddof=1`"


def _composed(inputs: Inputs) -> Iterator[Another]:
    """Multi-head attention whose heads are viewed in place of transposed, that has no output projection,
    or that adds its mask as a number."""
    params, s = inputs.parameters, inputs.sizes
    if any(
        f"{name}_kernel" not in params or params[f"{name}_kernel"].ndim != 3 for name in OPERANDS
    ):
        return
    if set(params) & {"query_gain", "gate_kernel", "gain"}:
        return

    def output(split: bool = False, merged: bool = False, projects: bool = True, added: float = 0.0
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """The output if heads are split or merged by a view, and if hidden scores lose `added`."""
        heads = []
        for name in OPERANDS:
            x, kernel = inputs.arrays[name], params[f"{name}_kernel"]
            x = np.einsum("ble,ehd->blhd", x, kernel) + params.get(f"{name}_bias", 0.0)
            B, L, H, D = x.shape
            x = x.reshape(B, H, L, D) if split else x.swapaxes(1, 2)
            heads.append(np.repeat(x, s.H // H, 1))
        query, key, value = heads
        scores = query @ key.swapaxes(-1, -2) * inputs.effective_scale
        scores = scores if inputs.bias is None else scores + np.maximum(inputs.bias, -1e4)
        hidden = inputs.attends
        if added:
            scores, hidden = scores - added * ~hidden, np.ones(scores.shape, bool)
        mixed = softmax(scores, hidden) @ value
        mixed = (mixed if merged else mixed.swapaxes(1, 2)).reshape(s.B, s.Lq, -1)
        if "output_kernel" in params and projects:
            mixed = mixed @ params["output_kernel"].reshape(mixed.shape[-1], -1) + params.get(
                "output_bias", 0.0
            )
        return {"output": mixed}

    view = "`x.view(B, H, L, D)` for `x.view(B, L, H, D).transpose(1, 2)`"
    if s.H > 1:
        for split, merged, text in (
            (True, True, "split and merged"), (True, False, "split"), (False, True, "merged"),
        ):  # fmt: skip
            text = f"Heads are {text} by a view, expected a transpose of heads and rows."
            yield output(split, merged), text, "layout", view
    if "output_kernel" in params:
        text = "The output projection, kernel and bias, is not applied."
        yield output(projects=False), text, "layer", "the joined heads are returned"
    if not inputs.attends.all():
        for added in (1.0, -1.0):
            text = f"Hidden keys lose {added:g} of their score: the mask is added as 0 and 1."
            yield output(added=added), text, "mask", "`scores + mask` of a boolean mask"


def _reordered(inputs: Inputs) -> Iterator[Another]:
    """Problems with projections whose heads and components lie in another order."""
    params, s = inputs.parameters, inputs.sizes
    order: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for name in OPERANDS:
        order[f"{name}_kernel"] = lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(
            1, 2
        )
        order[f"{name}_bias"] = lambda x: x.reshape(x.shape[1], x.shape[0]).T
    order["output_kernel"] = lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1)
    ndim = {n: 2 if n.endswith("bias") else 3 for n in order}
    read = {n: f(params[n]) for n, f in order.items() if n in params and params[n].ndim == ndim[n]}
    groups = [[n for n in read if n.startswith(f"{name}_")] for name in (*OPERANDS, "output")]
    groups += [[n for n in read if not n.startswith("output")], [*read]]
    for names in groups:
        if names and s.H > 1:
            which = " and ".join(dict.fromkeys(n.partition("_")[0] for n in names))
            sentence = f"Heads and components of the projected {which} are interleaved."
            if names == ["output_kernel"]:
                sentence = "Heads and components are interleaved before the output projection."
            yield inputs.replace(**{n: read[n] for n in names}), sentence, "layout", RESHAPED
    for name in (*OPERANDS, "output"):
        kernel = params.get(f"{name}_kernel")
        if kernel is not None and kernel.ndim == 3:
            rows = len(kernel) if name != "output" else -1
            flat = kernel.reshape(rows, kernel.shape[2] if rows == -1 else -1)
            if flat.shape[0] == flat.shape[1]:
                turned = inputs.replace(**{f"{name}_kernel": flat.T.reshape(kernel.shape)})
                text = f"The {name} kernel is transposed."
                yield turned, text, "layer", "`x @ W` for `x @ W.T`"
