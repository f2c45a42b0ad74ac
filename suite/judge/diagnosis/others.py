"""Layers, rotary embeddings, packed attention and merges: which other problem an answer is right for.

An implementation that ignores a bias answers the problem with a bias of zeros. So the oracle of the other
problem, with its own bound, tells what an implementation computes instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from suite.judge.diagnosis import gradients
from suite.judge.diagnosis.instrument import Found, Instrument
from suite.judge.diagnosis.masks import meanings
from suite.spec.case import Case
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS

Another = tuple[Inputs, str, str, str]
"""Another problem, what an implementation that answers it does, in a sentence, its family, and a hint."""

RESHAPED = "`view` or `reshape` to (L, D, H) for (L, H, D), weights of another library's order"


def ask(tool: Instrument, case: Case) -> Iterator[Found]:
    """What is wrong with an operator that is not plain attention, in a case and in its gradients."""
    for name in dict.fromkeys(("f32", case.dtype.name)):
        typed = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(typed) is None:
            found = list(_outputs(tool, tool.drawn(typed)))
            yield from found or gradients.ask(tool, typed)
            return


def _outputs(tool: Instrument, inputs: Inputs) -> Iterator[Found]:
    """What is wrong with the outputs for some inputs."""
    got, oracle = tool.ask(inputs), tool.oracle(inputs)
    if got is None or oracle is None:
        return
    axes = inputs.operator.outputs(inputs.case)
    rows = ~inputs.fully_masked_rows
    judged = {n: np.broadcast_to(inputs.rows_along(rows, axes[n]), x.shape) for n, x in got.items()}
    if not inputs.operator.takes_masks:
        judged = {n: np.ones(x.shape, bool) for n, x in got.items()}

    def is_right(names: list[str], of: Inputs) -> bool:
        other = oracle if of is inputs else tool.oracle(of)
        if other is None:
            return False
        arrays = {n: (x, other.expected[n]) for n, x in got.items() if n in names}
        return all(
            x.shape == right.value.shape
            and bool((((np.abs(x - right.value) <= right.error) | (x == right.value)) | ~judged[n]).all())
            for n, (x, right) in arrays.items()
        )  # fmt: skip

    wrong = [name for name in got if not is_right([name], inputs)]
    if not wrong:
        return
    for other, sentence, family, hint in PROBLEMS.get(inputs.operator.name, _of_layer)(inputs):
        if is_right(wrong, other):
            yield Found(sentence, family, hint)
            return
    name = wrong[0]
    right = np.asarray(oracle.expected[name].value, float)
    yield from _by_place(inputs, name, got[name], right, judged[name], oracle.expected[name].error)


def _by_place(
    inputs: Inputs,
    name: str,
    got: np.ndarray,
    want: np.ndarray,
    judged: np.ndarray,
    bound: np.ndarray,
) -> Iterator[Found]:
    """The finding for an output that is right for no known other problem: a factor, or a place."""
    family = "layer" if inputs.operator.is_layer else inputs.operator.name
    if not np.isfinite(got[judged & np.isfinite(want)]).all():
        hint = "scores or log-sum-exps whose maximum is not subtracted, rows or parts without keys"
        yield Found(f"NaN or infinity comes back in {name}.", family, hint)
        return
    known = judged & np.isfinite(want)
    factor = float((got * want)[known].sum() / max((want * want)[known].sum(), 1e-300))
    if np.abs(got - factor * want)[known].max(initial=0.0) <= 4 * max(1, abs(factor)) * bound[
        known
    ].max(initial=0.0):
        yield Found(
            f"All of {name} is {factor:.4g} times the right one.",
            family,
            "a factor behind everything else",
        )
        return
    query = inputs.arrays.get("query")
    same = query is not None and query.shape == got.shape
    if same and (np.abs(got - query - want)[known] <= 2 * bound[known] + 1e-6).all():
        hint = "a residual connection that the caller adds, too"
        yield Found("The query is added to the output.", family, hint)
        return
    moved = known & ~(np.abs(got - want) <= bound)
    letters = inputs.operator.outputs(inputs.case)[name]
    words = {"b": "samples", "h": "heads", "q": "rows", "k": "keys"}
    parts = []
    for axis, letter in enumerate(letters):
        which = moved.any(tuple(a for a in range(moved.ndim) if a != axis))
        if letter in words and which.any() and not which.all():
            parts.append(
                f"{words[letter]} {', '.join(map(str, np.flatnonzero(which)[:6]))} of {which.size}"
            )
    if parts:
        yield Found(f"Only {' and '.join(parts)} of {name} are wrong.", family)


def _of_layer(inputs: Inputs) -> Iterator[Another]:
    """Other problems of layers: parameters that are not used, exchanged or read in another order, another
    scale, other operands, and other meanings of the mask."""
    params, s = inputs.parameters, inputs.sizes
    for name, array in params.items():
        words = name.replace("_", " ")
        if name.endswith("bias") or name == "offset":
            yield (
                inputs.replace(**{name: 0 * array}),
                f"The {words} is not used.",
                "layer",
                "`bias=False`, a bias that is not loaded",
            )
            yield inputs.replace(**{name: 2 * array}), f"The {words} is added twice.", "layer", ""
        if name.endswith("gain"):
            yield (
                inputs.replace(**{name: 0 * array + 1}),
                f"The {words} is not used.",
                "layer",
                "a gain that is not loaded",
            )
            yield (
                inputs.replace(**{name: array + 1}),
                f"The {words} counts as 1 + gain.",
                "layer",
                "the convention of Gemma",
            )
    for one, two in (("query", "key"), ("key", "value"), ("query", "value")):
        changed: dict[str, np.ndarray] = {}
        for part in ("kernel", "bias"):
            a, b = params.get(f"{one}_{part}"), params.get(f"{two}_{part}")
            if a is not None and b is not None and a.shape == b.shape:
                changed |= {f"{one}_{part}": b, f"{two}_{part}": a}
                yield (
                    inputs.replace(**{f"{one}_{part}": b, f"{two}_{part}": a}),
                    f"The {part}es of {one} and {two} are exchanged.".replace(
                        "kerneles", "kernels"
                    ),
                    "layer",
                    "the order of a packed projection",
                )
                yield (
                    inputs.replace(**{f"{two}_{part}": a}),
                    f"The {part} of the {one} is used for the {two}, too.",
                    "layer",
                    "one parameter in two places",
                )
                yield (
                    inputs.replace(**{f"{one}_{part}": b}),
                    f"The {part} of the {two} is used for the {one}, too.",
                    "layer",
                    "one parameter in two places",
                )
        if len(changed) == 4:
            yield (
                inputs.replace(**changed),
                f"The projections of {one} and {two} are exchanged.",
                "layer",
                "the order of a packed projection",
            )
    yield from _reordered(inputs)
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
                yield (
                    inputs.replace(**query),
                    f"The scale is {scale:.3g} = {text}, expected {D**-0.5:.3g} = 1/sqrt(D).",
                    "scale",
                    "the size of a head is the last axis of a projected query",
                )
        if "query_bias" in params:
            yield (
                inputs.replace(query_bias=params["query_bias"] * D**0.5),
                "The query bias is added behind the scale.",
                "scale",
                "`scale * (x @ W) + b`",
            )
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
                yield (
                    inputs.replace(**{one: inputs.arrays[two]}),
                    f"The {two} is taken for the {one}.",
                    "layer",
                    "an argument that is not used: cross-attention computes self-attention",
                )
    if inputs.bias is not None:
        for factor, text in (
            (0.0, "is ignored"),
            (-1.0, "has the other sign"),
            (D**-0.5, "is scaled like the scores"),
        ):
            yield (
                inputs.replace(bias=factor * np.maximum(inputs.bias, -1e4)),
                f"The bias {text}.",
                "scores",
                "",
            )
    if inputs.dense_mask is not None:
        for meant, sentence, hint in meanings(inputs):
            shape = inputs.attends.shape
            yield (
                inputs.replace(mask=None, form="dense", mask_array=np.broadcast_to(meant, shape)),
                sentence,
                "mask",
                hint,
            )
    if inputs.case.option("epsilon") is not None:
        for epsilon in (0.0, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
            if epsilon != inputs.epsilon:
                yield (
                    inputs.replace(epsilon=epsilon),
                    f"Epsilon is {epsilon:g}, expected {inputs.epsilon:g}.",
                    "layer",
                    "a default that the argument does not replace",
                )
    gain, n = params.get("gain"), inputs.letters["x"]
    if gain is not None and n > 1:
        rest = (n - 1) / n
        yield (
            inputs.replace(gain=gain * rest**0.5, epsilon=inputs.epsilon * rest),
            f"The variance is divided by n - 1 = {n - 1}, expected n.",
            "layer",
            "`var(unbiased=True)`, `ddof=1`",
        )


def _reordered(inputs: Inputs) -> Iterator[Another]:
    """Problems with projections whose heads and components lie in another order, and grouped heads that
    are tiled."""
    params, s = inputs.parameters, inputs.sizes
    order: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for name in OPERANDS:
        order[f"{name}_kernel"] = lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(
            1, 2
        )
        order[f"{name}_bias"] = lambda x: x.reshape(x.shape[1], x.shape[0]).T
    order["output_kernel"] = lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1)
    read = {n: f(params[n]) for n, f in order.items() if n in params and params[n].ndim > 1}
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
            flat = (
                kernel.reshape(kernel.shape[0], -1)
                if name != "output"
                else kernel.reshape(-1, kernel.shape[2])
            )
            if flat.shape[0] == flat.shape[1]:
                yield (
                    inputs.replace(**{f"{name}_kernel": flat.T.reshape(kernel.shape)}),
                    f"The {name} kernel is transposed.",
                    "layer",
                    "`x @ W` for `x @ W.T`",
                )
    if s.group > 1 and "key_kernel" in params:
        tiled = {n: np.take(params[n], np.arange(s.H) % s.Hkv, axis=params[n].ndim - 2)
                 for n in ("key_kernel", "key_bias",
                     "value_kernel", "value_bias") if n in params}  # fmt: skip
        yield (
            inputs.replace(**tiled),
            "Key/value heads are tiled, expected each repeated for its group.",
            "heads",
            "`repeat`, `tile` for `repeat_interleave`",
        )


def _of_rotary(inputs: Inputs) -> Iterator[Another]:
    """Other rotations: pairing, sign, offset, base, number of rotated components, scaling."""
    place, case = inputs.arrays["position"], inputs.case
    pairing = case.option("interleaved")
    names = {True: "components 2i and 2i + 1", False: "components i and i + D/2"}
    other = inputs.replace(interleaved=not pairing)
    yield (
        other,
        f"Pairs are {names[not pairing]}, expected {names[pairing]}.",
        "rotary",
        "`rotate_half` of another model family",
    )
    yield (
        inputs.replace(position=-place),
        "Pairs are rotated the other way: the angle has the other sign.",
        "rotary",
        "`x1 cos + x2 sin` for `x1 cos - x2 sin`",
    )
    yield (
        other.replace(position=-place),
        f"Pairs are {names[not pairing]}, and rotated the other way.",
        "rotary",
        "",
    )
    length = inputs.sizes.Lq
    for n in (1, -1, *range(2, 5), *range(-4, -1), length, -length):
        yield (
            inputs.replace(position=place + n),
            f"Position p is rotated as position p {'+' if n > 0 else '-'} {abs(n)}.",
            "rotary",
            "`arange(1, n + 1)`, the length of a cache that counts twice",
        )
    yield (
        inputs.replace(position=0 * place + np.arange(length)),
        "Positions are counted from 0, whatever is passed.",
        "rotary",
        "`arange(L)` for the positions",
    )
    yield inputs.replace(position=0 * place), "Nothing is rotated.", "rotary", ""
    if place.ndim > 1:
        yield (
            inputs.replace(position=np.broadcast_to(place[:1], place.shape)),
            "Every sample has the positions of sample 0.",
            "rotary",
            "`position[0]`",
        )
    base = case.option("base") or 1e4
    for one in (1e4, 1e2, 1e3, 1e5, 1e6, 5e5, base / 2, base * 2):
        if one != base:
            yield (
                inputs.replace(base=one),
                f"The base of the frequencies is {one:g}, expected {base:g}.",
                "rotary",
                "`theta` of another model, or a default",
            )
    size = case.option("rotated") or inputs.sizes.D
    for part in (inputs.sizes.D, size // 2, size - 2):
        if part != size and part > 0 and part % 2 == 0:
            wrong = inputs.replace(rotated=part if part != inputs.sizes.D else 0)
            yield (
                wrong,
                f"{part} components are rotated, expected {size}.",
                "rotary",
                "`rotary_dim` that is not used",
            )
            yield (
                wrong.replace(base=base ** (size / part)),
                f"{part} components are rotated, expected {size}, with the frequencies of {size}.",
                "rotary",
                "",
            )
    if size != inputs.sizes.D:
        yield (
            inputs.replace(base=base ** (size / inputs.sizes.D)),
            "Frequencies are those of all components, expected of the rotated ones.",
            "rotary",
            "`arange(0, dim, 2) / head_size` for `/ rotary_size`",
        )
    for scaling in ("none", "linear", "ntk", "llama3", "yarn", "longrope"):
        if case.option("scaling") != scaling:
            yield (
                inputs.replace(scaling=scaling),
                f"Frequencies are scaled as {scaling!r}, expected {case.option('scaling')!r}.",
                "rotary",
                "`rope_scaling` that is not used",
            )


def _of_packed(inputs: Inputs) -> Iterator[Another]:
    """Other segments, alignments and scales."""
    case, D = inputs.case, inputs.sizes.D
    queries, keys = (list(part) for part in case.option("segments"))

    def cut(queries: list[int], keys: list[int], **options: object) -> Inputs | None:
        """The inputs in other segments; None if no case has them."""
        sizes, pair = replace(inputs.sizes, B=len(queries)), (tuple(queries), tuple(keys))
        try:
            options = {**dict(case.options), "segments": pair, **options}
            kept = tuple(
                (o.name, options[o.name])
                for o in case.operator.options
                if options.get(o.name, o.default) != o.default
            )
            new = replace(case, sizes=sizes, options=kept)
        except ValueError:
            return None
        lengths = {"query_lengths": np.array(queries, float), "key_lengths": np.array(keys, float)}
        return replace(inputs, case=new, sizes=sizes, arrays={**inputs.arrays, **lengths})

    cause = "`cu_seqlens` that is not used, or shifted"
    found: list[tuple[Inputs | None, str, str]] = [
        (
            cut([sum(queries)], [sum(keys)]),
            "Boundaries of segments are ignored: queries see the keys of other segments.",
            cause,
        )
    ]
    for name, own in (("queries", queries), ("keys", keys)):
        for place in range(len(own) - 1):
            for n in (1, -1):
                moved = list(own)
                moved[place], moved[place + 1] = own[place] + n, own[place + 1] - n
                if min(moved) >= 0:
                    end = sum(own[: place + 1])
                    pair = (moved, keys) if name == "queries" else (queries, moved)
                    found.append(
                        (
                            cut(*pair),
                            f"Segment {place} of the {name} ends at {end + n}, expected {end}.",
                            cause,
                        )
                    )
    for n in (1, -1):
        ends = {
            name: [max(0, x) for x in np.diff([0, *(np.cumsum(own[:-1]) + n), sum(own)]).tolist()]
            for name, own in (("q", queries), ("k", keys))
        }
        found.append(
            (cut(ends["q"], ends["k"]), f"All boundaries of segments are off by {n:+d}.", cause)
        )
    for alignment, text in (
        ("all", "The causal flag is ignored."),
        ("causal", "The causal mask is aligned top-left in every segment."),
        ("causalbr", "The causal mask is aligned bottom-right in every segment."),
    ):
        if alignment != case.option("alignment"):
            found.append(
                (cut(queries, keys, alignment=alignment), text, "`tril(diagonal=Lk - Lq)`")
            )
    for other, sentence, hint in found:
        if other is not None:
            yield other, sentence, "packed", hint
    right = inputs.effective_scale
    for scale, text in (
        (1.0, "1"),
        (1 / D, "1/D"),
        (D**-0.5, "1/sqrt(D)"),
        (right * D**-0.5, "the right one times 1/sqrt(D)"),
    ):
        if scale != right:
            yield (
                inputs.replace(scale=scale),
                f"The scale is {scale:.3g} = {text}, expected {right:.3g}.",
                "scale",
                "",
            )
    s = inputs.sizes
    if s.group > 1:
        tiled = np.arange(s.H) % s.Hkv
        yield (
            inputs.replace(key=inputs.key[:, tiled], value=inputs.value[:, tiled]),
            "Key/value heads are tiled, expected each repeated for its group.",
            "heads",
            "`repeat` for `repeat_interleave`",
        )


def _of_merge(inputs: Inputs) -> Iterator[Another]:
    """Other weights of the parts."""
    lse = inputs.arrays["partial_lse"]
    part = np.arange(len(lse)).reshape(-1, *[1] * (lse.ndim - 1))
    least = np.finfo(np.float32).min / 4
    for other, sentence, hint in (
        (np.where(np.isneginf(lse), lse, 0.0),
         "All parts weigh the same: log-sum-exps are not used.", "a mean of the outputs"),
        (np.where(np.isneginf(lse), lse, -lse), "Parts weigh exp(-lse), expected exp(lse).", "a sign"),
        (lse * np.log(2), "Parts weigh 2^lse, expected e^lse.", "`exp2` of a log-sum-exp to base e"),
        (lse / np.log(2), "Log-sum-exps are multiplied by log2(e), and e is raised to them.",
         "a log-sum-exp to base 2"),
        (2 * lse, "Parts weigh exp(2 lse), expected exp(lse).", ""),
        (lse[::-1], "Parts have the weights of the parts in reverse order.", "`1 - w`"),
        (np.where(part == 0, lse, least), "Only the first part counts.", ""),
        (np.where(part == len(lse) - 1, lse, least),
         "Only the last part counts.", "an accumulator that is overwritten"),
        (np.where(lse == lse.max(0), lse, least),
         "Only the part with the largest log-sum-exp counts.", "`argmax`"),
        (np.roll(lse, 1, -1), "Rows have the log-sum-exps of other rows.", "an index of rows"),
        (np.roll(lse, 1, -2), "Heads have the log-sum-exps of other heads.", "an index of heads"),
    ):  # fmt: skip
        yield inputs.replace(partial_lse=other), sentence, "merge", hint


PROBLEMS: Mapping[str, Callable[[Inputs], Iterator[Another]]] = {
    "rotary": _of_rotary, "packed": _of_packed, "merge": _of_merge
}  # fmt: skip
"""The other problems of operators that are no layers."""
