"""Deviations that answer a changed problem correctly: other scales, masks, windows, scripts, projections.
One row serves all operators that have the changed array or option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.code_scales import (
    first_along,
    rolled_along,
    rounded_to_bfloat16,
)
from attention_conformance.suite.deviations.deviation import (
    Deviation,
    Problem,
    deviation,
    has_one_query,
)
from attention_conformance.suite.deviations.kernels.cached import CachedKernel
from attention_conformance.suite.deviations.kernels.latent import LatentKernel
from attention_conformance.suite.deviations.kernels.merge import MergeKernel
from attention_conformance.suite.deviations.kernels.packed import PackedKernel
from attention_conformance.suite.deviations.kernels.paged import PagedKernel
from attention_conformance.suite.deviations.kernels.quantized import (
    QuantizedKernel,
    QuantizedWriteKernel,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.steps import Action, Crop, Pick, Reset

Changes = Mapping[str, Any]
"""The new values of some arrays and options of inputs, by name."""

Row = tuple[str, str, str, str, Callable[[Inputs], Changes]]
"""The end of a deviation's name, the family, the sentence, a hint, and the changes of given inputs."""


def apply_changes(change: Callable[[Inputs], Changes], inputs: Inputs) -> Inputs:
    """Returns the inputs with the changes `change(inputs)`. The inputs are unchanged if they lack an
    array or option that changes, or if the changed problem is no valid case."""
    try:
        return inputs.replace(**change(inputs))
    except (KeyError, TypeError, ValueError):
        return inputs


def deviations_of(
    prefix: str, right: type, rows: Iterable[Row], killed_by: str = "values", noun: str = ""
) -> Iterator[Deviation]:
    """Yields the deviations of one kernel. `noun` replaces {} in sentences: the word for what is in
    pages."""
    for name, family, sentence, hint, change in rows:
        yield deviation(f"{prefix}-{name}", killed_by, sentence.format(noun), hint, family=family,
                        right=right, problem=partial(apply_changes, change))  # fmt: skip


def other_array(
    name: str, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Inputs], Changes]:
    """Returns a function from inputs to the changes that replace one array by `change(array)`."""
    return lambda inputs: {name: change(inputs.arrays[name])}


