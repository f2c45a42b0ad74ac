"""Symptoms of normalisation: the axes of the softmax, its denominator, and keys in blocks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    softmax,
)
from attention_conformance.suite.judge.diagnosis.words import (
    indices_text,
    plural,
    range_text,
    rows_text,
)
from attention_conformance.suite.spec.inputs import Inputs

STEP = 0.05
"""The least step of log weights between blocks of keys: rounding to 8 bits makes smaller ones."""

RESCALED = "a running maximum: what was summed before is multiplied by `exp(old - new)`"


MERGES = {
    1 / np.log(2): "log-sum-exps to base 2 that are merged with `exp`",
    np.log(2): "`exp2` of log-sum-exps to base e",
    -1.0: "a sign",
}
"""Hints for parts that weigh exp(p log-sum-exp), by p."""


def normalisation_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Yields at most one symptom of normalisation: of the sums of rows of weights, or of keys in
    blocks."""
    rows, got = reading.judged_rows & reading.visible.any(-1), reading.got
    sums, want = got.sum(-1), reading.want.sum(-1)
    is_off = (np.abs(sums - want) > reading.slack * want + reading.bound.sum(-1)) & rows
    with np.errstate(all="ignore"):
        symptom = tool.row_symptom(reading) if is_off.any() else None
        symptom = symptom or _block_symptom(reading, is_off)
        symptom = symptom or next(denominator_symptoms(reading), None)
    if symptom is None and is_off.any():
        factor, text = float(np.median(sums[rows] / want[rows])), range_text(sums[is_off])
        if _is_factor_of_outputs(tool, reading.inputs, factor):
            sentence = (
                f"All outputs are {factor:.4g} times the right ones: rows of weights sum to {text}."
            )
            hint = "a factor behind the softmax, such as 1 / (1 - dropout)"
            symptom = Symptom(sentence, "softmax", hint, key="factor of outputs")
        else:
            place, expected = rows_text(is_off), range_text(want[is_off])
            sentence = f"In {place}, the weights sum to {text}, expected {expected}."
            hint = "a running sum that is not rescaled, or keys that count in one of two sums alone"
            key = "sums of all rows" if is_off.all() else "sums"
            symptom = Symptom(sentence, "softmax", hint, key=key)
    if symptom is not None:
        yield symptom


def denominator_symptoms(reading: Reading) -> Iterator[Symptom]:
    """Yields a symptom if the denominator of the softmax is wrong: another sum, or too many summands."""
    with np.errstate(all="ignore"):
        rows = reading.judged_rows & reading.visible.any(-1)
        symptom = _denominator_symptom(reading, rows) if rows.any() else None
    if symptom is not None:
        yield symptom


def _denominator_symptom(reading: Reading, rows: np.ndarray) -> Symptom | None:
    """Returns the symptom if `rows` (B, H, Lq) of weights are divided by another sum, over some keys or
    with more summands; else None."""
    got, scores, visible = reading.got, reading.scores, reading.visible
    right = softmax(scores, visible)
    if not reading.fits(right * got.sum(-1, keepdims=True)):
        return None
    sums, top = got.sum(-1)[rows], np.where(visible, scores, -np.inf).max(-1)[rows]
    powers = np.exp(np.where(visible, scores, -np.inf)[rows] - top[:, None])  # (rows, Lk)
    denominators = powers.sum(-1) / sums
    # Whatever the scores, weights sum to 1 but for the rounding of each weight and of sums.
    unit = max(reading.inputs.dtype.unit_roundoff, reading.unit)
    right_sums = reading.want.sum(-1)[rows]
    has_sinks = np.abs(right_sums - 1).max() > unit
    if has_sinks and np.abs(sums - right_sums).max() <= 2 * reading.slack:
        return None
    slack = 2 * reading.slack if has_sinks else 8 * (powers.shape[-1] + 8) * unit
    for summand in (np.exp(top), np.ones_like(top)):  # one summand is exp(0), or exp(the maximum)
        excess = (denominators - powers.sum(-1)) * summand
        error = slack * denominators * summand + 2 * reading.slack * np.abs(excess)
        least, largest = float((excess - error).max()), float((excess + error).min())
        if least <= largest and least > 0:
            count, best_excess = round(largest), float(excess[error.argmin()])
            fault, hint = f"is too large by {best_excess:.2g}", "an epsilon in the sum"
            if least <= count and count == 1:
                fault = "has one summand too many"
                hint = "`exp(s) / (1 + sum)`, `sum(exp(s - max)) + 1`"
            elif least <= count:
                fault = f"has {count} scores of 0 too many"
                hint = "keys that pad the last tile with zeros have the score 0, and count"
            text = f"The denominator of the softmax {fault}: rows sum to {range_text(sums)}."
            return Symptom(text, "softmax", hint, key=f"denominator: {hint}")
    if np.abs(sums - 1).max() <= 2 * reading.slack:
        return None
    Lk, cumulative = powers.shape[-1], np.cumsum(np.pad(powers, ((0, 0), (1, 0))), -1)
    for a, b in combinations(range(Lk + 1), 2):
        part_sums = cumulative[:, b] - cumulative[:, a]
        is_sum = (np.abs(part_sums - denominators) <= 2 * reading.slack * denominators).all()
        if b - a < Lk and is_sum:
            keys = f"{plural(b - a, 'key')} {indices_text(np.arange(a, b))} of {Lk} alone"
            text = f"Weights are divided by the sum over {keys}, expected over all keys."
            hint = "`l = ` for `l += `: the sum of one tile"
            return Symptom(text, "softmax", hint, key="sum of some keys")
    return None


