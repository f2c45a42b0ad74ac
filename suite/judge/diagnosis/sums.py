"""How weights are normalised: axes of the softmax, its denominator, and keys in blocks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    Variant,
    WeightsVariant,
    fitting_symptom,
    softmax,
)
from attention_conformance.suite.judge.diagnosis.words import counted, numbers, part, span
from attention_conformance.suite.spec.inputs import Inputs

AXES = ("samples", "heads", "queries", "keys")

STEP = 0.05
"""The least step of log weights between blocks of keys. Rounding to 8 bits makes smaller ones."""

RESCALED = "a running maximum: what was summed before is multiplied by `exp(old - new)`"


MERGES = {
    1 / np.log(2): "log-sum-exps to base 2 that are merged with `exp`",
    np.log(2): "`exp2` of log-sum-exps to base e",
    -1.0: "a sign",
}
"""Reasons why parts weigh exp(p log-sum-exp), by p."""


def ask(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """What is wrong with the sums of the weights of rows, and with blocks of keys."""
    rows, got = reading.judged_rows & reading.visible.any(-1), reading.got
    sums, want = got.sum(-1), reading.want.sum(-1)
    off = (np.abs(sums - want) > reading.slack * want + reading.bound.sum(-1)) & rows
    with np.errstate(all="ignore"):
        found = None
        if off.any():
            found = fitting_symptom(_axes, reading, "softmax")
            found = found or fitting_symptom(
                _others, reading, "softmax", f" rows sum to {span(sums[off])}."
            )
        found = found or _of_blocks(reading, off) or next(other_denominator(reading), None)
    if found is None and off.any():
        factor, text = float(np.median(sums[rows] / want[rows])), span(sums[off])
        if _answers(tool, reading.inputs, factor):
            said = (
                f"All outputs are {factor:.4g} times the right ones: rows of weights sum to {text}."
            )
            hint = "a factor behind the softmax, such as 1 / (1 - dropout)"
            found = Symptom(said, "softmax", hint, key="factor of outputs")
        else:
            said = f"In {part(off)}, the weights sum to {text}, expected {span(want[off])}."
            hint = "a running sum that is not rescaled, or keys that count in one of two sums alone"
            found = Symptom(said, "softmax", hint, key="sums of all rows" if off.all() else "sums")
    if found is not None:
        yield found


def other_denominator(reading: Reading) -> Iterator[Symptom]:
    """The finding if rows of right weights sum to less than rounding explains."""
    with np.errstate(all="ignore"):
        rows = reading.judged_rows & reading.visible.any(-1)
        found = _denominator(reading, rows) if rows.any() else None
    if found is not None:
        yield found


def _axes(reading: Reading) -> Iterator[WeightsVariant]:
    """Softmaxes over other axes than that of the keys."""
    for count in (1, 2, 3):
        for axes in combinations(range(4), count):
            if axes != (3,):
                over = " and ".join(AXES[axis] for axis in axes) + " together" * (count > 1)
                hint = (
                    f"`softmax(dim={axes[0]})`" if count == 1 else "`softmax` of flattened scores"
                )
                text = f"The softmax runs over the {over}, expected over the keys."
                yield Variant(softmax(reading.scores, reading.visible, axes), text, hint)


def _others(reading: Reading) -> Iterator[WeightsVariant]:
    """Other functions of the scores than a softmax."""
    scores, attended = reading.scores, reading.visible
    powers = np.where(attended, np.exp(scores), 0)
    raised = powers / np.exp(np.where(attended, scores, -np.inf).max(-1, keepdims=True))
    undivided = "Weights are not divided by their sum:"
    one_more = "The denominator of the softmax has one summand too many:"
    for weights, sentence, hint in (
        (softmax(scores, np.ones(attended.shape, bool)),
         "Keys are hidden behind the softmax: their weights are zero, and",
         "`softmax(scores) * mask`; hide scores before the softmax"),
        (powers, undivided, "`exp(s) @ value` without the division"),
        (raised, undivided, "`exp(s - max) @ value` without the division"),
        (powers / (1 + powers.sum(-1, keepdims=True)), one_more, "`exp(s) / (1 + sum)`"),
        (raised / (1 + raised.sum(-1, keepdims=True)), one_more, "`sum(exp(s - max)) + 1`"),
        (1 / (1 + np.exp(-scores)), "Weights are a sigmoid of the scores, expected a softmax:",
         "`sigmoid`"),
        (np.maximum(scores, 0), "Weights are a ReLU of the scores, expected a softmax:", "`relu`"),
    ):  # fmt: skip
        yield Variant(np.where(attended, weights, 0), sentence, hint, key=hint)


def _denominator(reading: Reading, rows: np.ndarray) -> Symptom | None:
    """The finding if weights of a row are in the right proportion, and divided by another sum: that of
    some keys, or one with more summands."""
    got, scores, attended = reading.got, reading.scores, reading.visible
    right = softmax(scores, attended)
    if not reading.fits(right * got.sum(-1, keepdims=True)):
        return None
    sums, top = got.sum(-1)[rows], np.where(attended, scores, -np.inf).max(-1)[rows]
    powers = np.exp(np.where(attended, scores, -np.inf)[rows] - top[:, None])  # (rows, Lk)
    used = powers.sum(-1) / sums
    # Whatever the scores, weights sum to 1 but for the rounding of each weight and of sums.
    unit = max(reading.inputs.dtype.unit_roundoff, reading.unit)
    sinks = np.abs(reading.want.sum(-1)[rows] - 1).max() > unit
    slack = 2 * reading.slack if sinks else 8 * (powers.shape[-1] + 8) * unit
    for one in (np.exp(top), np.ones_like(top)):  # one summand is exp(0), or exp(the maximum)
        more = (used - powers.sum(-1)) * one
        error = slack * used * one + 2 * reading.slack * np.abs(more)
        few, most = float((more - error).max()), float((more + error).min())
        if few <= most and few > 0:
            n, surest = round(most), float(more[error.argmin()])
            what, hint = f"is too large by {surest:.2g}", "an epsilon in the sum"
            if few <= n and n == 1:
                what = "has one summand too many"
                hint = "`exp(s) / (1 + sum)`, `sum(exp(s - max)) + 1`"
            elif few <= n:
                what = f"has {n} scores of 0 too many"
                hint = "keys that pad the last tile with zeros have the score 0, and count"
            text = f"The denominator of the softmax {what}: rows sum to {span(sums)}."
            return Symptom(text, "softmax", hint, key=f"denominator: {hint}")
    if np.abs(sums - 1).max() <= 2 * reading.slack:
        return None
    Lk, total = powers.shape[-1], np.cumsum(np.pad(powers, ((0, 0), (1, 0))), -1)
    for a, b in combinations(range(Lk + 1), 2):
        of_part = total[:, b] - total[:, a]
        if b - a < Lk and (np.abs(of_part - used) <= 2 * reading.slack * used).all():
            keys = np.arange(a, b)
            over = f"{counted(b - a, 'key')} {numbers(keys)} of {Lk} alone, expected over all keys"
            text, hint = (
                f"Weights are divided by the sum over {over}.",
                "`l = ` for `l += `: the sum of one tile",
            )
            return Symptom(text, "softmax", hint, key="sum of some keys")
    return None


def _of_blocks(reading: Reading, off: np.ndarray) -> Symptom | None:
    """The finding if weights are in the right proportion within blocks of keys, and not between them."""
    attended, scores, Lk = (
        reading.visible & reading.judged_rows[..., None],
        reading.scores,
        reading.want.shape[-1],
    )
    hidden = np.where(attended, scores, -np.inf)
    apart = np.where(attended, np.log(reading.got) - scores, np.nan)
    steps = np.nan_to_num(np.abs(np.diff(apart))).max((0, 1, 2))  # NaN beside hidden keys: no step
    edges = [0, *(np.flatnonzero(steps > 4 * reading.slack) + 1).tolist(), Lk]
    size = edges[1]
    if any(steps[edge - 1] < STEP for edge in edges[1:-1]):
        return None
    if (
        len(edges) < 3
        or size < 2
        or (np.diff(edges[:-1]) != size).any()
        or Lk - edges[-2] > size + 1
    ):
        return None
    blocks = [hidden[..., a:b] for a, b in pairwise(edges)]
    tops = np.stack([block.max(-1) for block in blocks], -1)
    logs = np.stack([np.log(np.exp(block).sum(-1)) for block in blocks], -1)
    running = np.maximum.accumulate(tops, -1)
    named = f"block of {size} keys"
    if len(edges) == 3:
        named = f"part of the keys, before key {size} and from there on,"
    for way, level, sentence, hint in (
        ("own softmax", -logs, f"Every {named} has its own softmax, and the answers are "
         f"{'added' if off.any() else 'averaged'}.", "merge answers by their log-sum-exps"),
        ("own maximum", -tops, f"Every {named} has its own maximum: weights of a block are exp(max - its "
         "max) times the right ones.", RESCALED),
        ("not rescaled", -running, f"What a {named} adds is not rescaled when the maximum grows.",
         RESCALED),
        ("inverse", -2 * running, f"What a {named} adds is rescaled by the inverse factor.", RESCALED),
    ):  # fmt: skip
        by_key = np.repeat(level, np.diff(edges), -1)
        shares = softmax(np.where(attended, scores + by_key, 0), attended)
        if reading.fits(shares * reading.got.sum(-1, keepdims=True)):
            return Symptom(sentence, "softmax", hint, key=f"blocks: {way}")
    with warnings.catch_warnings(action="ignore"):  # blocks that are hidden have no level
        level = np.stack([np.nanmean(apart[..., a:b], -1) for a, b in pairwise(edges)], -1)
    power = _power(level, np.where(np.isfinite(level), logs, np.nan), 4 * reading.slack)
    if power is not None:
        hint = next((hint for x, hint in MERGES.items() if abs(power - x) < 0.01), "")
        text = f"Every {named} has its own softmax, and weighs exp({power:.3g} lse) in their sum, "
        return Symptom(f"{text}expected exp(lse).", "softmax", hint, key=f"power of blocks: {hint}")
    if len(edges) < 4 or size < 4:
        return None
    text = (
        f"Weights are in the right proportion within blocks of {size} keys alone, not between them."
    )
    return Symptom(text, "softmax", RESCALED, key="between blocks")


def _power(level: np.ndarray, logs: np.ndarray, slack: float) -> float | None:
    """The power p for which blocks weigh exp(p log-sum-exp) in every row, from log weights (..., blocks)
    above those that are right; None if there is none."""
    several = np.isfinite(level).sum(-1) > 1
    level, logs = (x[several] - np.nanmean(x[several], -1, keepdims=True) for x in (level, logs))
    total = np.nansum(logs * logs)
    more = float(np.nansum(level * logs) / total) if total else 0.0
    fits = bool(total) and np.nanmax(np.abs(level - more * logs)) <= slack
    return 1 + more if fits else None


def _answers(tool: Instrument, inputs: Inputs, factor: float) -> bool:
    """True if outputs for other values, too, are the right ones times a factor."""
    got, oracle = tool.output(inputs), tool.oracle(inputs)
    if got is None or oracle is None:
        return False
    right = oracle.expected["output"]
    bound = 2 * max(abs(factor), 1) * right.error.max()
    return bool((np.abs(got - factor * right.value) <= bound).all())