def array_problem(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Problem:
    """Returns the problem with one array replaced by `change(array)`, if the inputs have it."""
    return partial(apply_changes, other_array(name, change))


UNSCALED: Row = (
    "unscaled", "scale", "The scale is 1.", "scores that are not scaled", lambda inputs: {"scale": 1.0},
)  # fmt: skip

SCALES: list[Row] = [
    ("scale-ignored", "scale", "The scale is ignored.", "`D ** -0.5` whatever is passed",
     lambda inputs: {"scale": None}),
    UNSCALED,
    ("scale-without-root", "scale", "The scale is 1/D.", "`/ D` for `/ sqrt(D)`",
     lambda inputs: {"scale": 1 / inputs.sizes.D}),
]  # fmt: skip

CAUSAL: list[Row] = [
    ("causal-ignored", "mask", "The causal flag is ignored.", "a flag that is not passed on",
     lambda inputs: {"alignment": "all", **({"left": None} if inputs.case.option("left") else {})}),
]  # fmt: skip

WINDOWS: list[Row] = [
    ("window-ignored", "mask", "The window is ignored.", "a window that is not passed on",
     lambda inputs: {"left": None}),
    ("window-wide", "mask", "A window sees one key more.", "`<=` for `<`",
     lambda inputs: {"left": inputs.case.option("left") + 1}),
]  # fmt: skip

SOFTCAP: list[Row] = [
    ("uncapped", "scores", "The softcap is ignored.", "a softcap that is not passed on",
     lambda inputs: {"softcap": None} if inputs.case.option("softcap") else {}),
]  # fmt: skip


def tiled_heads(inputs: Inputs) -> Changes:
    """Returns the changes that repeat the heads of all arrays with key heads for the query heads, tiled
    (0, 1, 0, 1) and not grouped (0, 0, 1, 1)."""
    axes = {n: inputs.axes(n).index("g") for n in inputs.arrays if "g" in inputs.axes(n)}
    heads = np.arange(inputs.sizes.H) % inputs.sizes.Hkv
    return {name: inputs.arrays[name].take(heads, axis) for name, axis in axes.items()}


ZEROS: list[Row] = [
    ("zero-negated-behind-the-scale", "quantized", "Zero points are added behind the scale.",
     "`code * scale + zero`",
     lambda inputs: {f"{n}_zero": -inputs.arrays[f"{n}_zero"] / inputs.arrays[f"{n}_scale"]
                     for n in ("key", "value")}),
    ("zeros-exchanged", "quantized", "Zero points of keys and values are exchanged.",
     "the order of arguments; pass zero points by name",
     lambda inputs: arrays_exchanged(inputs, "key_zero", "value_zero")),
]  # fmt: skip


def arrays_exchanged(inputs: Inputs, name1: str, name2: str) -> Changes:
    """Returns the changes that exchange two arrays. Raises ValueError if their shapes differ."""
    array1, array2 = inputs.arrays[name1], inputs.arrays[name2]
    if array1.shape != array2.shape:
        raise ValueError(f"{name1} and {name2} differ in shape")
    return {name1: array2, name2: array1}


def script_change(
    kind: type[Action], change: Callable[[Any], Action | None] = lambda action: None
) -> Callable[[Inputs], Changes]:
    """Returns a function from inputs to the changed script: `change(action)` replaces each action of the
    type `kind`; None removes the action."""

    def changes(inputs: Inputs) -> Changes:
        script = inputs.case.option("script")
        changed = (change(action) if isinstance(action, kind) else action for action in script)
        actions = tuple(action for action in changed if action)
        return {} if actions == script else {"script": actions, "capacity": None}

    return changes


def lengthened_rollback(tokens: int) -> Callable[[Crop], Crop | None]:
    """Returns a function from a rollback to one that removes `tokens` more; None for a rollback of
    none."""
    return lambda crop: replace(crop, count=crop.count + tokens) if crop.count + tokens else None


def inverse_order(pick: Pick) -> Pick:
    """Returns the inverse reordering: sample `order[n]` gets the history of sample n."""
    order = pick.samples
    return Pick(tuple(order.index(n) if n in order else n for n in range(len(order))))


OTHER_PAIRS = {"halves": "interleaved", "interleaved": "halves"}

CACHES: list[Row] = [
    ("scale-of-zero-ignored", "scale", "A scale of 0 is replaced by the default one.",
     "`scale or D ** -0.5`; ask `scale is None`", lambda inputs: {"scale": inputs.scale or None}),
    ("rollbacks-ignored", "cache", "Rollbacks do nothing.", "a rollback that returns the cache as it is",
     script_change(Crop)),
    ("rollback-too-short", "cache", "Of tokens that are taken back one stays.", "`[: length - n + 1]`",
     script_change(Crop, lengthened_rollback(-1))),
    ("rollback-too-long", "cache", "One token too many is taken back.", "`[: length - n - 1]`",
     script_change(Crop, lengthened_rollback(1))),
    ("resets-ignored", "cache", "Resets do nothing.", "a reset that leaves the length",
     script_change(Reset)),
    ("order-ignored", "cache", "Samples are not reordered.", "a reordered copy that is not kept",
     script_change(Pick)),
    ("order-inverted", "cache", "Samples are reordered the other way round.",
     "`cache[order] = cache` for `cache[order]`", script_change(Pick, inverse_order)),
    ("unrotated", "rotary", "Nothing is rotated.", "a rotation that is not applied",
     lambda inputs: {"rotary": "none"} if inputs.case.option("rotary") != "none" else {}),
    ("rotary-pairs-otherwise", "rotary", "Neighbours are rotated in place of halves, and halves in place "
     "of neighbours.", "`rotate_half` of another model family",
     lambda inputs: {"rotary": OTHER_PAIRS[inputs.case.option("rotary")]}),
    ("sinks-ignored", "sinks", "The sinks are ignored.", "sinks that are not passed on",
     lambda inputs: {"sinks": None} if "sinks" in inputs.arrays else {}),
    ("sink-of-every-part", "sinks", "With split keys the sink counts once in every part.",
     "`sinks` passed to the kernel of every part; a sink counts once",
     lambda inputs: {"sinks": inputs.arrays["sinks"] + np.log(3.0)}),
    ("bias-ignored", "scores", "The bias is ignored.", "a bias that is not passed on",
     lambda inputs: {"bias": None} if inputs.bias is not None else {}),
    ("slopes-ignored", "scores", "The slopes are ignored.", "slopes that are not passed on",
     lambda inputs: {"alibi_slopes": None} if "alibi_slopes" in inputs.arrays else {}),
]  # fmt: skip


def lse_change(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Changes]:
    """Returns a function from inputs to the changed partial log-sum-exps, `change(lse)`. Those of parts
    without keys stay -inf."""

    def changed(lse: np.ndarray) -> np.ndarray:
        return np.where(np.isneginf(lse), lse, change(np.where(np.isneginf(lse), 0.0, lse)))

    return other_array("partial_lse", changed)


def parts_kept(is_kept: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Changes]:
    """Returns a function from inputs to changed partial log-sum-exps. Where `is_kept(lse)` is False, they
    are so low that the part has no weight."""
    lowest = np.finfo(np.float32).min / 4
    return other_array("partial_lse", lambda lse: np.where(is_kept(lse), lse, lowest))


MERGES: list[Row] = [
    ("parts-inverted", "merge", "Parts weigh exp(-lse), expected exp(lse).",
     "`exp(m - lse)` for `exp(lse - m)`", lse_change(np.negative)),
    ("by-log2", "merge", "Log-sum-exps are multiplied by log2(e), and e is raised to them.",
     "a log-sum-exp to base 2", lse_change(lambda lse: lse / np.log(2))),
    ("parts-squared", "merge", "Parts weigh exp(2 lse), expected exp(lse).", "a product too many",
     lse_change(lambda lse: 2 * lse)),
    ("parts-in-reverse", "merge", "Parts have the weights of the parts in reverse order.",
     "`1 - w` for `w`, two parts exchanged",
     other_array("partial_lse", lambda lse: lse[::-1])),
    ("first-part-alone", "merge", "Only the first part counts.", "a loop that ends too early",
     parts_kept(lambda lse: np.arange(len(lse)).reshape(-1, 1, 1, 1) == 0)),
    ("last-part-alone", "merge", "Only the last part counts.", "an accumulator that is overwritten",
     parts_kept(lambda lse: np.arange(len(lse)).reshape(-1, 1, 1, 1) == len(lse) - 1)),
    ("largest-part-alone", "merge", "Only the part with the largest log-sum-exp counts.",
     "`argmax` of the parts; add them all",
     parts_kept(lambda lse: lse == lse.max(0))),
    ("of-the-first-sample", "merge", "All samples have the log-sum-exps of the first sample.",
     "an index of samples", other_array("partial_lse", first_along(1))),
    ("of-the-first-head", "heads", "All heads have the log-sum-exps of the first head.",
     "`lse[:, :, :1]` for all heads; head h has `lse[:, :, h]`",
     other_array("partial_lse", first_along(2))),
    ("lse-in-bfloat16", "numerics", "Log-sum-exps are rounded to bfloat16 before they are compared.",
     "`lse.bfloat16()`; keep log-sum-exps in float32", other_array("partial_lse", rounded_to_bfloat16)),
    ("of-the-row-before", "merge", "Rows have the log-sum-exps of the row before.", "an index of rows",
     other_array("partial_lse", rolled_along(-1, 1))),
    ("of-the-head-before", "merge", "Heads have the log-sum-exps of the head before.",
     "an index of heads", other_array("partial_lse", rolled_along(-2, 1))),
]  # fmt: skip


def merged_lse_deviation(
    noun: str, hint: str, change: Callable[[np.ndarray], np.ndarray]
) -> Deviation:
    return deviation(
        f"merge-lse-is-the-{noun}", "values",
        f"The merged log-sum-exp is the {noun} of the parts' log-sum-exps.", hint,
        family="lse", right=MergeKernel,
        merged=lambda right, outputs, lse, fmt:
            (right.merged(outputs, lse, fmt)[0], change(lse)))  # fmt: skip


def projection_rows(name: str, noun: str) -> list[Row]:
    """Returns the rows that change the up-projection `name` (R, H, D or Dv) of latents. `noun`: "keys" or
    "values"."""
    index = f"an index of heads of `{name}`"
    return [
        (f"{noun}-by-the-first-head", "heads", f"The {noun} of all heads are projected by the matrix of "
         "the first head.", index, other_array(name, first_along(1))),
        (f"{noun}-by-the-next-head", "heads", f"The {noun} of a head are projected by the matrix of the "
         "next head.", index, other_array(name, rolled_along(1, -1))),
        (f"{noun}-by-the-head-before", "heads", f"The {noun} of a head are projected by the matrix of "
         "the head before.", index, other_array(name, rolled_along(1, 1))),
        (f"{noun}-interleaved", "layout", f"Heads and components of the projection of {noun} are "
         "interleaved.", "`view(R, D, H)` for `view(R, H, D)`",
         other_array(name, lambda w: w.reshape(w.shape[0], w.shape[2], w.shape[1]).swapaxes(1, 2))),
        (f"{noun}-reversed", "latent", f"The {noun} take latents from their last component on.",
         f"the axes of `{name}`", other_array(name, lambda w: w[::-1])),
    ]  # fmt: skip


def scale_from_sizes(formula: Callable[[int, int, int], float]) -> Callable[[Inputs], Changes]:
    """Returns a function from inputs to the scale `formula(D, R, E)`, for the sizes of a head, of a
    latent and of a rotary key."""
    return lambda inputs: {
        "scale": formula(inputs.sizes.D, inputs.letters["r"], inputs.letters["e"])
    }


LATENTS: list[Row] = [
    *projection_rows("w_uk", "keys"),
    *projection_rows("w_uv", "values"),
    ("rotary-alone", "latent", "Only the rotary part of the scores counts.",
     "`q_nope @ k_nope + q_pe @ k_pe`", other_array("query", lambda query: 0 * query)),
    ("rotary-key-of-the-next-token", "latent", "A latent has the rotary key of the next token.",
     "`k_pe[j]` goes with `c[j]`", other_array("key_rope", rolled_along(1, -1))),
    ("rotary-key-of-the-first-sample", "heads", "All samples have the rotary keys of the first sample.",
     "an index of samples", other_array("key_rope", first_along(0))),
    ("latents-of-the-first-sample", "heads", "All samples have the latents of the first sample.",
     "an index of samples",
     lambda inputs: {n: first_along(0)(x) for n, x in inputs.arrays.items() if n.startswith("latent")}),
    ("scale-of-the-rotary-part", "scale", "The scale is 1/sqrt(E), of the rotary part alone.",
     "the size of a query is D + E", scale_from_sizes(lambda D, R, E: E**-0.5)),
    ("scale-of-latent-and-rotary", "scale", "The scale is 1/sqrt(R + E), of latent and rotary key.",
     "the size of a query is D + E, in both forms", scale_from_sizes(lambda D, R, E: (R + E) ** -0.5)),
    ("scale-without-root", "scale", "The scale is 1/(D + E).", "`/ D` for `/ sqrt(D)`",
     scale_from_sizes(lambda D, R, E: 1 / (D + E))),
    UNSCALED,
    ("scaled-twice-over", "scale", "The scale is applied twice, to query and to scores.",
     "a query that is scaled already", lambda inputs: {"scale": inputs.effective_scale**2}),
    ("scale-without-rotary", "scale",
     "The scale is that of the part of a query without a position.",
     "`qk_nope_head_dim ** -0.5`; the rotary part counts, too",
     scale_from_sizes(lambda D, R, E: D**-0.5)),
    ("scale-of-decoding", "scale", "With one query the scale that is given is ignored.",
     "a kernel for decoding without `softmax_scale`",
     lambda inputs: {"scale": None} if has_one_query(inputs) else {}),
    ("scale-roughly", "scale", "The scale is 1 % too large.",
     "a constant with two digits; compute the scale from the sizes",
     lambda inputs: {"scale": 1.01 * inputs.effective_scale}),
    ("rotary-dropped", "latent", "The rotary part of the scores is left out.",
     "`q_nope @ k_nope` alone; add `q_pe @ k_pe`", other_array("query_rope", lambda query: 0 * query)),
    ("rotary-key-of-the-token-before", "latent", "A latent has the rotary key of the token before.",
     "`k_pe[j - 1]` beside `c[j]`; both are of token j", other_array("key_rope", rolled_along(1, 1))),
    ("rotary-key-scaled", "quantized",
     "Rotary keys are multiplied by the scale of the last tile, too.",
     "the whole row of the cache times `scale`; rotary keys are no codes",
     lambda inputs: {"key_rope": inputs.arrays["key_rope"] * inputs.arrays["latent_scale"][..., -1:]}),
    ("values-are-keys", "latent", "Values are projected by the matrix of the keys.",
     "`w_kv[..., :d]` for the values; theirs are the columns from d on",
     lambda inputs: {"w_uv": np.resize(inputs.arrays["w_uk"].T, inputs.arrays["w_uv"].T.shape).T}),
    ("padding-forgotten-in-decoding", "mask", "A single query attends hidden keys.",
     "`if q_len > 1` around the mask; decoding has padding, too",
     lambda inputs: {"mask": None, "mask_array": None} if has_one_query(inputs) else {}),
]  # fmt: skip

HEADS: list[Row] = [
    ("heads-in-turn", "heads", "Query heads take the heads of keys in turn (0, 1, 0, 1), not by groups "
     "(0, 0, 1, 1).", "`repeat`, `tile` for `repeat_interleave`", tiled_heads),
]  # fmt: skip

DEVIATIONS = [
    *deviations_of("packed", PackedKernel, SCALES[1:]),
    *deviations_of("paged", PagedKernel, [*SCALES, *CAUSAL, *WINDOWS, *SOFTCAP]),
    *deviations_of("cached", CachedKernel, [*SCALES, *WINDOWS, *SOFTCAP, *HEADS, *CACHES]),
    *deviations_of("quantized", QuantizedKernel, [*SCALES, *CAUSAL, *HEADS, *ZEROS]),
    *deviations_of("codes", QuantizedWriteKernel, ZEROS),
    *deviations_of("latent", LatentKernel, LATENTS),
    *deviations_of("merge", MergeKernel, MERGES),
    merged_lse_deviation("sum", "`lse1 + lse2` for `logaddexp(lse1, lse2)`", lambda lse: lse.sum(0)),
    merged_lse_deviation("mean", "`lse.mean(0)` for `logsumexp(lse, 0)`", lambda lse: lse.mean(0)),
    merged_lse_deviation("first", "`lse[0]` for `logsumexp(lse, 0)`", lambda lse: lse[0]),
]  # fmt: skip