def _block_symptom(reading: Reading, is_off: np.ndarray) -> Symptom | None:
    """Returns the symptom if weights have the right proportions within blocks of keys, but not between
    blocks; else None. `is_off` (B, H, Lq): True for rows with a wrong sum."""
    visible = reading.visible & reading.judged_rows[..., None]
    scores, Lk = reading.scores, reading.want.shape[-1]
    masked = np.where(visible, scores, -np.inf)
    log_ratio = np.where(visible, np.log(reading.got) - scores, np.nan)
    steps = np.nan_to_num(np.abs(np.diff(log_ratio))).max((0, 1, 2))  # 0 next to hidden keys
    edges = [0, *(np.flatnonzero(steps > 4 * reading.slack) + 1).tolist(), Lk]
    size = edges[1]
    if any(steps[edge - 1] < STEP for edge in edges[1:-1]):
        return None
    is_unequal = (np.diff(edges[:-1]) != size).any() or Lk - edges[-2] > size + 1
    if len(edges) < 3 or size < 2 or is_unequal:
        return None
    blocks = [masked[..., a:b] for a, b in pairwise(edges)]
    tops = np.stack([x.max(-1) for x in blocks], -1)
    logs = np.stack([np.log(np.exp(x).sum(-1)) for x in blocks], -1)
    running = np.maximum.accumulate(tops, -1)
    block = f"block of {size} keys"
    if len(edges) == 3:
        block = f"part of the keys, before key {size} and from there on,"
    for key, added_logs, sentence, hint in (
        ("own softmax", -logs, f"Every {block} has its own softmax, and the answers are "
         f"{'added' if is_off.any() else 'averaged'}.", "merge answers by their log-sum-exps"),
        ("own maximum", -tops, f"Every {block} has its own maximum: weights of a block are exp(max - its "
         "max) times the right ones.", RESCALED),
        ("not rescaled", -running, f"What a {block} adds is not rescaled when the maximum grows.",
         RESCALED),
        ("inverse", -2 * running, f"What a {block} adds is rescaled by the inverse factor.", RESCALED),
    ):  # fmt: skip
        added = np.repeat(added_logs, np.diff(edges), -1)
        weights = softmax(np.where(visible, scores + added, 0), visible)
        if reading.fits(weights * reading.got.sum(-1, keepdims=True)):
            return Symptom(sentence, "softmax", hint, key=f"blocks: {key}")
    with warnings.catch_warnings(action="ignore"):  # hidden blocks have no mean
        means = np.stack([np.nanmean(log_ratio[..., a:b], -1) for a, b in pairwise(edges)], -1)
    power = _power_of_blocks(means, np.where(np.isfinite(means), logs, np.nan), 4 * reading.slack)
    if power is not None:
        hint = next((hint for x, hint in MERGES.items() if abs(power - x) < 0.01), "")
        text = f"Every {block} has its own softmax, and weighs exp({power:.3g} lse) in their sum, "
        return Symptom(f"{text}expected exp(lse).", "softmax", hint, key=f"power of blocks: {hint}")
    return None


def _power_of_blocks(log_ratios: np.ndarray, logs: np.ndarray, slack: float) -> float | None:
    """Returns the power p for which blocks weigh exp(p log-sum-exp) in every row, or None. Both arrays
    are (..., blocks). `log_ratios`: logarithms of a block's weights relative to the right ones. `logs`:
    the blocks' log-sum-exps. `slack`: the largest allowed residual."""
    has_several = np.isfinite(log_ratios).sum(-1) > 1
    ratios, logs = log_ratios[has_several], logs[has_several]
    ratios, logs = (x - np.nanmean(x, -1, keepdims=True) for x in (ratios, logs))
    total = np.nansum(logs * logs)
    slope = float(np.nansum(ratios * logs) / total) if total else 0.0
    fits = bool(total) and np.nanmax(np.abs(ratios - slope * logs)) <= slack
    return 1 + slope if fits else None


def _is_factor_of_outputs(tool: Instrument, inputs: Inputs, factor: float) -> bool:
    """True if the output for the inputs is `factor` times the right output, within bounds."""
    got, oracle = tool.output(inputs), tool.oracle(inputs)
    if got is None or oracle is None:
        return False
    right = oracle.expected["output"]
    bound = 2 * max(abs(factor), 1) * right.error.max()
    return bool((np.abs(got - factor * right.value) <= bound).all())
